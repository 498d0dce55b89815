"""Where a model comes from: a Hugging Face folder or name, a config.json, or ``module:factory``.

A factory is the only code of a user that is ever imported, and only where ``module:factory`` was
asked for; ``trust_remote_code`` stays off.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specs.errors import InputError
from specs.files import path_exists

Kind = Literal["folder", "name", "config", "factory"]
DTYPES = ("checkpoint", "float32", "bfloat16", "float16")
WEIGHTS = ("*.safetensors", "*.bin")
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What MODEL names; ``text`` is absolute where it is a path."""

    kind: Kind
    text: str

    @classmethod
    def of(cls, text: str) -> ModelSource:
        """The source that a text names; looks at paths, loads nothing.

        Raises:
            InputError: it is no folder with weights, no config.json, no name and no factory.
        """
        path = Path(text)
        if not path_exists(path):
            return cls._of_name(text)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise InputError(f"{text} holds no config.json; it is no Hugging Face folder.")
            if not any(next(path.glob(pattern), None) for pattern in WEIGHTS):
                raise InputError(
                    f"{text} holds no weights (*.safetensors or *.bin); give {path / 'config.json'}"
                    " to measure with random weights."
                )
            return cls("folder", str(path.resolve()))
        if path.suffix != ".json" or not path.is_file():
            raise InputError(f"{text} is a file but no config.json.")
        return cls("config", str(path.resolve()))

    @classmethod
    def _of_name(cls, text: str) -> ModelSource:
        if _FACTORY.fullmatch(text):
            return cls("factory", text)
        if text.startswith(("/", ".")) or text.endswith(".json") or not _NAME.fullmatch(text):
            raise InputError(f"the model {text[:200]!r} does not exist.")
        return cls("name", text)

    @property
    def random_weights(self) -> bool:
        """Whether weights are drawn at random, so that outputs mean nothing to a reader."""
        return self.kind == "config"

    def __str__(self) -> str:
        return f"{self.text} (random weights)" if self.random_weights else self.text


def load_model(source: ModelSource, dtype: str, device: str, seed: int) -> Any:
    """The model on its device in evaluation mode.

    Args:
        source: where it comes from.
        dtype: ``checkpoint`` (that of the weights or the config) or a name of torch.
        device: ``cpu`` or ``cuda``.
        seed: of random weights.

    Raises:
        InputError: it cannot be found or is no causal language model.
    """
    import torch

    torch.manual_seed(seed)
    if source.kind == "factory":
        model = _from_factory(source.text)
        if dtype != "checkpoint":
            cast_parameters(model, dtype)
    elif source.kind == "config":
        model = _from_config(source.text, dtype)
    else:
        model = _from_weights(source, dtype)
    return model.to(device).eval().requires_grad_(False)


def cast_parameters(model: Any, dtype: str) -> None:
    """Casts floating-point parameters and no buffers: rotary frequencies must stay float32."""
    import torch

    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(getattr(torch, dtype))


def _from_weights(source: ModelSource, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    wanted = "auto" if dtype == "checkpoint" else dtype
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source.text, dtype=wanted, output_loading_info=True
        )
    except Exception as error:  # a folder from elsewhere breaks libraries in many ways
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"the model {source.text!r} cannot be loaded: {first_line(error)}"
        ) from error
    # transformers draws missing weights at random and goes on.
    missing = sorted(found["missing_keys"])
    if missing:
        raise InputError(
            f"the model {source.text!r} lacks {len(missing)} weights, {missing[0]} among them."
        )
    return model


def _from_config(path: str, dtype: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path)
        _check_sizes(config, path)
        held = config.dtype if dtype == "checkpoint" else getattr(torch, dtype)
        return AutoModelForCausalLM.from_config(config, dtype=held or torch.float32)
    except InputError:
        raise
    except Exception as error:  # a file from elsewhere breaks libraries in many ways
        if is_out_of_memory(error):
            raise
        raise InputError(f"{path} makes no causal language model: {first_line(error)}") from error


def _check_sizes(config: Any, path: str) -> None:
    """Refuses a config.json without the sizes of its model: transformers would invent them.

    Raises:
        InputError: a size is missing.
    """
    written = json.loads(Path(path).read_text(encoding="utf-8"))
    written |= written.get("text_config") or {}
    names = getattr(config, "attribute_map", {})
    missing = [name for name in SIZES if name not in written and names.get(name) not in written]
    if missing:
        raise InputError(f"{path} states no {', '.join(missing)}.")


def _from_factory(text: str) -> Any:
    """Imports the module, from the current folder too, and calls its factory."""
    module_name, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the factory {text!r} cannot be imported: {first_line(error)}") from None
    try:
        model = factory()
    except Exception as error:  # code of a user may raise anything
        raise InputError(
            f"the factory {text!r} raised {type(error).__name__}: {first_line(error)}"
        ) from error
    if not hasattr(model, "forward") or not hasattr(model, "config"):
        raise InputError(
            f"the factory {text!r} returns {type(model).__name__}; a causal language model of "
            "transformers is needed (with forward and config)."
        )
    return model


def check_causal(model: Any, device: str) -> None:
    """Refuses a model whose earlier logits change with later tokens, or that has none.

    Raises:
        InputError: it is no causal language model.
    """
    import torch

    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(f"{name} is an encoder-decoder; the toolbox takes causal language models.")
    ids = torch.arange(1, 9, device=device)[None] % model.config.vocab_size
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % model.config.vocab_size
    with torch.inference_mode():
        first, second = (getattr(model(input_ids=x), "logits", None) for x in (ids, other))
    if first is None or second is None or first.ndim != 3 or first.shape[1] != ids.shape[1]:
        raise InputError(f"{name} returns no logits for every token; it is no language model.")
    before, after = first[:, :-1].float(), second[:, :-1].float()
    moved = float((before - after).abs().max() / before.abs().max().clamp(min=1e-30))
    if moved > CAUSAL_TOLERANCE[first.dtype == torch.float32]:
        raise InputError(
            f"{name} is not causal: its logits of earlier tokens change with the last one."
        )


CAUSAL_TOLERANCE = {True: 1e-4, False: 2**-8}
"""Relative change that rounding explains in float32, or not: one rounding of bfloat16 (measured: 0
for causal models; 7e-4 and 6e-3 for a BERT with random weights, which attend little)."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether device or host memory did not suffice."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or "OutOfMemory" in type(error).__name__
        or "can't allocate memory" in text
        or "out of memory" in text
    )


def first_line(error: BaseException) -> str:
    """What an error says first, as the end of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:
        text += f" {lines[1]}"
    return text if text.endswith(".") else text + "."
