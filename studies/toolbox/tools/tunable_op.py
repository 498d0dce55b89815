"""GEMM libraries and GEMM tuning on ROCm."""

from __future__ import annotations

from studies.toolbox.bundle import Bundle
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.workload import Generation

_TUNABLE = {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "1"}
_HIPBLASLT = {"TORCH_BLAS_PREFER_HIPBLASLT": "1"}


class TunableOp(Tool):
    """``tune`` times every GEMM kernel per shape while warming up; ``hipblaslt`` prefers a library.

    Both are environment variables, so they need a process of their own.
    """

    name = "tunable_op"
    settings = ("tune", "hipblaslt")
    prepares = True

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:  # noqa: ARG002
        """ROCm only."""
        return "" if host.rocm else f"tunable_op={setting} concerns ROCm and this torch has none"

    def conflict(self, setting: str, bundle: Bundle, host: Host) -> str:  # noqa: ARG002
        """Every length of a growing cache would be tuned anew."""
        if setting == "tune" and bundle.get("kv_cache_config") != "static":
            return "tunable_op=tune tunes every new shape, so it needs a static cache"
        return ""

    def environment(self, setting: str) -> dict[str, str]:
        """The variables, set before torch is imported."""
        return dict(_TUNABLE if setting == "tune" else _HIPBLASLT)

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Nothing is left to do: the environment did it."""

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:
        """GEMMs with a tuned solution, or another preferred library."""
        if setting == "tune":
            return Proof(after.tuned_gemms > 0, f"{after.tuned_gemms} GEMMs have a tuned solution")
        return Proof(
            after.preferred_blas != before.preferred_blas,
            f"preferred GEMM library: {after.preferred_blas}",
        )

    def code(self, setting: str) -> Code:
        """Environment variables."""
        return Code(environment=self.environment(setting))
