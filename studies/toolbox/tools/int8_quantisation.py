"""Linear layers with int8 weights."""

from __future__ import annotations

from studies.toolbox.bundle import Bundle
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.workload import Generation


class Int8Quantisation(Tool):
    """``weight-only`` keeps activations; ``dynamic`` quantises them too, on CPUs.

    Weight-only pays where a compiler fuses the conversion; in eager mode it is slower.
    """

    name = "int8_quantisation"
    settings = ("weight-only", "dynamic")

    def lossless(self, setting: str) -> bool:  # noqa: ARG002
        """Weights are rounded to 255 levels."""
        return False

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:  # noqa: ARG002
        """Dynamic int8 layers exist on CPUs only, in float32."""
        if setting == "dynamic" and host.device != "cpu":
            return "torch's dynamic int8 layers run on CPUs only"
        return ""

    def conflict(self, setting: str, bundle: Bundle, host: Host) -> str:
        """Dynamic layers take and give float32."""
        dtype = bundle.get("dtype_cast")
        held = host.dtype if dtype == "off" else dtype
        if setting == "dynamic" and held != "float32":
            return f"torch's dynamic int8 layers take float32 activations, not {held}"
        return ""

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Replaces the linear layers."""
        if setting == "weight-only":
            from studies.toolbox.int8_linear import to_int8

            to_int8(runtime.model)
        else:
            import torch

            torch.ao.quantization.quantize_dynamic(
                runtime.model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True
            )

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """More layers multiply by int8 weights."""
        return Proof(
            after.int8_layers > before.int8_layers,
            f"{after.int8_layers} linear layers multiply by int8 weights",
        )

    def code(self, setting: str) -> Code:
        """The same replacement."""
        if setting == "weight-only":
            return Code(("to_int8(model)",), files=("int8_linear.py",))
        return Code(
            (
                "torch.ao.quantization.quantize_dynamic(",
                "    model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True",
                ")",
            )
        )
