"""The toolbox study: prepare, search bundles, measure the best stack again, write what came out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specs.errors import InputError
from studies.files import checked_folder, to_json, write_atomically
from studies.llm import LlmOptions
from studies.progress import Progress as Watch
from studies.progress import Tell, silent, untold
from studies.storage import storage_address
from studies.toolbox.artifact import run_program, write_artifact
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.evaluation import Baseline, Evaluator
from studies.toolbox.ledger import BundleLedger
from studies.toolbox.log import ResearchLog
from studies.toolbox.planners import make_planner
from studies.toolbox.planners.llm import LlmPlanner, facts_of, llm_planner
from studies.toolbox.process import Launch
from studies.toolbox.profiling import bottlenecks
from studies.toolbox.request import Request
from studies.toolbox.search import (
    FinalStack,
    Planner,
    Progress,
    Suggestion,
    finish,
    spend,
    verdict_counts,
)
from studies.toolbox.space import ToolSpace
from studies.toolbox.verdicts import Outcome
from studies.turns import only_driver

FINISHING = "finishing"
"""Attribute of a study that is being finished: the comparisons that are done."""
ARTIFACT_TOKENS = 8
"""Tokens that a written program must generate before it is called running."""


@dataclass(frozen=True, kw_only=True)
class ToolboxResult:
    """A finished study.

    ``programs_said`` is what each written program printed when it was run once.
    """

    request: Request
    name: str
    storage: str
    folder: Path
    baseline: Baseline
    bottlenecks: list[str]
    refused: dict[str, str]
    outcomes: tuple[Outcome, ...]
    final: FinalStack | None
    files: tuple[Path, ...]
    programs_said: dict[str, str]
    notes: tuple[str, ...]

    @property
    def kept(self) -> Bundle:
        """The proven stack; empty where nothing is proven."""
        return self.final.stack if self.final and self.final.proven else BASELINE

    @property
    def answer(self) -> str:
        """What is kept and what it brings, in one line."""
        proven = self.final.proven if self.final else None
        if proven is None:
            return "kept: nothing; no bundle is proven faster and correct"
        return (
            f"kept: {proven.bundle}: {proven.ratio:.3f} times as fast, at least "
            f"{proven.lower:.3f} with {self.request.confidence:.0%} confidence"
        )

    @property
    def timed(self) -> list[Outcome]:
        """Outcomes of the search with a speed."""
        return [outcome for outcome in self.outcomes if outcome.verdict.timed]

    def as_json(self) -> dict[str, Any]:
        """The result as one JSON document."""
        proven = self.final.proven if self.final else None
        return {
            "model": str(self.request.source),
            "workload": self.request.work.as_json(),
            "host": self.baseline.host.as_json(),
            "versions": self.baseline.versions,
            "bottlenecks": self.bottlenecks,
            "profile": self.baseline.profile,
            "bound": self.baseline.bound.as_json(),
            "kept": self.kept.as_json(),
            "gain": None if proven is None else (proven.ratio or 1.0) - 1,
            "interval": None if proven is None else [proven.lower, proven.upper],
            "verdicts": [_brief(outcome) for outcome in self.outcomes],
            "whole_stack": [_brief(o) for o in self.final.whole] if self.final else [],
            "leave_one_out": [_brief(o) for o in self.final.leave_one_out] if self.final else [],
            "removed": list(self.final.removed) if self.final else [],
            "refused": self.refused,
            "counts": verdict_counts({o.bundle: o for o in self.outcomes}),
            "notes": list(self.notes),
            "storage": self.storage,
            "study_name": self.name,
            "files": [str(path) for path in self.files],
            "programs": self.programs_said,
        }


def run_toolbox(
    request: Request,
    out: Path,
    storage: str | None = None,
    watch: Watch = silent,
    llm: LlmOptions | None = None,
    tell: Tell = untold,
) -> ToolboxResult:
    """Runs the study until its trials are spent, or resumes it; ``llm`` is for its planner.

    ``watch`` and ``tell`` follow it: bundles that are done, and a line for whatever is begun.

    Raises:
        InputError: the model or an option cannot be used, or torch is not installed.
        InfeasibleError: the baseline does not run.
    """
    check_torch()
    checked_folder(out)
    name = request.study_name
    address = storage_address(storage, out / "foretune.db")
    with only_driver(address, out / name, name):
        ledger = BundleLedger.open(address, name, study_inputs(request))
        folder = out / ledger.name
        log = ResearchLog(folder / "research_log.jsonl")
        log("start", {"request": request.model_dump(mode="json"), "environment": environment()})
        launch, rule = launch_of(request, folder), request.rule
        evaluator = Evaluator(launch, rule, log, request.lossy_budget, request.metric, tell)
        try:
            return _study(request, ledger, evaluator, folder, watch, llm)
        finally:
            evaluator.close()
            for scratch in (folder / "reference", launch.compiled):
                shutil.rmtree(scratch, ignore_errors=True)


def _study(
    request: Request,
    ledger: BundleLedger,
    evaluator: Evaluator,
    folder: Path,
    watch: Watch,
    llm: LlmOptions | None,
) -> ToolboxResult:
    """Searches and finishes; what an earlier run has found out is not measured again."""
    done = _finished(request, ledger)
    baseline = done[0] if done else evaluator.prepare()
    on_gpu = request.device == "cuda"
    found = bottlenecks(baseline.profile, baseline.seconds, baseline.bound, on_gpu)
    space = ToolSpace(request.axes, baseline.host, request.work, request.lossy_budget)
    notes = _notes(request, space)
    ledger.describe({"bottlenecks": found, "refused": space.refused})
    progress = Progress(space.bundles, ledger.outcomes())
    if done:
        final = done[1]
    else:
        with _planner(request, folder, baseline, found, space, llm) as planner:
            notes += _search(request, ledger, evaluator, space, progress, watch, planner)
            notes += planner.notes() if isinstance(planner, LlmPlanner) else []
        final = _final(request, ledger, evaluator, space, progress)
        ledger.describe(
            {
                "baseline": baseline.as_json(),
                "final": final.as_json() if final else None,
                "finished_after": len(progress.outcomes),
                FINISHING: [],
            }
        )
    return _result(request, ledger, folder, baseline, found, space, progress, final, notes)


def _finished(request: Request, ledger: BundleLedger) -> tuple[Baseline, FinalStack | None] | None:
    """Baseline and final stack of a study with no trial left; None where work is left."""
    count = len(ledger.outcomes())
    spent = count >= request.trials or ledger.held("exhausted") == request.planner
    if not spent or ledger.held("finished_after") != count:
        return None
    final = ledger.held("final")
    return (
        Baseline.from_json(ledger.held("baseline")),
        FinalStack.from_json(final) if final else None,
    )


@contextmanager
def _planner(
    request: Request,
    folder: Path,
    baseline: Baseline,
    found: list[str],
    space: ToolSpace,
    llm: LlmOptions | None,
) -> Iterator[Planner]:
    """Who chooses the bundles."""
    if request.planner != "llm":
        yield make_planner(request.planner, request.seed, request.threshold)
        return
    host = baseline.host
    machine = f"{host.gpu or host.device}, {host.dtype}"
    model, work = str(request.source), str(request.work)
    facts = facts_of(model, work, machine, found, baseline.profile, space.refused)
    with llm_planner(llm, study_inputs(request), request.trials, folder, facts) as planner:
        yield planner


def _search(
    request: Request,
    ledger: BundleLedger,
    evaluator: Evaluator,
    space: ToolSpace,
    progress: Progress,
    watch: Watch,
    planner: Planner,
) -> list[str]:
    """Spends the trials; returns notes."""
    notes: list[str] = []
    with watch("bundles", request.trials) as advance:
        advance(min(len(progress.outcomes), request.trials))

        def evaluate(suggestion: Suggestion, who: str = "") -> Outcome:
            outcome = evaluator.evaluate(suggestion.bundle)
            ledger.record(outcome, who or planner.name, suggestion.reason)
            advance(1)
            return outcome

        for bundle in request.beside_bundles:
            reasons = space.why_illegal(bundle)
            if reasons:
                notes.append(f"{bundle} is not measured beside: {'; '.join(reasons)}.")
            elif bundle not in progress.outcomes:
                suggestion = Suggestion(bundle, "asked for beside the search")
                progress.outcomes[bundle] = evaluate(suggestion, "the study")
        spend(planner, progress, evaluate, request.trials)
    if len(progress.outcomes) < request.trials:
        ledger.describe({"exhausted": request.planner})
        notes.append(
            f"the planner {planner.name} has nothing left to propose after "
            f"{len(progress.outcomes)} bundles."
        )
    return notes


def _final(
    request: Request,
    ledger: BundleLedger,
    evaluator: Evaluator,
    space: ToolSpace,
    progress: Progress,
) -> FinalStack | None:
    """The best bundle measured again as a whole and tool by tool; each comparison is kept at once,
    so that a study that is stopped here goes on here."""
    if progress.contender is None:
        return None
    evaluator.tell("measuring the best stack again, as a whole and without each tool")
    held = [Outcome.from_json(item) for item in ledger.held(FINISHING) or []]
    known = {(outcome.bundle, outcome.base): outcome for outcome in held}

    def evaluate(bundle: Bundle, base: Bundle) -> Outcome:
        if (bundle, base) not in known:
            known[bundle, base] = evaluator.evaluate(bundle, base)
            ledger.describe({FINISHING: [outcome.as_json() for outcome in known.values()]})
        return known[bundle, base]

    return finish(
        progress.contender.bundle,
        evaluate,
        lambda bundle: not space.why_illegal(bundle),
        request.threshold,
    )


def _result(
    request: Request,
    ledger: BundleLedger,
    folder: Path,
    baseline: Baseline,
    found: list[str],
    space: ToolSpace,
    progress: Progress,
    final: FinalStack | None,
    notes: list[str],
) -> ToolboxResult:
    """Writes files and gathers the result."""
    from studies.toolbox.plots import write_report
    from studies.toolbox.showcase import show_study

    files: list[Path] = [folder / "research_log.jsonl"]
    said: dict[str, str] = {}
    if final and final.proven:
        programs = write_artifact(
            folder, request.source, request.dtype, request.work, request.device, final.stack
        )
        files += programs
        stack = final.stack.as_json()
        ran = ledger.held("programs") or {}
        if ran.get("stack") != stack:
            said = {path.name: run_program(path, ARTIFACT_TOKENS) for path in programs[:2]}
            ran = {"stack": stack, "said": said}
            ledger.describe({"programs": ran})
        said = ran["said"]
    result = ToolboxResult(
        request=request,
        name=ledger.name,
        storage=ledger.storage,
        folder=folder,
        baseline=baseline,
        bottlenecks=found,
        refused=dict(space.refused),
        outcomes=tuple(progress.outcomes.values()),
        final=final,
        files=(*files, folder / "report.html", folder / "result.json"),
        programs_said=said,
        notes=(*notes, *([ledger.note] if ledger.note else [])),
    )
    write_report(folder / "report.html", result)
    content = result.as_json()
    write_atomically(folder / "result.json", to_json(content))
    ledger.describe({"kept": result.kept.as_json(), "gain": content["gain"], "notes": notes})
    show_study(ledger.board(folder.parent), result, notes, ledger.trials())
    return result


def _notes(request: Request, space: ToolSpace) -> list[str]:
    """What a reader must know of the study."""
    notes = [f"{name} is not tried: {reason}." for name, reason in space.refused.items()]
    if request.source.random_weights:
        notes.append("weights are random: speed is real, outputs mean nothing.")
    if request.source.kind == "factory":
        notes.append(f"the code of {request.source.text} was imported and run.")
    return notes


def launch_of(request: Request, folder: Path) -> Launch:
    """What the workers of a request share."""
    return Launch(
        source=asdict(request.source),
        dtype=request.dtype,
        device=request.device,
        work=request.work.as_json(),
        threads=request.threads,
        seed=request.seed,
        timeout_s=request.timeout_s,
        folder=folder,
    )


def study_inputs(request: Request) -> dict[str, Any]:
    """What decides what a trial means; how many there are and who proposes them does not."""
    apart = {"trials", "planner", "name", "timeout_s", "beside"}
    return request.model_dump(mode="json", exclude=apart) | {"model": request.source.text}


def environment() -> dict[str, str]:
    """Variables that steer torch and the GPU."""
    prefixes = (
        "PYTORCH_",
        "TORCH",
        "HIP_",
        "ROCM",
        "ROCR_",
        "CUDA_",
        "OMP_",
        "MKL_",
        "GPU_",
        "HSA_",
    )
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(prefixes)}


def check_torch() -> None:
    """Refuses to start without torch and transformers.

    Raises:
        InputError: one of them is missing.
    """
    import importlib.util

    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        raise InputError(
            f"the toolbox needs {' and '.join(missing)}; run: pip install 'foretune[toolbox]'."
        )


def _brief(outcome: Outcome) -> dict[str, Any]:
    """An outcome without its raw details."""
    content = outcome.as_json()
    details = content.pop("details")
    return content | {
        "proofs": details.get("proofs", {}),
        "measurement": {k: v for k, v in details.get("measurement", {}).items() if k != "seconds"},
        "compile": details.get("compile", {}),
    }
