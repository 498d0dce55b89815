"""Logs of foretune's own reference trainer: Megatron-LM's lines, a few arguments of its own."""

from __future__ import annotations

from typing import Any

from collectors.logs.megatron import MegatronLm
from collectors.logs.run_log import RunLog
from collectors.trainer.from_config import REFERENCE_TRAINER
from specs.choices import Schedule, Sharding
from specs.config import TrainingConfig
from specs.formats.megatron.values import Values
from specs.model import Model
from specs.stack import Framework


class ReferenceTrainer(MegatronLm):
    """``collectors.trainer``: schedules of ``torch.distributed.pipelining``, FSDP2 or ZeRO-1."""

    name = REFERENCE_TRAINER
    framework = Framework.TORCHTITAN

    def recognises(self, run: RunLog) -> bool:
        return run.arguments.get("trainer") == "foretune"

    def version(self, run: RunLog) -> str:
        return f"torch {run.arguments.get('torch_version', '')}".strip()

    def arguments(self, run: RunLog) -> dict[str, Any]:
        given = super().arguments(run)
        if given.get("recompute_granularity") != "full":
            given["recompute_method"] = given["recompute_num_layers"] = None
        if given.get("recompute_granularity") == "none":
            given["recompute_granularity"] = None
        chunks = given.pop("virtual_pipeline_model_parallel_size", None)
        given["num_virtual_stages_per_pipeline_rank"] = chunks if chunks != 1 else None
        given["expert_tensor_parallel_size"] = 1 if given.get("num_experts") else None
        given["moe_token_dispatcher_type"] = "alltoall"
        return given

    def config(self, values: Values, model: Model) -> TrainingConfig:
        config = super().config(values, model)
        sharding = Sharding.parse(str(values.arguments.get("sharding") or "none"))
        schedule = Schedule.parse(str(values.arguments.get("pipeline_schedule") or "1f1b"))
        if config.pp == 1:
            schedule = Schedule.ONE_F_ONE_B
        return config.changed(sharding=sharding, schedule=schedule)
