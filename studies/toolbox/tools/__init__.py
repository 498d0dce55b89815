"""The toolbox: one file a tool, in the order in which a bundle's tools are applied."""

from __future__ import annotations

from studies.toolbox.tools.base import Code, Proof, Tool
from studies.toolbox.tools.dtype_cast import DtypeCast
from studies.toolbox.tools.input_padding import InputPadding
from studies.toolbox.tools.int8_quantisation import Int8Quantisation
from studies.toolbox.tools.kv_cache_config import KvCacheConfig
from studies.toolbox.tools.matmul_precision import MatmulPrecision
from studies.toolbox.tools.sdpa_attention import SdpaAttention
from studies.toolbox.tools.torch_compile import TorchCompile
from studies.toolbox.tools.tunable_op import TunableOp

TOOLBOX: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        TunableOp(),
        DtypeCast(),
        Int8Quantisation(),
        SdpaAttention(),
        KvCacheConfig(),
        InputPadding(),
        MatmulPrecision(),
        TorchCompile(),
    )
}

__all__ = ["TOOLBOX", "Code", "Proof", "Tool"]
