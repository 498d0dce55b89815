"""What a GPU kernel does, told from its name: CUDA and ROCm libraries, Triton and PyTorch."""

from __future__ import annotations

from functools import lru_cache

COMMUNICATION = "communication"
DATA_MOVEMENT = "data_movement"
OTHER = "other"

# Category -> parts of lower-case kernel names; the first category with a match counts. Sources of
# the names: NCCL and RCCL device functions, DeepEP, PyTorch symmetric memory, vLLM custom
# all-reduce, MSCCL++ (communication); Tensile, hipBLASLt, Composable Kernel, cuBLAS, CUTLASS and
# TensorRT-LLM (GEMM); FlashAttention, AOTriton, AITER, cuDNN and FlashInfer (attention); MIOpen and
# cuDNN (convolution); ATen, Apex and Transformer Engine (the others).
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        COMMUNICATION,
        (
            *("nccl", "rccl", "mscclkernel", "mscclpp", "multimem_", "all_reduce", "allreduce"),
            *("cross_device_reduce", "one_shot_all", "two_shot_all", "all_gather", "allgather"),
            *("reduce_scatter", "reducescatter", "all_to_all", "alltoall", "deep_ep::", "nvshmem"),
            *("internode::", "intranode::", "rocshmem", "epdispatch", "epcombine", "userbuffers"),
        ),
    ),
    (
        "attention",
        (
            *("flash", "fmha", "attn_fwd", "attn_bwd", "attention", "_mha_", "mha_fwd", "mha_bwd"),
            *(
                "sdpa",
                "paged_attn",
                "bwd_kernel_dk_dv",
                "bwd_kernel_dq",
                "mla_decode",
                "mla_prefill",
            ),
        ),
    ),
    (
        "grouped_gemm",
        ("grouped_gemm", "group_gemm", "groupedgemm", "groupgemm", "fused_moe", "moe_gemm", "bmm_"),
    ),
    (
        "convolution",
        (
            "igemm_",
            "conv2d",
            "convolution",
            "winograd",
            "implicit_gemm",
            "implicitgemm",
            "miopensp",
        ),
    ),
    (
        "gemm",
        (
            *("gemm", "cijk_", "nvjet", "cublas", "hipblas", "xmma", "splitk", "gemv", "_matmul"),
            *("matmul_kernel", "cutlass::kernel", "wvsplitk"),
        ),
    ),
    (
        "normalization",
        (
            "batch_norm",
            "layer_norm",
            "layernorm",
            "rms_norm",
            "rmsnorm",
            "group_norm",
            "ln_fwd",
            "ln_bwd",
        ),
    ),
    ("softmax_and_loss", ("softmax", "cross_entropy", "crossentropy", "nll_loss")),
    ("optimizer", ("multi_tensor", "adam", "foreach_", "lamb_", "fusedoptimizer")),
    (
        "moe_routing",
        ("routing", "moe_align", "topk", "permute", "moe::", "moe_sum", "sort", "histogram"),
    ),
    ("quantization", ("quant", "cast_transpose", "scaled_fp8", "amax", "fp8_")),
    (
        "embedding",
        ("embedding", "indexselect", "index_select", "rotary", "rope", "gather", "scatter"),
    ),
    (
        DATA_MOVEMENT,
        ("memcpy", "memset", "copy_kernel", "copybuffer", "fillbuffer", "catarray", "transpose"),
    ),
    ("reduction", ("reduce_kernel", "reduce_", "argmax", "cumsum", "scan_", "pool")),
    (
        "elementwise",
        (
            *("elementwise", "pointwise", "vectorized_", "subtensorop", "fill", "triton_poi"),
            *("triton_red", "triton_per", "dropout", "gelu", "silu", "swiglu", "bias", "op_tensor"),
            *("indexing", "arange", "index_"),
        ),
    ),
)


@lru_cache(maxsize=65536)
def category_of(kernel: str) -> str:
    """The category of a kernel from the first 1000 letters of its name; ``other`` if unknown."""
    name = kernel[:1000].lower()
    for category, parts in _PARTS:
        if any(part in name for part in parts):
            return category
    return OTHER
