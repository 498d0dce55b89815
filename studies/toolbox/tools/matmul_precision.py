"""How exactly float32 products are computed."""

from __future__ import annotations

from studies.toolbox.bundle import Bundle
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool


class MatmulPrecision(Tool):
    """TF32 or bfloat16 arithmetic inside float32 products, where the hardware has it."""

    name = "matmul_precision"
    settings = ("high", "medium")

    def lossless(self, setting: str) -> bool:  # noqa: ARG002
        """Products lose bits by design."""
        return False

    def conflict(self, setting: str, bundle: Bundle, host: Host) -> str:  # noqa: ARG002
        """Only float32 products are concerned."""
        if bundle.get("int8_quantisation") == "dynamic":
            return "matmul_precision concerns float32 products and int8 layers have none"
        cast = bundle.get("dtype_cast")
        held = host.dtype if cast == "off" else cast
        if held != "float32":
            return f"matmul_precision concerns float32 products and the weights are {held}"
        return ""

    def apply(self, runtime: Runtime, setting: str) -> None:  # noqa: ARG002
        """Sets the precision of this process."""
        import torch

        torch.set_float32_matmul_precision(setting)

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """Other bits from one of the model's linear layers."""
        word = "other" if after.matmul_changed else "the same"
        return Proof(after.matmul_changed, f"the linear layers of the model give {word} bits")

    def code(self, setting: str) -> Code:
        """The same switch."""
        return Code((f'torch.set_float32_matmul_precision("{setting}")',))
