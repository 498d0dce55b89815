"""Profiling in studies: the plan, the command that measures, and a job that believes the node."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specs.errors import InputError
from specs.profile_rows import Profile, checked_item, plan_json
from studies import profiled
from studies.inputs import resolve
from studies.profiled import ProfileOptions, command, duration_s, is_of
from surrogate.profile_predictions import NodePhysics, observations, predicted_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10", 600), ("1.5h", 5400), ("20min", 1200)]
)
def test_durations(text, seconds):
    assert duration_s(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "ten", "2d", "100h"])
def test_what_is_no_duration(text):
    with pytest.raises(InputError, match="no duration"):
        duration_s(text, "--budget")


def test_commands_of_one_process_one_node_and_two_nodes(tmp_path):
    options = ProfileOptions(folder=tmp_path, budget_s=60, python="python3")
    assert command(options, 1)[:2] == ["python3", str(profiled.PROGRAM)]
    assert "--standalone" in command(options, 8)
    two = ProfileOptions(
        folder=tmp_path,
        budget_s=60,
        python="python3",
        nodes=2,
        node_rank=1,
        rendezvous="host:29500",
    )
    line = command(two, 8)
    assert line[line.index("--nnodes") + 1] == "2"
    assert line[line.index("--node-rank") + 1] == "1"
    assert line[line.index("--master-addr") + 1] == "host"
    assert line[line.index("--master-port") + 1] == "29500"


def test_two_nodes_need_a_rendezvous(tmp_path):
    options = ProfileOptions(folder=tmp_path, budget_s=60, nodes=2)
    with pytest.raises(InputError, match="--rendezvous"):
        profiled.measure(options, 8)


def test_interpreter_without_torch_is_one_sentence(tmp_path):
    options = ProfileOptions(folder=tmp_path, budget_s=60, python="/no/such/python")
    with pytest.raises(InputError, match="no interpreter"):
        profiled.processes_of(options)


def test_plan_for_a_container(foretune, small_study, tmp_path):
    ran = foretune("profile", small_study, "--plan-only", "--out", tmp_path / "p", "--json")
    assert ran.code == 0
    plan = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert [item["key"] for item in plan["items"]] == [item["key"] for item in ran.json["plan"]]
    assert (tmp_path / "p" / "node_profile.py").read_text() == profiled.PROGRAM.read_text()


class _Node:
    """A node that measures what the laws say, at other constants."""

    def __init__(self, gpu: str, factors: dict[str, float]) -> None:
        self.device_name = gpu
        self.factors = factors
        self.calls = 0

    def install(self, monkeypatch: pytest.MonkeyPatch, job) -> None:
        gpu, cases = job.cluster.gpu, job.cases(_table(job))
        physics = NodePhysics.of(gpu, cases, job.belief.constants)

        def measure(options: ProfileOptions, _processes: int) -> Profile:
            self.calls += 1
            plan = json.loads(options.plan_file.read_text())["items"]

            lines = [json.dumps({"environment": {"device_name": self.device_name}})]
            for content in plan:
                item = checked_item(content, "plan")
                what = observations(item, has_backward=False)
                seconds = predicted_s(item, what[0], physics, self.factors) if what else 1e-3
                lines.append(json.dumps({**content, "round": 0, "forward_s": seconds}))
            options.rows_file.write_text("\n".join(lines) + "\n")
            return profiled.read_profile(options.rows_file)

        monkeypatch.setattr(profiled, "measure", measure)
        monkeypatch.setattr(profiled, "processes_of", lambda _options: 8)


def _table(job):
    from specs.config import ConfigTable

    return ConfigTable.from_configs([job.baseline])


def test_tune_believes_the_node(foretune, small_study, tmp_path, monkeypatch):
    plain = foretune("tune", small_study, "--out", tmp_path / "a", "--json")
    node = _Node("AMD Instinct MI300X", {"gemm_utilisation": 0.8})
    node.install(monkeypatch, resolve(str(small_study)))
    arguments = ("tune", small_study, "--profile", "1m", "--out", tmp_path / "b", "--json")
    ran = foretune(*arguments)
    assert ran.code == 0
    change = ran.json["profile"]
    assert change["factors"]["gemm_utilisation"]["factor"] == pytest.approx(0.82, abs=0.04)
    assert change["tokens_per_s_per_gpu_after"] < change["tokens_per_s_per_gpu_before"]
    speed = [
        r.json["best"]["projection"]["throughput"]["tokens_per_s_per_gpu"] for r in (plain, ran)
    ]
    assert speed[1] < speed[0]
    assert plain.json["study_name"] == "small"
    # The same command uses the profile again, and so finds the same study.
    again = foretune(*arguments)
    assert node.calls == 1
    assert again.json["profile"]["reused"]
    assert again.json["study_name"] == ran.json["study_name"]


def test_profile_of_another_gpu_is_refused(foretune, small_study, tmp_path, monkeypatch):
    _Node("NVIDIA H100 80GB HBM3", {}).install(monkeypatch, resolve(str(small_study)))
    ran = foretune("tune", small_study, "--profile", "1m", "--out", tmp_path)
    assert ran.code == 2
    assert "measured on 'NVIDIA H100" in ran.err


def test_names_of_devices():
    from specs import catalog

    environment = {"device_name": "AMD Instinct MI300X VF"}
    assert is_of(Profile((), environment=environment), catalog.gpu("MI300X"))
    assert not is_of(Profile((), environment=environment), catalog.gpu("MI325X"))


def test_profile_command_learns_from_rows(foretune, small_study, tmp_path):
    job = resolve(str(small_study))
    plan = profiled.plan_of(job, [job.baseline], 8, 1)
    physics = NodePhysics.of(job.cluster.gpu, job.cases(_table(job)), job.belief.constants)
    random = np.random.default_rng(0)
    lines = [json.dumps({"environment": {"device_name": "AMD Instinct MI300X"}})]
    for content, item in zip(plan_json(plan)["items"], plan, strict=True):
        what = observations(item, has_backward=False)
        seconds = predicted_s(item, what[0], physics, {}) if what else 1e-3
        for number in range(3):
            noisy = seconds * float(np.exp(0.02 * random.standard_normal()))
            lines.append(json.dumps({**content, "round": number, "forward_s": noisy}))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(lines))
    ran = foretune("profile", small_study, "--rows", rows, "--json")
    assert ran.code == 0
    assert ran.json["learned"]["median_error_after"] < 0.03
    assert all(isinstance(row["rounds"], int) and row["rounds"] == 3 for row in ran.json["rows"])
