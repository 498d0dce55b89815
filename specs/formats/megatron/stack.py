"""Megatron and Primus arguments and the Stack: state dtypes, kernels and allocator settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specs.choices import Precision
from specs.formats.megatron.axes import TURBO_SWITCHES, read_precision
from specs.formats.megatron.values import Values
from specs.stack import Framework, Stack

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def read_stack(
    values: Values, framework: Framework, name: str, environment: Mapping[str, str]
) -> Stack:
    """The stack that the arguments describe.

    Raises:
        InputError: an optimizer or a dtype that is not projected, or a contradiction.
    """
    weight, gradient, optimizer = _state_bytes(values)
    offload = 0.0
    if values.flag("optimizer_cpu_offload"):
        fraction = values.number("optimizer_offload_fraction")
        offload = min(1.0 if fraction is None else fraction, 1.0)
    allocator = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + environment.get(
        "PYTORCH_HIP_ALLOC_CONF", ""
    )
    return Stack(
        framework=framework,
        framework_name=name,
        weight_bytes=weight,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
        flash_attention=_flash_attention(values),
        fused_rope=values.flag("apply_rope_fusion"),
        expandable_segments="expandable_segments:true" in allocator.lower(),
        cuda_graphs=_cuda_graphs(values),
        full_iteration_graphs=_full_iteration_graphs(values),
        gradient_accumulation_fusion=values.flag("gradient_accumulation_fusion"),
        grouped_gemm=values.flag("moe_grouped_gemm") or _turbo(values, "use_turbo_grouped_gemm"),
        turbo=read_turbo(values),
        optimizer_offload_fraction=offload,
        vocab_divisible_by=values.integer("make_vocab_size_divisible_by", 1) or 128,
        untied_tp_mapping=values.flag("use_tp_pp_dp_mapping"),
    )


def read_turbo(values: Values) -> bool:
    """Whether a Primus-Turbo kernel runs: a switch without the master switch is inert."""
    switched = [key for key in TURBO_SWITCHES if values.flag(key)]
    if switched and not values.flag("enable_primus_turbo"):
        values.note(f"{', '.join(switched)} has no effect without enable_primus_turbo.")
        return False
    return any(key != "use_turbo_rms_norm" for key in switched)


def _turbo(values: Values, key: str) -> bool:
    return values.flag("enable_primus_turbo") and values.flag(key)


def _flash_attention(values: Values) -> bool:
    """Whether attention is fused: Transformer Engine picks a fused kernel unless told otherwise."""
    backend = values.text("attention_backend", "auto")
    if backend in ("unfused", "local"):
        return _turbo(values, "use_turbo_attention")
    transformer_engine = values.text("transformer_impl", "transformer_engine") != "local"
    return transformer_engine or values.flag("use_flash_attn")


def _cuda_graphs(values: Values) -> bool:
    implementation = values.text("cuda_graph_impl", "none")
    flags = ("enable_cuda_graph", "external_cuda_graph")
    return implementation != "none" or any(values.flag(key) for key in flags)


def _full_iteration_graphs(values: Values) -> bool:
    """Whether one graph holds the whole step (``--cuda-graph-scope full_iteration``)."""
    words = (values.text("cuda_graph_impl", "none"), values.text("cuda_graph_scope", ""))
    return _cuda_graphs(values) and "full_iteration" in words


def _state_bytes(values: Values) -> tuple[float, float, float]:
    """Bytes a parameter of weights, gradients and optimizer state.

    docs/user-guide/features/dist_optimizer.md: bf16 keeps fp32 gradients, master and moments
    (2 + 4 + 12); fp16 keeps half gradients and an fp32 copy of them (2 + 2 + 16); fp32 needs no
    master (4 + 4 + 8). SGD keeps one moment. The precision-aware optimizer has its own dtypes and
    only the missing 16 bits of the fp32 master of 16-bit weights (store_param_remainders, on by
    default).
    """
    precision = read_precision(values)
    moments = {"adam": 2, "sgd": 1}
    count = values.choice("optimizer", moments, "adam")
    if precision is Precision.FP32:
        return 4.0, 4.0, 4.0 * count
    if precision is Precision.FP16:
        return 2.0, 2.0, 8.0 + 4.0 * count
    gradient = 2.0 if values.flag("grad_reduce_in_bf16") else 4.0
    if not values.flag("use_precision_aware_optimizer"):
        for key in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            if values.text(key, "fp32") != "fp32":
                raise values.fail(f"{key} other than fp32 needs use_precision_aware_optimizer.")
        return 2.0, gradient, 4.0 + 4.0 * count
    gradient = min(gradient, float(values.choice("main_grads_dtype", _BYTES, "fp32")))
    master = float(values.choice("main_params_dtype", _BYTES, "fp32"))
    moment = float(values.choice("exp_avg_dtype", _BYTES, "fp32"))
    moment += float(values.choice("exp_avg_sq_dtype", _BYTES, "fp32"))
    remainders = values.arguments.get("store_param_remainders")
    if master == 4.0 and (remainders is None or values.flag("store_param_remainders")):
        master = 2.0
    return 2.0, gradient, master + moment


def write_stack(stack: Stack, precision: Precision, is_moe: bool) -> dict[str, Any]:
    """Megatron arguments of the stack: dtypes of the states, kernels, padding and rank order."""
    arguments: dict[str, Any] = {
        "use_flash_attn": stack.flash_attention,
        "apply_rope_fusion": stack.fused_rope,
        "gradient_accumulation_fusion": stack.gradient_accumulation_fusion,
        "moe_grouped_gemm": is_moe and stack.grouped_gemm,
        "make_vocab_size_divisible_by": stack.vocab_divisible_by,
        "use_tp_pp_dp_mapping": stack.untied_tp_mapping,
        "grad_reduce_in_bf16": False,
        "use_precision_aware_optimizer": False,
    }
    if precision not in (Precision.FP16, Precision.FP32):
        arguments |= _write_dtypes(stack)
    if stack.optimizer_offload_fraction:
        arguments |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": stack.optimizer_offload_fraction,
            "use_precision_aware_optimizer": True,
        }
    return arguments


def _write_dtypes(stack: Stack) -> dict[str, Any]:
    """Arguments of the state dtypes, from the bytes of gradients and optimizer."""
    half_gradients = stack.gradient_bytes < 4
    if stack.optimizer_bytes >= 12:
        return {"grad_reduce_in_bf16": half_gradients}
    half_moments = stack.optimizer_bytes <= 8
    return {
        "use_precision_aware_optimizer": True,
        "main_grads_dtype": "bf16" if half_gradients else "fp32",
        "exp_avg_dtype": "bf16" if half_moments else "fp32",
        "exp_avg_sq_dtype": "bf16" if half_moments else "fp32",
    }
