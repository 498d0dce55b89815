"""``foretune plan``: identities of its costs, resuming, minimal clusters and bad plans."""

from __future__ import annotations

import csv
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specs.errors import InputError
from specs.formats.plan import read_plan
from studies.api import plan as plan_of
from studies.job import Job
from studies.plan.files import shipped_plans
from studies.plan.pair import Best, Pair, PairResult, fewest_gpus_a_replica
from studies.plan.table import brief, config_lines
from tests.nursery import Nursery
from tests.studies.conftest import Ran

Foretune = Callable[..., Ran]
AXES = {"precision": ["bf16"], "sharding": ["zero1"], "cp": 1, "recompute": ["none", "full"]}
PLAN: dict[str, Any] = {
    "name": "small",
    "tokens": 1e11,
    "deadline_days": 20,
    "pue": 1.25,
    "goodput": 0.8,
    "space": "core",
    "workloads": {
        "8B": {"model": "llama3.1-8b", "seq_len": 4096, "global_batch_size": 128, "axes": AXES}
    },
    "clusters": {
        "H100": {"gpu": "H100", "num_nodes": [1, 2, 4], "price_usd_per_gpu_hour": 2.0},
        "MI300X": {"gpu": "MI300X", "num_nodes": 2, "price_usd_per_gpu_hour": 1.5},
    },
}


def _write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**PLAN, **changes}, sort_keys=False))
    return path


def _run(folder: Path, **changes: Any) -> Any:
    return plan_of(_write(folder / "p.yaml", **changes), out=folder / "out", jobs=1)


def test_costs_are_consistent(tmp_path: Path) -> None:
    for row in _run(tmp_path).rows:
        best, spent = row.pair.best, row.cost
        assert best is not None
        assert spent is not None
        low, high = best.interval90
        assert low < best.tokens_per_s_per_gpu < high
        assert spent.gpu_days == pytest.approx(spent.days * row.pair.num_gpus)
        trained = best.tokens_per_s_per_gpu * row.pair.num_gpus * spent.days * 86_400 * 0.8
        assert trained == pytest.approx(1e11)
        price = {"H100": 2.0, "MI300X": 1.5}[row.pair.cluster]
        assert spent.usd == pytest.approx(24 * spent.gpu_days * price)
        watts = {"H100": 700, "MI300X": 750}[row.pair.cluster]
        assert spent.energy_mwh == pytest.approx(24 * spent.gpu_days * watts * 1.25 / 1e6)
        assert spent.days90[0] < spent.days < spent.days90[1]
        assert (spent.in_time or 0) > 0.5 or spent.days > 0.9 * 20
        assert row.scaling == 1.0 or row.pair.num_gpus > 8


def test_double_price_is_double_money_and_nothing_is_projected_again(tmp_path: Path) -> None:
    first = _run(tmp_path)
    clusters = {
        name: {**fields, "price_usd_per_gpu_hour": 2 * fields["price_usd_per_gpu_hour"]}
        for name, fields in PLAN["clusters"].items()
    }
    second = _run(tmp_path, clusters=clusters)
    assert (second.resumed, second.changed) == (4, 0)
    for before, after in zip(first.rows, second.rows, strict=True):
        assert after.cost.usd == pytest.approx(2 * before.cost.usd)
        assert replace(after.cost, usd=0) == replace(before.cost, usd=0)


@pytest.mark.parametrize(
    "faster",
    [
        {"nic_bytes_per_s": 4},
        {"link_bytes_per_s": 2},
        {"hbm_bytes_per_s": 2},
        {"peak_flops": 1.5},
        {"hbm_gib": 2},
    ],
    ids=str,
)
def test_better_hardware_is_never_slower(tmp_path: Path, faster: dict[str, float]) -> None:
    clusters = {
        "plain": {"gpu": "H100", "num_nodes": [4]},
        "better": {"gpu": "H100", "num_nodes": [4], "scaled": faster},
    }
    large = {"model": "llama3.1-70b", "seq_len": 4096, "global_batch_size": 128, "axes": AXES}
    plain, better = _run(tmp_path, clusters=clusters, workloads={"70B": large}).rows
    assert better.pair.best.tokens_per_s_per_gpu >= 0.999 * plain.pair.best.tokens_per_s_per_gpu
    assert better.pair.best.trust in ("physics only", "extrapolated")
    assert any("not of the catalog" in note for note in better.pair.notes)


