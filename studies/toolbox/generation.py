"""The loop that is measured: prefill, then greedy decoding token by token through a KV cache.

It needs nothing but torch and transformers: an optimised model that a study writes carries this
file, so what runs there is what was measured.
"""

from __future__ import annotations

import inspect
from typing import Any

Tensor = Any


class Generator:
    """Generates with a causal language model of transformers.

    Args:
        model: what ``AutoModelForCausalLM`` returns, or a module with its ``forward``.
        cache: ``dynamic`` grows with every token, ``static`` holds all of them from the start.
        pad_multiple: prompts are padded on the left to a multiple of this many tokens.
    """

    def __init__(self, model: Any, cache: str = "dynamic", pad_multiple: int = 1) -> None:
        self.model = model
        self.cache_kind = cache
        self.pad_multiple = pad_multiple
        arguments = inspect.signature(type(model).forward).parameters
        # transformers 5.2x renamed the argument; both names are in use.
        self._cache_name = "cache" if "cache" in arguments else "past_key_values"
        self._keeps_last = "logits_to_keep" in arguments
        self._static: tuple[tuple[int, int], Any] | None = None
        self.cache: Any = None
        self.seen = 0

    def start(self, ids: Tensor, mask: Tensor, new_tokens: int) -> None:
        """Takes prompts (batch, tokens) with their mask and an empty cache for them."""
        import torch

        missing = -ids.shape[1] % self.pad_multiple
        self._ids = torch.nn.functional.pad(ids, (missing, 0))
        padded = torch.nn.functional.pad(mask, (missing, 0))
        whole = torch.nn.functional.pad(padded, (0, new_tokens), value=1)
        self._positions = (whole.cumsum(1) - 1).clamp(min=0)
        # Without padding no mask is needed, and attention can take its causal fast path.
        self._mask = None if bool(mask.all()) and not missing else whole
        self.fed_tokens = int(self._ids.shape[1])
        self.cache = self._new_cache(int(ids.shape[0]), int(whole.shape[1]))
        self.seen = 0

    def prefill(self, every: bool = False) -> Tensor:
        """Logits of the prompt: of the last token, or of ``every``, (batch, tokens, vocabulary)."""
        return self._forward(self._ids, every)

    def step(self, tokens: Tensor) -> Tensor:
        """Logits after one more token for each prompt; ``tokens`` is (batch, 1)."""
        return self._forward(tokens, False)

    def generate(self, ids: Tensor, mask: Tensor, new_tokens: int) -> Tensor:
        """Greedy continuations, (batch, new_tokens); never stops early."""
        import torch

        with torch.inference_mode():
            self.start(ids, mask, new_tokens)
            tokens = self.prefill().argmax(-1)
            made = [tokens]
            for _ in range(new_tokens - 1):
                tokens = self.step(tokens).argmax(-1)
                made.append(tokens)
            return torch.cat(made, 1)

    def _forward(self, ids: Tensor, every: bool) -> Tensor:
        end = self.seen + ids.shape[1]
        # A static cache sees the mask of its whole length, so that shapes never change.
        seen = end if self.cache_kind == "dynamic" else None
        arguments = {
            "attention_mask": None if self._mask is None else self._mask[:, :seen],
            "position_ids": self._positions[:, self.seen : end],
            self._cache_name: self.cache,
        }
        if self._keeps_last:
            arguments["logits_to_keep"] = 0 if every else 1
        logits = self.model(input_ids=ids, use_cache=True, **arguments).logits
        self.seen = end
        return logits if every else logits[:, -1:]

    def _new_cache(self, batch: int, length: int) -> Any:
        from transformers import DynamicCache, StaticCache

        if self.cache_kind == "dynamic":
            return DynamicCache(config=self.model.config)
        if self._static is None or self._static[0] != (batch, length):
            self._static = (
                (batch, length),
                StaticCache(config=self.model.config, max_cache_len=length),
            )
        # The same tensors every time: captured graphs hold on to their addresses.
        self._static[1].reset()
        return self._static[1]
