"""A linear layer with int8 weights and one scale an output channel."""

from __future__ import annotations

from typing import Any

import torch


class Int8Linear(torch.nn.Module):  # type: ignore[misc]
    """Weights rounded to the nearest of 255 levels; activations keep their precision.

    Without a compiler that fuses the conversion into the product the weights are converted in
    memory at every call, which costs more than it saves.
    """

    multiplies_int8 = True

    def __init__(self, linear: Any) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / 127
        rounded = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("weight", rounded)
        self.register_buffer("scale", scale[:, 0].to(weight.dtype))
        bias = None if linear.bias is None else linear.bias.detach()
        self.register_buffer("bias", bias)

    def forward(self, inputs: Any) -> Any:
        """``inputs @ weight.T * scale + bias``."""
        product = torch.nn.functional.linear(inputs, self.weight.to(inputs.dtype)) * self.scale
        return product if self.bias is None else product + self.bias


def to_int8(model: Any) -> None:
    """Replaces every linear layer of a model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(parent, name, Int8Linear(child))