def test_the_smallest_cluster_is_minimal(tmp_path: Path) -> None:
    result = _run(tmp_path, deadline_days=12)
    for found in result.smallest:
        rows = [row for row in result.rows if row.pair.cluster == found.cluster]
        assert found.tried == tuple(row.pair.num_gpus for row in rows)
        for row in rows:
            assert row.cost is not None
            enough = row.cost.days <= 12
            assert enough == (found.expected is not None and row.pair.num_gpus >= found.expected)
            sure = (row.cost.in_time or 0) >= 0.95
            assert sure == (found.surely is not None and row.pair.num_gpus >= found.surely)
    assert [found.expected for found in result.smallest if found.cluster == "H100"] == [16]


def test_changed_inputs_are_projected_again_and_the_others_kept(tmp_path: Path) -> None:
    _run(tmp_path)
    clusters = {
        **PLAN["clusters"],
        "MI300X": {"gpu": "MI300X", "num_nodes": 2, "scaled": {"hbm_gib": 2}},
    }
    changed = _run(tmp_path, clusters=clusters)
    assert (changed.resumed, changed.changed) == (3, 1)
    assert len(list((tmp_path / "out/small/pairs").glob("*.json"))) == 4
    assert _run(tmp_path, clusters=clusters).resumed == 4
    for path in (tmp_path / "out/small/pairs").glob("H100*.json"):
        path.write_text("{")
    assert _run(tmp_path, clusters=clusters).resumed == 4 - len(
        list((tmp_path / "out/small/pairs").glob("H100*.json"))
    )


def test_a_pair_is_resolved_once_to_be_known_and_once_to_be_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = Counter[str]()

    def job(pair: Pair) -> Job:
        resolved[pair.label] += 1
        return resolve(pair)

    resolve = Pair.job
    monkeypatch.setattr(Pair, "job", job)
    _run(tmp_path)
    assert set(resolved.values()) == {2}
    _run(tmp_path)
    assert set(resolved.values()) == {3}


def test_an_impossible_pair_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    clusters = {
        "odd": {"gpu": "H100", "num_nodes": 1, "gpus_per_node": 7},
        "small": {"gpu": "A100-40GB", "num_nodes": 1},
        "good": {"gpu": "MI300X", "num_nodes": 2},
    }
    workloads = {
        "70B": {
            "model": "llama3.1-70b",
            "seq_len": 8192,
            "global_batch_size": 64,
            "axes": {**AXES, "pp": [1, 2, 4, 8]},
        },
        "wrong": {
            "model": "llama3.1-8b",
            "seq_len": 4096,
            "global_batch_size": 8,
            "axes": {"tp": 0},
        },
    }
    rows = {
        (r.pair.workload, r.pair.cluster): r.pair
        for r in _run(tmp_path, clusters=clusters, workloads=workloads).rows
    }
    assert rows["70B", "odd"].state == "illegal"
    assert rows["70B", "small"].state == "does not fit"
    assert rows["70B", "small"].missing_gib > 0
    assert rows["70B", "good"].state == "best"
    assert rows["wrong", "good"].state == "bad input"
    assert all(pair.why.endswith(".") for pair in rows.values() if not pair.best)


def test_nothing_feasible_is_exit_3_with_what_is_missing(
    foretune: Foretune, tmp_path: Path
) -> None:
    workloads = {"405B": {"model": "llama3.1-405b", "seq_len": 8192, "global_batch_size": 64}}
    path = _write(
        tmp_path / "p.yaml", workloads=workloads, clusters={"one": "8xH100", "two": "16xH100"}
    )
    ran = foretune("plan", path, "--out", tmp_path / "out", "--jobs", "1")
    assert ran.code == 3
    assert "GiB more than" in ran.err
    assert "two (16 GPUs)" in ran.err, "the nearest"


