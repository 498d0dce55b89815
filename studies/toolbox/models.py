"""Where a model comes from: a Hugging Face folder or name, a config.json, or ``module:factory``.

A factory is the only code of a user that is ever imported, and only where ``module:factory`` was
asked for; ``trust_remote_code`` stays off.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specs.errors import InputError
from specs.formats.yaml_files import path_exists

Kind = Literal["folder", "name", "config", "factory"]
DTYPES = ("checkpoint", "float32", "bfloat16", "float16")
WEIGHTS = ("*.safetensors", "*.bin")
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
        return AutoModelForCausalLM.from_pretrained(source.text, dtype=wanted)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"the model {source.text!r} cannot be loaded: {first_line(error)}"
        ) from None


def _from_config(path: str, dtype: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path)
        held = config.dtype if dtype == "checkpoint" else getattr(torch, dtype)
        return AutoModelForCausalLM.from_config(config, dtype=held or torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} makes no causal language model: {first_line(error)}") from None


def _from_factory(text: str) -> Any:
    """Imports the module, from the current folder too, and calls its factory."""
    module_name, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the factory {text!r} cannot be imported: {first_line(error)}") from None
    model = factory()
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
    if moved > CAUSAL_TOLERANCE:
        raise InputError(
            f"{name} is not causal: its logits of earlier tokens change with the last one."
        )


CAUSAL_TOLERANCE = 1e-2
"""Relative change that rounding in 16 bits explains (assumed; leaks move logits by their size)."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, as the end of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith(".") else text + "."
