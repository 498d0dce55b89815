"""The report: every fact is in it, every foreign text is escaped, and it says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.attribution import needed_for
from specs.errors import InputError
from studies.cli.main import call
from studies.report.facts import StudyFacts, cautions_now, chosen_study, read_facts
from studies.report.html import Markup, table, tag
from studies.report.report import report
from studies.report.savings import cost, price_of, reference_of, tokens_of
from studies.report.timetable import timetable
from studies.report.whatif import LEVERS, levers, neighbours, scaled
from studies.wording import mesh_in_words
from tests.showing.conftest import PAGE_MS

CONTENTS = (
    "What to run",
    "Memory of each stage",
    "The pipeline",
    "What each change brings",
    "Shortlist",
    "How it was found",
    "How sure it is",
    "What could tip it",
    "Where the constants come from",
    "How to get this again",
)


@pytest.fixture(scope="module")
def facts(finished: Any) -> StudyFacts:
    found: StudyFacts = finished.facts
    return found


def test_the_study_tells_everything_back(finished: Any, facts: StudyFacts) -> None:
    written = json.loads((finished.folder / "shown" / "result.json").read_text())
    assert facts.best.config.as_labels() == written["best"]["config"]
    assert facts.job.baseline.as_labels() == facts.inputs["baseline"]
    assert facts.job.cluster.num_gpus == 16
    assert len(facts.trials) == 20
    assert facts.current


def test_the_job_is_rebuilt_exactly(facts: StudyFacts) -> None:
    """Projecting the best config again gives what was written when it was found."""
    from specs.config import ConfigTable

    seen = facts.job.project(ConfigTable.from_configs([facts.best.config]))
    assert seen.tokens_per_s_per_gpu[0] == pytest.approx(facts.best.tokens_per_s_per_gpu)
    assert seen.device_gib[0] == pytest.approx(facts.best.memory["peak_gib"])


def test_every_section_and_number_is_there(report_file: Path, facts: StudyFacts) -> None:
    text = report_file.read_text()
    for title in CONTENTS:
        assert title in text
    assert f"{facts.best.tokens_per_s_per_gpu:,.0f}" in text
    assert f"{facts.best.memory['peak_gib']:.0f} of 192" in text
    assert text.count("cdn.plot.ly") == text.split("</head>")[1].count("cdn.plot.ly")


def test_accuracy_names_the_folds_that_its_errors_are_of(report_file: Path) -> None:
    text = report_file.read_text()
    assert "no run of its publisher, model and GPU" in text
    assert "no run of its source" not in text


def test_configs_are_told_in_words_and_changes_say_what_they_are_needed_for(
    report_file: Path, facts: StudyFacts
) -> None:
    text = report_file.read_text()
    mesh = facts.result["sensitivity"]["families"][0]["mesh"]
    assert f">{mesh_in_words(mesh)}<" in text
    assert "{&#x27;" not in text
    effects = facts.result["attribution"]["effects"]
    needed = [needed_for(effect["last"], effect["fits_without"]) for effect in effects]
    assert any(needed)
    assert all(words in text for words in needed)


def test_it_asks_nobody_for_anything(report_file: Path) -> None:
    markup = re.sub(r"<script.*?</script>", "", report_file.read_text(), flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", markup)
    assert "default-src 'none'" in unescape(markup)


def test_foreign_text_is_escaped(report_file: Path) -> None:
    text = report_file.read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#x27;stack&#x27;)" in text


@given(st.text())
def test_no_text_breaks_out_of_an_element(text: str) -> None:
    inside = tag("p", text, title=text)
    assert inside.count("<") == 2
    assert unescape(inside[inside.index(">") + 1 : -4]) == text


def test_markup_is_kept_and_cells_are_escaped() -> None:
    shown = table("Caption", ("a", "b"), [(Markup("<b>x</b>"), "<i>")], numeric=[1])
    assert "<b>x</b>" in shown
    assert "&lt;i&gt;" in shown


def test_costs_follow_from_throughput(facts: StudyFacts) -> None:
    tokens, origin = tokens_of(facts.job, None)
    price = price_of(facts.job, None)
    assert (tokens, origin) == (5e11, "the study's target_tokens")
    assert price is not None
    assert price.usd_per_gpu_hour == 2.0
    spent = cost(1000.0, 3.6e9, 16, price)
    assert spent.gpu_hours == 1000.0
    assert spent.days == pytest.approx(1000 / 16 / 24)
    assert spent.usd == 2000.0
    assert tokens_of(facts.job, 7.0)[0] == 7.0


def test_savings_are_told_against_a_config_that_fits(facts: StudyFacts) -> None:
    reference = reference_of(facts)
    assert facts.baseline is not None
    assert reference is not None
    assert reference.is_baseline is facts.baseline.memory["fits"]
    if not reference.is_baseline:
        assert "the baseline with" in reference.words
        assert "projected not to fit" in report(facts)


def test_cautions_of_a_number_format_go_with_it() -> None:
    def result(precision: str, caution: str) -> dict[str, Any]:
        return {"best": {"config": {"precision": precision}}, "cautions": [caution]}

    before = result("fp8", "of tune")
    assert cautions_now(before, result("fp8", "of now")) == ("of tune",)
    assert cautions_now(before, result("bf16", "of now")) == ("of now",)


def test_a_study_of_other_constants_says_so(facts: StudyFacts) -> None:
    assert "other constants" in report(replace(facts, current=False))
    assert "other constants" not in report(facts)


def test_neighbours_differ_and_are_legal(facts: StudyFacts) -> None:
    near = neighbours(facts.job, facts.best.config, facts.result["space"]["axes"])
    labels = facts.best.config.as_labels()
    assert near
    assert all(n.value != str(labels[n.axis]) for n in near)


def test_better_hardware_is_never_slower(facts: StudyFacts) -> None:
    found, _ = levers(facts.job, [facts.best.config])
    assert {lever.name for lever in found} == set(LEVERS)
    for lever in found:
        if "latency" not in lever.name:
            assert lever.lower <= 0 <= lever.higher
        else:
            assert lever.higher <= 0 <= lever.lower


def test_a_scaled_gpu_keeps_its_provenance(facts: StudyFacts) -> None:
    gpu = facts.job.cluster.gpu
    faster = scaled(gpu, "peak_flops", 2.0)
    assert faster.peak_flops["bf16"].value == 2 * gpu.peak_flops["bf16"].value
    assert faster.peak_flops["bf16"].source == gpu.peak_flops["bf16"].source


def test_the_timetable_is_the_pipeline_of_the_projection(facts: StudyFacts) -> None:
    assert facts.baseline is not None
    line = timetable(facts.job, facts.baseline.config)
    step = facts.baseline.projection["throughput"]["step_time_s"]
    assert {slot.rank for slot in line.slots} == set(range(4))
    assert line.shown <= line.microbatches
    if line.shown == line.microbatches:
        assert 0.5 * step < line.end_s < 1.05 * step


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "nobody"], "there is no study 'nobody'"),
        (["report", "--out", "."], "is a folder"),
        (["compare", "nobody"], "there is no study 'nobody'"),
    ],
)
def test_mistakes_are_one_sentence(
    finished: Any, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*arguments, "--storage", str(finished.folder / "foretune.db")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_no_storage_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", "--storage", str(tmp_path / "none.db")]) == 2
    assert "run foretune tune first" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_an_unfinished_study_is_said(tmp_path: Path) -> None:
    import optuna

    from studies.storage import storage_address

    optuna.create_study(study_name="raw", storage=f"sqlite:///{tmp_path / 'raw.db'}")
    address = storage_address(str(tmp_path / "raw.db"), tmp_path)
    assert chosen_study(address, None) == "raw"
    with pytest.raises(InputError, match="has no result yet"):
        read_facts(address, "raw")


def test_studies_side_by_side(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    storage = str(finished.folder / "foretune.db")
    capsys.readouterr()
    assert call(["compare", "--storage", storage, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["studies"]
    assert row["study"] == "shown"
    assert row["trials"] == 20
    assert 1 <= row["found_after"] <= 20
    assert call(["compare", "shown", "--storage", storage]) == 0
    assert "best, tokens/s/GPU" in capsys.readouterr().out


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_it_looks_right_in_a_browser(
    browser: Any,
    report_file: Path,
    serious_faults: Callable[[Any], list[str]],
    width: int,
    scheme: str,
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(PAGE_MS)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report_file.as_uri())
    page.wait_for_selector(".plot svg")
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for place in page.query_selector_all(".plot"):
        drawn = place.evaluate(
            "p => p.querySelectorAll('.point, .trace path, .hm image, .hm rect').length"
        )
        box, outer = place.bounding_box(), place.query_selector("svg").bounding_box()
        assert drawn, place.get_attribute("id")
        assert outer["width"] <= box["width"] + 1
    assert serious_faults(page) == []
    context.close()


def test_it_works_under_its_own_policy_and_prints(browser: Any, report_file: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PAGE_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(report_file.as_uri())
    page.wait_for_selector(".plot svg")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.eval_on_selector_all("details", "all => all.every(one => one.open)")
    assert page.eval_on_selector(".plot svg", "svg => svg.getBoundingClientRect().width") == 690
    assert len(page.pdf(format="A4")) > 50_000
    assert said == []
    context.close()