def test_the_command_writes_csv_json_and_page(foretune: Foretune, tmp_path: Path) -> None:
    path = _write(tmp_path / "p.yaml")
    ran = foretune("plan", path, "--out", tmp_path, "--csv", tmp_path / "t.csv", "--json")
    assert ran.code == 0, ran.err
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    pairs = ran.json["pairs"]
    assert [float(row["usd"]) for row in rows] == [pair["cost"]["usd"] for pair in pairs]
    assert json.loads((tmp_path / "small/plan.json").read_text()) == ran.json
    page = (tmp_path / "small/plan.html").read_text()
    assert "Days to train 8B" in page
    ran = foretune("plan", path, "--out", tmp_path, "--jobs", "1")
    assert "4 of 4 pairs were known already" in ran.out
    tables = [line for line in ran.out.splitlines() if "H100 " in line and ":" not in line]
    assert tables
    assert all(len(line.rstrip()) <= 80 for line in tables)
    said = " ".join(ran.out.split())
    assert all(f": {pair['best']['words']}" in said for pair in pairs)


def test_a_config_is_told_once_behind_every_pair_that_it_is_best_of(tmp_path: Path) -> None:
    rows = _run(tmp_path).rows
    lines = list(config_lines(rows))
    assert all(len(line) <= 80 for told in lines for line in told.splitlines())
    told = {}
    for line in lines:
        place, words = " ".join(line.split()).split(": ", 1)
        told[words] = place
    assert list(told) == list(dict.fromkeys(row.pair.best.words for row in rows))
    assert len(told) == len(lines)
    for row in rows:
        sizes = re.search(rf"{row.pair.cluster} \((.*?)\)", told[row.pair.best.words])
        assert sizes is not None
        assert str(row.pair.num_gpus) in sizes[1].split(", ")


def test_a_killed_plan_loses_no_finished_pair(tmp_path: Path, nursery: Nursery) -> None:
    clusters = {"H100": {"gpu": "H100", "num_nodes": "1..12"}}
    plan = _write(tmp_path / "p.yaml", clusters=clusters)
    kept = tmp_path / "out/small/pairs"
    command = ("-m", "foretune", "plan", str(plan), "--out", str(tmp_path / "out"), "--json")
    process = nursery.start(*command, "--jobs", "2")
    deadline = time.monotonic() + 120
    while len(list(kept.glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert len(before) >= 3
    process = nursery.start(*command, "--jobs", "2")
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    result = json.loads(printed)
    assert result["resumed"] == len(before)
    assert [pair["num_nodes"] for pair in result["pairs"]] == [*range(1, 13)]
    after = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert len(after) == 12
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokens": -1}, "tokens"),
        ({"tokens": "nan"}, "tokens"),
        ({"pue": 0.5}, "pue"),
        ({"goodput": 0}, "goodput"),
        ({"clusters": {}}, "clusters"),
        ({"clusters": {"a": {"gpu": "H100", "num_nodes": "8..2"}}}, "num_nodes"),
        ({"clusters": {"a": {"gpu": "H100", "num_nodes": [0]}}}, "num_nodes"),
        ({"clusters": {"a": {"gpu": "H100", "num_nodes": "1..99999999"}}}, "num_nodes"),
        ({"clusters": {"a": {"gpu": "H100", "scaled": {"nic_bytes_per_s": -1}}}}, "nic_bytes"),
        ({"clusters": {"a": {"gpu": "H100", "overrides": {"peak_flops": {"x": 1}}}}}, "format 'x'"),
        ({"clusters": {"=cmd": "8xH100"}}, "formula"),
        ({"clusters": {"a": 5}}, "mapping"),
        ({"clusters": {"a": "8xNOPE"}}, "NOPE"),
        ({"workloads": {"a": {"seq_len": 4}}}, "model"),
        ({"workloads": {"a": "missing.yaml"}}, "missing.yaml"),
        ({"workloads": {"a": {"model": "llama3.1-8b", "cluster": "8xH100"}}}, "cluster"),
        ({"typo": 1}, "typo"),
    ],
    ids=str,
)
def test_bad_plans_are_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        read_plan(_write(tmp_path / "p.yaml", **changes))


def test_workloads_may_be_files(tmp_path: Path, small_study: Path) -> None:
    plan = read_plan(_write(tmp_path / "p.yaml", workloads={"a": small_study.name}))
    experiment = plan.workloads[0].on(plan.clusters[0].cluster)
    assert experiment.workload.model.name == "llama3.1-8b"
    assert experiment.cluster is plan.clusters[0].cluster


@pytest.mark.parametrize("name", shipped_plans())
def test_shipped_plans_can_be_read(name: str) -> None:
    assert len(read_plan(shipped_plans()[name])) >= 4


