"""Primus experiments that run torchtitan: settings in sections, model by name and flavor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.experiment import Experiment, min_gpus
from specs.formats.megatron.values import Values
from specs.formats.primus.presets import Presets, shipped_defaults
from specs.formats.yaml_files import as_mapping, deep_merge
from specs.model import Model
from specs.stack import Framework, Stack
from specs.workload import Workload

_SCHEDULES = {
    "1F1B": Schedule.ONE_F_ONE_B,
    "GPipe": Schedule.GPIPE,
    "Interleaved1F1B": Schedule.INTERLEAVED,
    "ZBVZeroBubble": Schedule.ZBV,
}
# FSDP2 keeps fp32 weights as the only master copy and gathers them in 16 bits: 16 bytes a parameter
# with fp32 gradients and moments, written as 2 gathered + 4 + 10.
_FSDP_OPTIMIZER_BYTES = 10.0
_LINEAR_LAYERS = ("attention.w", "feed_forward.w")


def read_torchtitan(
    overrides: Mapping[str, Any], presets: Presets, preset: str, where: str, name: str
) -> Experiment:
    """The job of a module that runs torchtitan.

    Raises:
        InputError: a setting is malformed, or not projected.
    """
    if presets.model is None:
        raise InputError(
            f"{where}: torchtitan experiments need the Primus checkout with the model preset "
            f"{preset!r}; name it with PRIMUS_PATH."
        )
    settings = deep_merge(deep_merge(presets.module, presets.model), overrides)
    notes: list[str] = []

    def section(key: str) -> Values:
        values = Values(as_mapping(settings.get(key), f"{where}: {key}"), f"{where}: {key}")
        values.notes = notes
        return values

    training = section("training")
    model = _model(section("model"))
    config = _parallel(section("parallelism"), model, training.required("local_batch_size"))
    config = config.changed(
        precision=_precision(section("model"), settings, where),
        **_recompute(section("activation_checkpoint"), model),
    )
    data_parallel = min_gpus(config, model.is_moe) // (config.tp * config.pp * config.cp)
    batch = _global_batch(training, notes)
    workload = Workload(
        model=model,
        seq_len=training.required("seq_len"),
        global_batch_size=batch or config.mbs * data_parallel,
    )
    return Experiment(
        name=name,
        workload=workload,
        stack=_stack(section("primus_turbo"), training, section("compile")),
        baseline=config,
        notes=tuple(notes),
        sequences_per_data_parallel=0 if batch else config.mbs,
    )


def _model(values: Values) -> Model:
    """The catalog model of a name and flavor, with another number of layers where given."""
    family, flavor = values.text("name"), values.text("flavor")
    flavors = shipped_defaults()["torchtitan"].get(family)
    if flavors is None or flavor not in flavors:
        raise values.fail(f"torchtitan model {family!r} flavor {flavor!r} is not supported.")
    model = catalog.model(flavors[flavor])
    if model.mtp_layers:
        values.note(f"torchtitan trains {model.name} without its MTP layers.")
        model = model.model_copy(update={"mtp_layers": 0})
    layers = values.integer("n_layers", 1)
    if layers is not None and layers != model.num_layers:
        values.note(f"n_layers {layers} replaces the {model.num_layers} layers of {model.name}.")
        if model.moe_layers is not None or model.dense_layers > layers:
            raise values.fail(f"n_layers does not go with the layer pattern of {model.name}.")
        name = f"{model.name}-{layers}-layers"
        window = min(model.window_layers, layers)
        update = {"num_layers": layers, "name": name, "window_layers": window}
        model = model.model_copy(update=update)
    return model


def _parallel(values: Values, model: Model, micro_batch: int) -> TrainingConfig:
    """Sizes of the parallel groups, sharding and pipeline schedule."""
    tp = values.integer("tensor_parallel_degree", 1) or 1
    cp = values.integer("context_parallel_degree", 1) or 1
    pp = values.integer("pipeline_parallel_degree", 1) or 1
    ep = values.integer("expert_parallel_degree", 1) or 1
    etp = values.integer("expert_tensor_parallel_degree", 1) or 1
    if ep > 1 and not model.is_moe:
        raise values.fail(f"expert_parallel_degree is {ep}, but {model.name} has no experts.")
    replicate = values.integer("data_parallel_replicate_degree", 1) or 1
    shard = values.integer("data_parallel_shard_degree", -1)
    if shard == 0:
        raise values.fail("data_parallel_shard_degree is 0; use -1 or the number of shards.")
    axes = _pipeline(values, model, pp, micro_batch)
    sharding, overlap = Sharding.FSDP, Overlap.DP
    if shard == 1:
        sharding, replicate = Sharding.NONE, 1
    elif replicate > 1:
        sharding = Sharding.HSDP
    sequence_parallel = tp > 1 and values.arguments.get("enable_sequence_parallel") is not False
    return TrainingConfig(
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp if model.is_moe else 1,
        sequence_parallel=sequence_parallel,
        sharding=sharding,
        replicate=replicate,
        overlap=overlap,
        moe_dispatcher=MoeDispatcher.ALLTOALL,
        **axes,
    )


def _pipeline(values: Values, model: Model, pp: int, micro_batch: int) -> dict[str, Any]:
    """Schedule, chunks and micro-batch: the whole local batch without a pipeline."""
    if pp == 1:
        return {"mbs": micro_batch}
    schedule = values.choice("pipeline_parallel_schedule", _SCHEDULES, "1F1B")
    if values.given("module_fqns_per_model_part") or values.text("pipeline_parallel_schedule_csv"):
        raise values.fail("hand-made pipeline stages and schedules are not projected.")
    per_stage = values.integer("pipeline_parallel_layers_per_stage", 1)
    vpp = 1 if schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE) else 2
    if per_stage is not None:
        vpp = max(-(-(model.num_layers + 2) // (per_stage * pp)), 1)
    layers = model.num_layers
    less = values.integer("pipeline_parallel_first_stage_less_layers")
    if less or values.integer("pipeline_parallel_last_stage_less_layers"):
        values.note("the first and the last pipeline stage hold fewer layers than stated evenly.")
    layout = "account=embedding+loss" if (layers + 2) % (pp * vpp) == 0 else ""
    micro = values.integer("pipeline_parallel_microbatch_size", 1) or 1
    return {"pp": pp, "vpp": vpp, "layout": layout, "schedule": schedule, "mbs": micro}


def _precision(model: Values, settings: Mapping[str, Any], where: str) -> Precision:
    """Number format of the linear layers, by the model's converters."""
    converters = model.words("converters") or []
    quantize = as_mapping(settings.get("quantize"), f"{where}: quantize")
    linear = as_mapping(quantize.get("linear"), f"{where}: quantize.linear")
    if "quantize.linear.mx" in converters or "mx" in converters:
        return Precision.MXFP8
    if "quantize.linear.float8" not in converters and "float8" not in converters:
        return Precision.BF16
    float8 = Values(
        as_mapping(linear.get("float8"), f"{where}: quantize.linear.float8"),
        f"{where}: quantize.linear.float8",
    )
    recipes = {
        "tensorwise": Precision.FP8_CS,
        "rowwise": Precision.FP8_SC,
        "rowwise_with_gw_hp": Precision.FP8_SC,
    }
    precision: Precision = float8.choice("recipe_name", recipes, "tensorwise")
    return precision


