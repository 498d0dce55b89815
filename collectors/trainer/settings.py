"""What a run trains and how: Megatron-LM's argument names, as far as the reference trainer has
them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv")
SHARDINGS = ("none", "zero1", "fsdp")
RECOMPUTE = ("none", "selective", "full")


class SettingsError(ValueError):
    """The settings contradict themselves or ask for what the trainer does not have."""


def _option(default: Any, meaning: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"meaning": meaning, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. Sizes are those of the whole model; batches are counted in sequences."""

    num_layers: int = _option(4, "transformer layers")
    hidden_size: int = _option(256, "width of the residual stream")
    ffn_hidden_size: int = _option(704, "width of the gated MLP")
    num_attention_heads: int = _option(4, "query heads")
    num_query_groups: int = _option(2, "key and value heads")
    kv_channels: int = _option(64, "width of a head")
    vocab_size: int = _option(1024, "tokens of the vocabulary")
    seq_length: int = _option(128, "tokens of a sequence")
    num_experts: int = _option(0, "experts of a layer; 0: dense")
    moe_router_topk: int = _option(2, "experts a token")
    moe_ffn_hidden_size: int = _option(256, "width of an expert")
    tensor_model_parallel_size: int = _option(1, "TP")
    pipeline_model_parallel_size: int = _option(1, "PP")
    virtual_pipeline_model_parallel_size: int = _option(1, "model chunks of a pipeline rank")
    expert_model_parallel_size: int = _option(1, "EP")
    sequence_parallel: bool = _option(False, "split the sequence between TP regions")
    pipeline_schedule: str = _option("1f1b", "pipeline schedule", SCHEDULES)
    sharding: str = _option("none", "what data parallelism shards", SHARDINGS)
    recompute_granularity: str = _option("none", "recomputation", RECOMPUTE)
    recompute_method: str = _option("uniform", "which layers", ("uniform", "block"))
    recompute_num_layers: int = _option(1, "layers a unit, or of a chunk")
    micro_batch_size: int = _option(1, "sequences of a micro-batch")
    global_batch_size: int = _option(8, "sequences of a step")
    bf16: bool = _option(False, "compute in bf16; fp32 without it")
    lr: float = _option(1e-4, "learning rate of AdamW")
    weight_decay: float = _option(0.1, "of matrices; norms have none")
    train_iters: int = _option(8, "steps")
    seed: int = _option(1234, "of weights and data")
    memory_limit_gib: float = _option(0.0, "memory that a rank may hold; 0: what there is")
    skip_memory_step: bool = _option(False, "leave out the step in which tensors are counted")

    @property
    def head_outputs(self) -> int:
        """Width of all query heads."""
        return self.num_attention_heads * self.kv_channels

    @property
    def chunks(self) -> int:
        """Stages of the whole pipeline."""
        return self.pipeline_model_parallel_size * self.virtual_pipeline_model_parallel_size

    def data_parallel_size(self, world_size: int) -> int:
        """Replicas of the model."""
        return world_size // (self.tensor_model_parallel_size * self.pipeline_model_parallel_size)

    def micro_batches(self, world_size: int) -> int:
        """Micro-batches of a step on each rank."""
        return self.global_batch_size // (
            self.micro_batch_size * self.data_parallel_size(world_size)
        )

    def check(self, world_size: int) -> None:
        """Raises SettingsError where the run is not possible with so many ranks."""
        tp, pp = self.tensor_model_parallel_size, self.pipeline_model_parallel_size
        vpp, ep = self.virtual_pipeline_model_parallel_size, self.expert_model_parallel_size
        if world_size % (tp * pp):
            raise SettingsError(f"{world_size} ranks are no multiple of tp*pp = {tp}*{pp}")
        dp = self.data_parallel_size(world_size)
        two_chunks = self.pipeline_schedule in ("interleaved", "zbv")
        wrong = [
            (self.global_batch_size % (self.micro_batch_size * dp), "gbs % (mbs*dp) must be 0"),
            (self.num_layers % self.chunks, "layers must divide by pp*vpp"),
            (
                self.num_attention_heads % tp or self.num_query_groups % tp,
                "heads must divide by tp",
            ),
            (self.vocab_size % tp, "the vocabulary must divide by tp"),
            (self.seq_length % tp if self.sequence_parallel else 0, "seq must divide by tp"),
            (ep > 1 and not self.num_experts, "a dense model has no ep"),
            (self.num_experts % ep, "experts must divide by ep"),
            ((dp * tp) % ep, "dp*tp must divide by ep"),
            (bool(self.num_experts) and tp > 1 and not self.sequence_parallel, "MoE needs sp"),
            (vpp > 1 and not two_chunks, f"{self.pipeline_schedule} has one chunk a rank"),
            (self.pipeline_schedule == "zbv" and pp > 1 and vpp != 2, "zbv has two chunks a rank"),
            (self.sharding == "fsdp" and pp * tp > 1, "fsdp here shards plain data parallelism"),
        ]
        for fault, sentence in wrong:
            if fault:
                raise SettingsError(sentence)


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; flags are Megatron-LM's (``--micro-batch-size 2``)."""
    parser = argparse.ArgumentParser(
        prog="collectors.trainer", description="One rank of a training run; start with torchrun."
    )
    defaults = Settings()
    for item in fields(Settings):
        flag, default = "--" + item.name.replace("_", "-"), getattr(defaults, item.name)
        meaning, choices = item.metadata["meaning"], item.metadata["choices"] or None
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=meaning)
        else:
            parser.add_argument(
                flag, type=type(default), default=default, choices=choices, help=meaning
            )
    return Settings(**vars(parser.parse_args(arguments)))


def flags(settings: Settings) -> list[str]:
    """The command line that ``parse`` reads back as ``settings``."""
    line: list[str] = []
    for item in fields(Settings):
        value = getattr(settings, item.name)
        flag = "--" + item.name.replace("_", "-")
        if isinstance(value, bool):
            line += [flag] if value else []
        else:
            line += [flag, str(value)]
    return line
