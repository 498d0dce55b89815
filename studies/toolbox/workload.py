"""What is generated while a model is measured: batch, prompt and new tokens, always the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Generation:
    """Greedy generation of exactly ``new_tokens`` tokens for ``batch`` prompts.

    ``ragged`` prompts have lengths between half of ``prompt_tokens`` and all of it, padded on the
    left; otherwise every prompt has ``prompt_tokens`` tokens and nothing is padded.
    """

    batch: int = 8
    prompt_tokens: int = 256
    new_tokens: int = 512
    ragged: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_tokens", "new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        if self.new_tokens < 2:
            raise InputError("new_tokens is 1; take 2 or more, so that decoding can be measured.")

    @property
    def useful_tokens(self) -> int:
        """Tokens that a run produces; padding is never counted."""
        return self.batch * self.new_tokens

    def prompts(self, vocab_size: int) -> tuple[Ints, Ints]:
        """Token ids and mask, each (batch, prompt_tokens); 0 in the mask is padding.

        Tokens are drawn at random: a repeated token would make attention and caches unusually easy.
        """
        generator = np.random.default_rng([self.seed, 7])
        shape = (self.batch, self.prompt_tokens)
        ids = generator.integers(0, vocab_size, shape, dtype=np.int64)
        lengths = np.full(self.batch, self.prompt_tokens)
        if self.ragged:
            low = max(1, self.prompt_tokens // 2)
            lengths = generator.integers(low, self.prompt_tokens + 1, self.batch)
            lengths[0] = self.prompt_tokens
        mask = (np.arange(self.prompt_tokens) >= self.prompt_tokens - lengths[:, None]).astype(
            np.int64
        )
        return np.where(mask == 1, ids, 0), mask

    def as_json(self) -> dict[str, Any]:
        """The fields, for logs and workers."""
        return asdict(self)

    def __str__(self) -> str:
        ragged = " ragged" if self.ragged else ""
        return f"batch {self.batch},{ragged} prompt {self.prompt_tokens}, {self.new_tokens} new"
