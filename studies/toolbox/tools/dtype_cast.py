"""Weights in another floating-point format."""

from __future__ import annotations

from studies.toolbox.models import cast_parameters
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.workload import Generation


class DtypeCast(Tool):
    """Casts every parameter; buffers such as rotary frequencies keep their precision."""

    name = "dtype_cast"
    settings = ("bfloat16", "float16", "float32")

    def has_twin(self, setting: str, host: Host) -> bool:  # noqa: ARG002
        """A cast has no float32 twin."""
        return False

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:  # noqa: ARG002
        """Refused where the weights have this format already."""
        return f"the weights are {setting} already" if host.dtype == setting else ""

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Casts the parameters."""
        cast_parameters(runtime.model, setting)

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:
        """More bytes of this format than before."""
        held, had = after.parameter_bytes.get(setting, 0), before.parameter_bytes.get(setting, 0)
        return Proof(held > had, f"{held / 1e6:,.1f} MB of weights are {setting}")

    def code(self, setting: str) -> Code:
        """The cast."""
        return Code(
            (
                "for parameter in model.parameters():",
                "    if parameter.is_floating_point():",
                f"        parameter.data = parameter.data.to(torch.{setting})",
            )
        )