@pytest.mark.parametrize(("batch", "gpus", "width"), [(512, 512, 1), (512, 96, 3), (512, 1024, 2)])
def test_a_batch_that_does_not_divide_needs_wider_replicas(
    batch: int, gpus: int, width: int
) -> None:
    assert fewest_gpus_a_replica(batch, gpus) == width


def test_kept_results_are_read_back() -> None:
    best = Best(
        config={"tp": 1},
        precision="fp8",
        words="tp=1",
        tokens_per_s_per_gpu=2.0,
        interval90=(1.0, 3.0),
        fit_probability=1.0,
        peak_gib=5.0,
        trust="extrapolated",
    )
    result = PairResult(
        workload="a",
        cluster="b",
        num_gpus=8,
        num_nodes=1,
        gpu="H100",
        inputs_hash="0",
        state="best",
        best=best,
        in_bf16=replace(best, precision="bf16"),
        notes=("x",),
    )
    assert PairResult.from_json(json.loads(json.dumps(result.as_json()))) == result


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (12.34, "12.3"), (9876.4, "9,876"), (15400, "15.4k"), (2.5e6, "2.50M")],
)
def test_quantities_are_short(value: float, text: str) -> None:
    assert brief(value) == text


ROW = (
    "run_id,model,gpu,num_gpus,gpus_per_node,framework,precision,seq_len,gbs,mbs,tp,pp,recompute,"
    "tokens_per_s_per_gpu\n"
    "r1,llama3.1-8b,H100,8,8,Megatron-LM,bf16,4096,128,1,2,1,none,{speed}\n"
)


def _calibration(folder: Path, foretune: Foretune, speed: float) -> Path:
    runs, out = folder / "runs.csv", folder / f"c{speed:g}.json"
    runs.write_text(ROW.format(speed=speed))
    assert foretune("calibrate", "--runs", runs, "--out", out).code == 0
    return out


def test_every_row_names_its_format_and_bf16_stands_beside_eight_bit(
    tmp_path: Path, foretune: Foretune
) -> None:
    path = _write(
        tmp_path / "p.yaml",
        workloads={
            "8B": {**PLAN["workloads"]["8B"], "axes": {**AXES, "precision": ["bf16", "fp8"]}}
        },
        clusters={"H100": {"gpu": "H100", "num_nodes": 1}},
        space="full",
    )
    found = foretune("plan", path, "--out", tmp_path / "out", "--jobs", 1, "--json").json
    pair = found["pairs"][0]
    assert pair["best"]["precision"] == "fp8"
    assert pair["in_bf16"]["precision"] == pair["in_bf16"]["config"]["precision"] == "bf16"
    assert pair["in_bf16"]["tokens_per_s_per_gpu"] < pair["best"]["tokens_per_s_per_gpu"]
    words = foretune("plan", path, "--out", tmp_path / "out").out
    table = [line.split() for line in words.splitlines() if line.startswith("H100")]
    assert [row[2] for row in table[:2]] == ["fp8", "bf16"]
    (row,) = csv.DictReader((tmp_path / "out" / "small" / "plan.csv").open())
    assert (row["precision"], bool(row["bf16_tokens_per_s_per_gpu"])) == ("fp8", True)


def test_a_calibration_moves_the_pairs_that_it_has_runs_of(
    tmp_path: Path, foretune: Foretune
) -> None:
    path = _write(tmp_path / "p.yaml", clusters={"H100": {"gpu": "H100", "num_nodes": 1}})
    options = ("--out", tmp_path / "out", "--jobs", 1, "--json")

    def speed(*more: object) -> float:
        pair = foretune("plan", path, *options, *more).json["pairs"][0]
        return float(pair["best"]["tokens_per_s_per_gpu"])

    plain = speed()
    slow = _calibration(tmp_path, foretune, 4000)
    again = foretune("plan", path, *options, "--calibration", slow).json
    assert again["changed"] == 1, "what was known without the calibration does not stand for it"
    assert again["pairs"][0]["best"]["tokens_per_s_per_gpu"] < 0.9 * plain
    assert speed("--calibration", slow) < 0.9 * plain
    for missing in (tmp_path / "no.json", path):
        bad = foretune("plan", path, *options, "--calibration", missing)
        assert bad.code == 2
        assert bad.err.count("\n") == 1
