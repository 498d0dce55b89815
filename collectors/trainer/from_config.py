"""From a TrainingConfig of a job to the settings of the reference trainer."""

from __future__ import annotations

from collectors.trainer.settings import SCHEDULES, Settings, SettingsError
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeModules,
    Sharding,
    TrainingKind,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.model import Model
from specs.workload import Workload

REFERENCE_TRAINER = "foretune trainer"
"""Name of the trainer as a framework of a Stack, in studies and logs."""


def settings_of(
    config: TrainingConfig,
    workload: Workload,
    num_gpus: int,
    steps: int,
    memory_limit_gib: float = 0.0,
) -> Settings:
    """The run that a config asks for.

    Raises:
        InputError: the reference trainer does not have the model, or an axis value.
    """
    model = workload.model
    _check(config, workload)
    moe = model.is_moe
    fsdp = config.sharding is Sharding.FSDP
    replicas = num_gpus // (config.tp * config.pp)
    sharding = "none" if replicas == 1 else ("fsdp" if fsdp else config.sharding.label)
    recompute = config.recompute
    settings = Settings(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.head_dim,
        vocab_size=model.vocab_size,
        seq_length=workload.seq_len,
        num_experts=model.num_experts if moe else 0,
        moe_router_topk=model.moe_topk if moe else 2,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size if moe else 256,
        tensor_model_parallel_size=config.tp,
        pipeline_model_parallel_size=config.pp,
        virtual_pipeline_model_parallel_size=config.vpp,
        expert_model_parallel_size=config.ep,
        sequence_parallel=config.sequence_parallel,
        pipeline_schedule=config.schedule.label,
        sharding=sharding,
        recompute_granularity=recompute.label,
        recompute_method=config.recompute_method.label
        if recompute is Recompute.FULL
        else "uniform",
        recompute_num_layers=max(config.recompute_layers, 1),
        micro_batch_size=config.mbs,
        global_batch_size=workload.global_batch_size,
        bf16=config.precision is Precision.BF16,
        train_iters=steps,
        memory_limit_gib=memory_limit_gib,
    )
    try:
        settings.check(num_gpus)
    except SettingsError as error:
        raise InputError(f"the reference trainer cannot run this config: {error}.") from None
    return settings


def _check(config: TrainingConfig, workload: Workload) -> None:
    """Raises InputError for the first thing that the reference trainer lacks."""
    model = workload.model
    wanted = [
        (workload.kind is not TrainingKind.PRETRAIN, "another kind than pretraining"),
        (bool(lacking := _lacking(model)), f"a model with {lacking}"),
        (config.cp > 1, "context parallelism"),
        (config.etp not in (0, 1), "expert tensor parallelism"),
        (config.layout != "", "uneven stages"),
        (config.schedule.label not in SCHEDULES, f"schedule {config.schedule.label}"),
        (config.microbatch_group not in (0, config.pp), "microbatch groups"),
        (config.precision not in (Precision.BF16, Precision.FP32), config.precision.label),
        (
            config.sharding not in (Sharding.NONE, Sharding.ZERO1, Sharding.FSDP),
            f"sharding {config.sharding.label}",
        ),
        (config.replicate > 1, "replicas of shards"),
        (config.overlap is not Overlap.NONE, f"overlap {config.overlap.label}"),
        (config.cross_entropy_fusion, "fused cross-entropy"),
        (bool(config.recompute_layer_ids), "recomputation by layer ids"),
        (
            config.recompute is Recompute.SELECTIVE
            and config.recompute_modules is not RecomputeModules.CORE_ATTN,
            f"recomputation of {config.recompute_modules.label}",
        ),
        (model.is_moe and config.moe_dispatcher is not MoeDispatcher.ALLTOALL, "this dispatcher"),
    ]
    for is_wanted, what in wanted:
        if is_wanted:
            raise InputError(f"the reference trainer does not have {what}; narrow this axis.")


def _lacking(model: Model) -> str:
    """What the model has and the reference trainer has not; empty where it has all."""
    features = {
        "latent attention": model.mla is not None,
        "tied embeddings": model.tied_embeddings,
        "an MLP without gate": not model.gated_mlp,
        "shared experts": bool(model.shared_expert_ffn),
        "dense and MoE layers": model.is_moe and bool(model.dense_layers),
        "multi-token prediction": bool(model.mtp_layers),
        "biases": model.qkv_bias or model.linear_bias,
        "learned positions": bool(model.learned_positions),
        "a sliding window": bool(model.sliding_window),
    }
    return next((name for name, has in features.items() if has), "")
