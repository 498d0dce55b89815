"""Random configs for the export tests."""

from __future__ import annotations

from hypothesis import strategies as st

from specs import catalog
from specs.choices import (
    CpComm,
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.legality import why_illegal
from specs.model import Model
from specs.stack import Stack
from specs.workload import Workload

MODELS = ("mixtral-8x22b", "llama3.1-70b", "deepseek-v3", "qwen3-30b-a3b")
GPUS = 256
_LAYOUTS = {
    "llama3.1-70b": ("Et*20|t*20|t*20|t*20,L", "Et*10|(t*10|)*6t*10,L", "first=17,last=21"),
    "mixtral-8x22b": ("Et*14|t*14|t*14|t*14,L", "first=12,last=12", "last=14"),
    "deepseek-v3": ("Et*16|t*15|t*15|t*15,m,L", "Et*1|t*20|t*20|t*20,L", "account=embedding"),
    "qwen3-30b-a3b": ("account=embedding+loss", "account=loss", "first=12"),
}


def cluster() -> Cluster:
    """GPUs that run most precisions."""
    return Cluster(
        name="",
        gpu=catalog.gpu("MI355X"),
        num_nodes=GPUS // 8,
        gpus_per_node=8,
        price_usd_per_gpu_hour=None,
    )


def workload(model: Model) -> Workload:
    """A batch that most meshes divide."""
    return Workload(model=model, seq_len=8192, global_batch_size=4096)


@st.composite
def configs(draw: st.DrawFn, model: Model) -> TrainingConfig:
    """Any config of the model; many are illegal."""

    def size(*values: int) -> int:
        return draw(st.sampled_from(values))

    tp, pp = size(1, 2, 4, 8), size(1, 2, 4, 8)
    schedule = draw(st.sampled_from([s for s in Schedule if s is not Schedule.GPIPE]))
    vpp = 2 if schedule.is_v_shaped or schedule is Schedule.INTERLEAVED else 1
    layout = draw(st.sampled_from(("", "", *_LAYOUTS[model.name])))
    recompute = draw(st.sampled_from(Recompute))
    config = TrainingConfig(
        tp=tp,
        pp=pp,
        vpp=vpp,
        layout=layout,
        cp=size(1, 2),
        cp_comm=draw(st.sampled_from(CpComm)),
        ep=size(1, 2, 8) if model.is_moe else 1,
        etp=draw(st.sampled_from((1, tp))) if model.is_moe else 1,
        mbs=size(1, 2, 4),
        schedule=schedule,
        microbatch_group=draw(st.sampled_from((0, pp, 2 * pp))),
        sequence_parallel=tp > 1,
        recompute=recompute,
        precision=draw(st.sampled_from(Precision)),
        sharding=draw(st.sampled_from(Sharding)),
        replicate=size(1, 1, 2),
        cross_entropy_fusion=draw(st.booleans()),
        overlap=draw(st.sampled_from([Overlap(code) for code in range(8)])),
    )
    if recompute is Recompute.SELECTIVE:
        modules = draw(st.sets(st.sampled_from(list(RecomputeModules)), min_size=1))
        config = config.changed(recompute_modules=RecomputeModules(sum(modules)))
    elif recompute is Recompute.FULL and draw(st.booleans()):
        ids = draw(st.sets(st.integers(0, model.num_layers - 1), min_size=1, max_size=6))
        config = config.changed(recompute_layer_ids=tuple(sorted(ids)))
    elif recompute is Recompute.FULL:
        method = draw(st.sampled_from((RecomputeMethod.BLOCK, RecomputeMethod.UNIFORM)))
        config = config.changed(recompute_method=method, recompute_layers=size(1, 3, 14))
    if model.is_moe:
        config = config.changed(
            moe_dispatcher=draw(st.sampled_from(MoeDispatcher)), sync_free_stage=size(0, 1, 2, 3)
        )
    return config


def is_legal(config: TrainingConfig, model: Model, stack: Stack) -> bool:
    """Whether the config is legal on the test cluster."""
    return not why_illegal(config, workload(model), cluster(), stack)


_GROUPS = (
    ("tp", "sequence_parallel"),
    ("pp",),
    ("layout", "pp"),
    ("schedule", "vpp"),
    ("microbatch_group",),
    ("cp", "cp_comm"),
    ("ep",),
    ("etp",),
    ("mbs",),
    ("precision",),
    (
        "recompute",
        "recompute_method",
        "recompute_layers",
        "recompute_modules",
        "recompute_layer_ids",
    ),
    ("moe_dispatcher", "sync_free_stage"),
    ("sharding", "replicate"),
    ("cross_entropy_fusion",),
    ("overlap",),
)


@st.composite
def legal_configs(draw: st.DrawFn, model: Model, stack: Stack) -> TrainingConfig:
    """A legal config: axes of a random config are taken over one by one where that is legal."""
    wanted = draw(configs(model))
    config = TrainingConfig()
    for group in draw(st.permutations(_GROUPS)):
        changed = config.changed(**{name: getattr(wanted, name) for name in group})
        if is_legal(changed, model, stack):
            config = changed
    return config