def _recompute(values: Values, model: Model) -> dict[str, Any]:
    """Activation checkpointing (torchtitan/distributed/activation_checkpoint.py)."""
    mode = values.text("mode", "none")
    if mode == "none":
        return {}
    full = {
        "recompute": Recompute.FULL,
        "recompute_method": RecomputeMethod.UNIFORM,
        "recompute_layers": 1,
    }
    if mode == "full":
        return full
    if mode != "selective":
        raise values.fail(f"mode is {mode!r}; use none, selective or full.")
    option = values.text("selective_ac_option", "2")
    if option.isdigit() and 0 < int(option) <= model.num_layers:
        every = int(option)
        ids = tuple(range(every - 1, model.num_layers, every))
        return {"recompute": Recompute.FULL, "recompute_layer_ids": ids}
    if option != "op":
        raise values.fail(f"selective_ac_option is {option!r}; use 'op' or a number of layers.")
    forced = values.words("per_op_sac_force_recompute_mm_shapes_by_fqns") or []
    if all(any(name.startswith(part) for name in forced) for part in _LINEAR_LAYERS):
        values.note(
            "selective checkpointing that recomputes every linear layer is projected as full."
        )
        return full
    values.note(
        "selective checkpointing by operator is projected as recomputation of norms and expert "
        "activations: it also recomputes every second matrix product, which saves more."
    )
    modules = RecomputeModules.LAYERNORM
    if model.is_moe:
        modules |= RecomputeModules.MOE_ACT
    return {"recompute": Recompute.SELECTIVE, "recompute_modules": modules}


def _global_batch(training: Values, notes: list[str]) -> int:
    """Sequences of a step, 0 where each data-parallel rank has one local batch."""
    batch = training.integer("global_batch_size", -1)
    if batch is None or batch < 0:
        notes.append(
            "global_batch_size is -1: a step has one local batch of each data-parallel rank."
        )
        return 0
    if batch == 0:
        raise training.fail("global_batch_size is 0; use -1 or a number of sequences.")
    return batch


def _stack(turbo: Values, training: Values, compiling: Values) -> Stack:
    """torchtitan on Primus: FSDP2 with fp32 masters, compiled and with Turbo kernels where on."""
    parts = compiling.arguments.get("components") if compiling.flag("enable") else ()
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise compiling.fail("components is no list; use [model, loss], [model] or [].")
    kernels = ("use_turbo_attention", "use_turbo_grouped_mm", "use_turbo_float8_linear")
    on = turbo.flag("enable_primus_turbo") and any(turbo.flag(kernel) for kernel in kernels)
    reduce = training.choice("mixed_precision_reduce", {"float32": 4.0, "bfloat16": 2.0}, "float32")
    training.choice("mixed_precision_param", {"bfloat16": 2.0}, "bfloat16")
    return Stack(
        framework=Framework.TORCHTITAN,
        framework_name="Primus torchtitan",
        gradient_bytes=reduce,
        optimizer_bytes=_FSDP_OPTIMIZER_BYTES,
        compiled="model" in parts,
        compiled_loss="loss" in parts,
        gradient_accumulation_fusion=False,
        turbo=on,
        optimizer_offload_fraction=1.0 if training.flag("enable_cpu_offload") else 0.0,
        vocab_divisible_by=1,
    )
