"""Where a study starts that states no layout: guidelines, legality, memory, and what is stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search.usual_start import LAYOUT_AXES, SURE
from specs.choices import Overlap, Precision, Recompute, Sharding
from specs.config import ConfigTable
from specs.formats.reader import read_experiment
from studies.cli.main import call
from studies.inputs import resolve
from studies.job import Job

CASES = {
    "dense": ("llama3.1-70b", "8x8xH100", 512, 8192),
    "small": ("llama3.1-8b", "1x8xMI300X", 128, 8192),
    "large": ("llama3.1-405b", "128x8xH100", 2048, 8192),
    "experts": ("mixtral-8x22b", "8x8xMI355X", 512, 8192),
    "many experts": ("deepseek-v3", "128x8xH100", 8192, 4096),
    "long": ("llama3.1-8b", "8x8xH100", 64, 131072),
}


def study(folder: Path, case: str, more: str = "") -> str:
    """The file of a study that states no layout."""
    model, cluster, batch, length = CASES[case]
    path = folder / "study.yaml"
    path.write_text(
        f"model: {model}\ncluster: {cluster}\nglobal_batch_size: {batch}\nseq_len: {length}\n{more}"
    )
    return str(path)


def chance(job: Job) -> float:
    """Fit probability of the baseline."""
    return float(job.project(ConfigTable.from_configs([job.baseline])).fit_probability[0])


@pytest.mark.parametrize("case", CASES)
def test_the_start_is_legal_fits_with_margin_and_follows_the_guidelines(
    case: str, tmp_path: Path
) -> None:
    job = resolve(study(tmp_path, case))
    start, cluster, workload = job.baseline, job.cluster, job.experiment.workload
    assert job.why_illegal(start) == []
    assert chance(job) >= SURE
    assert start.tp <= cluster.gpus_per_node
    assert start.ep <= cluster.scale_up_gpus
    assert workload.seq_len / start.cp <= 8192
    microbatches = ConfigTable.from_configs([start]).microbatches(
        cluster.num_gpus, workload.global_batch_size
    )
    assert start.pp == 1 or int(microbatches[0]) >= 4 * start.pp
    assert (start.mbs, start.vpp, start.sharding) == (1, 1, Sharding.ZERO1)
    assert start.overlap == Overlap.DP
    assert start.precision is Precision.BF16
    assert start == resolve(study(tmp_path, case)).baseline, "the same every time"


def test_a_dense_model_takes_tp_before_pp_and_experts_take_ep_before_pp_before_tp(
    tmp_path: Path,
) -> None:
    dense = resolve(study(tmp_path, "dense")).baseline
    assert (dense.tp, dense.pp > 1, dense.sequence_parallel) == (8, True, True)
    experts = resolve(study(tmp_path, "experts")).baseline
    assert (experts.tp, experts.ep, experts.etp) == (1, 8, 1)
    assert resolve(study(tmp_path, "small")).baseline.tp == 1


@pytest.mark.parametrize("case", ["dense", "small", "experts"])
def test_less_model_parallelism_does_not_surely_fit(case: str, tmp_path: Path) -> None:
    job = resolve(study(tmp_path, case))
    start = job.baseline
    fewer = [
        start.changed(tp=tp, pp=pp, sequence_parallel=tp > 1)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4)
        if tp * pp < start.tp * start.pp
    ]
    legal = [config for config in fewer if not job.why_illegal(config)]
    if legal:
        assert job.project(ConfigTable.from_configs(legal)).fit_probability.max() < SURE


def test_recomputation_comes_only_where_nothing_fits_without(tmp_path: Path) -> None:
    assert resolve(study(tmp_path, "dense")).baseline.recompute is Recompute.NONE
    job = resolve(study(tmp_path, "dense"), cluster="2x8xH100")
    assert job.baseline.recompute is Recompute.FULL


def test_the_reason_is_one_sentence_of_the_notes(tmp_path: Path) -> None:
    said = [n for n in resolve(study(tmp_path, "dense")).notes if n.startswith("baseline: ")]
    assert len(said) == 1
    assert "tp=8 pp=2" in said[0]
    assert "because no layout is stated" in said[0]


@pytest.mark.parametrize("axis", LAYOUT_AXES)
def test_a_stated_layout_stays_as_it_is(axis: str, tmp_path: Path) -> None:
    value = "even" if axis == "layout" else 1
    for job in (
        resolve(study(tmp_path, "dense", f"baseline: {{{axis}: {value}}}\n")),
        resolve(study(tmp_path, "dense"), settings={axis: str(value)}),
    ):
        assert (job.baseline.tp, job.baseline.pp) == (1, 1)
        assert not any(note.startswith("baseline: ") for note in job.notes)


def test_what_is_stated_narrowed_or_pinned_is_kept(tmp_path: Path) -> None:
    stated = "baseline: {mbs: 2, sharding: none, recompute: full}\naxes: {pp: [4, 8]}\n"
    start = resolve(study(tmp_path, "dense", stated), pins={"tp": ["4"]}).baseline
    assert (start.mbs, start.sharding, start.recompute) == (2, Sharding.NONE, Recompute.FULL)
    assert start.tp == 4
    assert start.pp in (4, 8)
    eight = resolve(study(tmp_path, "dense", "precision: fp8\n")).baseline
    assert eight.precision is Precision.FP8


def test_where_nothing_fits_the_leanest_start_is_taken_and_said(tmp_path: Path) -> None:
    job = resolve(study(tmp_path, "large"), cluster="1x8xH100")
    assert chance(job) < SURE
    assert any("no usual start surely fits" in note for note in job.notes)


def test_without_a_cluster_it_is_the_fewest_nodes_on_which_a_start_fits(tmp_path: Path) -> None:
    path = Path(study(tmp_path, "dense"))
    path.write_text(path.read_text().replace("cluster: 8x8xH100\n", ""))
    job = resolve(str(path), gpu="H100")
    assert chance(job) >= 0.5
    assert 1 < job.cluster.num_nodes <= 8


def test_project_projects_what_is_stated_and_space_starts_like_tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study(tmp_path, "small", "axes: {tp: [1, 2], pp: 1, recompute: none}\n")
    assert call(["project", path, "--set", "gbs=64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["tp"] == 1
    assert call(["space", path, "--pin", "tp=2", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(note.startswith("baseline: tp=2") for note in notes)


def test_an_input_that_states_a_whole_config_says_so() -> None:
    assert read_experiment(Path("studies/mixtral_8x22b_mi355x.yaml")).stated is not None
