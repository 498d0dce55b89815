"""The speed benchmark reports what it promises; how fast it is depends on the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from studies import speed
from studies.speed import MODELS, benchmark_table
from tests.studies.conftest import Ran


def test_json_of_bench_speed(foretune: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.speed.REPEATS", 1)
    clusters = speed.CLUSTERS[:1]
    monkeypatch.setattr("studies.speed.CLUSTERS", clusters)
    monkeypatch.setattr("studies.speed.peak_rss_gib", lambda: 0.5)
    ran = foretune("bench", "speed", "--rows", 1000, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["rows"] == 1000 * len(MODELS)
    assert len(found["cases"]) == len(MODELS) * len(clusters)
    assert found["memory_per_s"] > found["memory_and_time_per_s"] > 0
    assert 0 < sum(step["share"] for step in found["slowest_steps"]) <= 1
    assert {"core_space", "help_cpu_s", "peak_rss_gib_per_1e6_rows"} <= set(found)


def test_benchmark_rows_are_legal_and_distinct() -> None:
    for scattered in (False, True):
        job, table = benchmark_table("mixtral-8x22b", 64, 2000, scattered)
        assert len(set(table.configs())) == len(table) == 2000
        assert job.is_legal(table).all()
