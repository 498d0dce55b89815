"""Models that misbehave in one way each; workers import them as factories."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.studies.toolbox.tiny import tiny_model


def _when_attention_changes(fault: Callable[[], None]) -> Any:
    model = tiny_model(attention="sdpa")
    model.set_attn_implementation = lambda _kind: fault()
    return model


def plain() -> Any:
    return tiny_model(attention="sdpa")


def shallow() -> Any:
    """A GPT-2 of one layer: few kernels, so that compiling takes seconds."""
    from transformers import AutoModelForCausalLM, GPT2Config

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, n_inner=32, n_positions=64, vocab_size=64)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def hangs() -> Any:
    return _when_attention_changes(lambda: time.sleep(3600))


def raises() -> Any:
    def fault() -> None:
        raise RuntimeError("this tool is broken\nwith details")

    return _when_attention_changes(fault)


def runs_out_of_device_memory() -> Any:
    def fault() -> None:
        raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 80 GiB.")

    return _when_attention_changes(fault)


def runs_out_of_host_memory() -> Any:
    return _when_attention_changes(lambda: os.kill(os.getpid(), signal.SIGKILL))


def dies() -> Any:
    return _when_attention_changes(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def does_not_compile() -> Any:
    model = tiny_model(attention="sdpa")

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from torch._dynamo.exc import Unsupported

            raise Unsupported("this model does not compile")
        return type(model).forward(model, *args, **kwargs)

    model.forward = forward
    return model


class Averages(torch.nn.Module):  # type: ignore[misc]
    """Every logit sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=32, hidden_size=8, is_encoder_decoder=False)
        self.table = torch.nn.Embedding(32, 32)

    def forward(self, input_ids: Any) -> Any:
        hidden = self.table(input_ids)
        return SimpleNamespace(logits=hidden + hidden.mean(1, keepdim=True))


def sees_the_future() -> Any:
    return Averages()


def is_no_model() -> Any:
    return 7


def raises_at_once() -> Any:
    raise PermissionError("no licence for these weights")
