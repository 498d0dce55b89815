"""The forward pass compiled by torch.compile."""

from __future__ import annotations

from typing import Any

from studies.toolbox.bundle import Bundle
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.workload import Generation

_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes that capture CUDA graphs: every new shape is captured again."""


class TorchCompile(Tool):
    """Compiles ``model.forward`` itself: a compiled wrapper's ``generate`` runs the eager module.

    ``fixed-shapes`` is the default mode with ``dynamic=False``.
    """

    name = "torch_compile"
    settings = ("default", "fixed-shapes", *_GRAPHS)
    prepares = True

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:  # noqa: ARG002
        """Needs a compiler; graph modes need a GPU."""
        if not host.compiler:
            return "torch.compile needs a C++ compiler (g++ or clang++) and there is none"
        if setting in _GRAPHS and host.device != "cuda":
            return f"the mode {setting} captures graphs of a GPU"
        return ""

    def conflict(self, setting: str, bundle: Bundle, host: Host) -> str:  # noqa: ARG002
        """Fixed shapes need a cache whose shape is fixed; dynamic int8 layers are not traced."""
        if setting != "default" and bundle.get("kv_cache_config") != "static":
            return f"torch_compile={setting} compiles every length anew without a static cache"
        if bundle.get("int8_quantisation") == "dynamic":
            return "torch.compile does not trace torch.ao's dynamic int8 layers"
        return ""

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Notes the options; the worker compiles after all other tools are applied."""
        runtime.compile_options = _options(setting)

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """Graphs were compiled, and none after warm-up."""
        if after.late_graphs:
            return Proof(False, f"{after.late_graphs} graphs were compiled anew after warm-up")
        return Proof(after.graphs > 0, f"{after.graphs} graphs compiled, none after warm-up")

    def code(self, setting: str) -> Code:
        """The same call."""
        arguments = "".join(f", {name}={value!r}" for name, value in _options(setting).items())
        return Code((f"model.forward = torch.compile(model.forward{arguments})",))


def _options(setting: str) -> dict[str, Any]:
    if setting == "fixed-shapes":
        return {"dynamic": False}
    return {} if setting == "default" else {"mode": setting}
