"""Operations on many configs at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specs.config import AXES, ConfigTable, TrainingConfig

CONFIGS = st.builds(
    TrainingConfig,
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2)),
    mbs=st.sampled_from((1, 2, 4)),
    layout=st.sampled_from(("", "Et*2|t*2,L")),
)


@given(rows=st.lists(CONFIGS, min_size=1, max_size=6), config=CONFIGS)
def test_axes_changed_counts_every_axis(rows: list[TrainingConfig], config: TrainingConfig) -> None:
    counted = ConfigTable.from_configs(rows).axes_changed(config)
    assert counted.tolist() == [
        sum(getattr(row, axis) != getattr(config, axis) for axis in AXES) for row in rows
    ]
