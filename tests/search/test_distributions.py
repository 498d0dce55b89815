"""All studies share one frozen superset of distributions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search.distributions import config_key, distributions, layout_kind, parameters
from specs.choices import Choice, Overlap, RecomputeModules
from specs.config import AXES, TrainingConfig


def _values(name: str) -> st.SearchStrategy[object]:
    axis = AXES[name]
    if name == "layout":
        return st.sampled_from(["", "first=3", "last=2", "account=loss", "Et*2|t*2,L"])
    if name == "recompute_layer_ids":
        return st.sampled_from([(), (0, 3), (1,)])
    if name == "recompute_modules":
        return st.integers(0, 127).map(RecomputeModules)
    if name == "overlap":
        return st.integers(0, 7).map(Overlap)
    if axis.kind is bool:
        return st.booleans()
    if name == "sync_free_stage":
        return st.integers(0, 3)
    if axis.kind is int:
        return st.integers(1, 2**16)
    assert issubclass(axis.kind, Choice)
    return st.sampled_from(list(axis.kind))


CONFIGS = st.fixed_dictionaries({name: _values(name) for name in AXES}).map(
    lambda values: TrainingConfig(**values)
)


@given(CONFIGS)
def test_every_config_has_a_value_in_every_distribution(config: TrainingConfig) -> None:
    values = parameters(config)
    assert set(values) == set(distributions())
    for name, distribution in distributions().items():
        assert distribution._contains(distribution.to_internal_repr(values[name]))


@given(CONFIGS)
def test_labels_carry_the_exact_config(config: TrainingConfig) -> None:
    again = TrainingConfig.from_labels(config.as_labels())
    assert again == config
    assert config_key(again) == config_key(config)


@given(CONFIGS, CONFIGS)
def test_keys_differ_where_configs_differ(one: TrainingConfig, other: TrainingConfig) -> None:
    assert (config_key(one) == config_key(other)) == (one == other)


def test_the_superset_is_frozen() -> None:
    """Stored studies rely on these; a new choice is appended, nothing is renamed or narrowed."""
    space = distributions()
    assert list(space) == [
        "tp", "pp", "vpp", "layout_kind", "cp", "cp_comm", "ep", "etp", "mbs", "schedule",
        "microbatch_group", "sequence_parallel", "recompute", "recompute_method",
        "recompute_layers", "recompute_core_attn", "recompute_moe_act", "recompute_layernorm",
        "recompute_mla_up_proj", "recompute_mlp", "recompute_moe", "recompute_shared_experts",
        "recompute_listed_layers", "moe_dispatcher", "sync_free_stage", "precision", "sharding",
        "replicate", "cross_entropy_fusion", "overlap_dp", "overlap_tp", "overlap_ep",
    ]  # fmt: skip


def test_layout_kinds() -> None:
    kinds = {"": "even", "first=1,last=2": "ends", "account=loss": "account", "Et|tL": "explicit"}
    assert {text: layout_kind(text) for text in kinds} == kinds
