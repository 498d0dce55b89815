"""The attention implementation and the kernel family behind scaled dot product attention."""

from __future__ import annotations

from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.workload import Generation

_BACKENDS = {"flash": "flash", "efficient": "mem_efficient", "math": "math"}


class SdpaAttention(Tool):
    """``sdpa`` lets torch choose a kernel, a backend pins one, ``eager`` spells attention out."""

    name = "sdpa_attention"
    settings = ("sdpa", "eager", *_BACKENDS)

    def has_twin(self, setting: str, host: Host) -> bool:
        """Flash kernels of GPUs take 16-bit inputs only."""
        return not (setting == "flash" and host.device == "cuda")

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:
        """The memory-efficient kernel is for GPUs; flash on GPUs takes no mask."""
        on_gpu = host.device == "cuda"
        if setting == "efficient" and not on_gpu:
            return "the memory-efficient kernel exists on GPUs only"
        if setting == "flash" and on_gpu and work.ragged:
            return "flash attention on GPUs takes no mask and the prompts are ragged"
        return ""

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Sets the implementation and disables the other kernels."""
        import torch

        runtime.model.set_attn_implementation("eager" if setting == "eager" else "sdpa")
        if setting in _BACKENDS:
            for name in _BACKENDS.values():
                enable = getattr(torch.backends.cuda, f"enable_{name}_sdp")
                enable(name == _BACKENDS[setting])

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """Other attention operators in the trace."""
        shown = ", ".join(name.removeprefix("aten::") for name in after.attention_ops) or "none"
        return Proof(
            after.attention_ops != before.attention_ops,
            f"attention operators in the trace: {shown}",
        )

    def code(self, setting: str) -> Code:
        """The same switches."""
        kind = "eager" if setting == "eager" else "sdpa"
        lines = [f'model.set_attn_implementation("{kind}")']
        if setting in _BACKENDS:
            lines += [
                f"torch.backends.cuda.enable_{name}_sdp({name == _BACKENDS[setting]})"
                for name in _BACKENDS.values()
            ]
        return Code(tuple(lines))
