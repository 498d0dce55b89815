"""The search benchmark: every method on every problem with the same seeds, as one JSON document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search import methods
from benchmarks.search.experts import EXPERTS, name_of
from benchmarks.search.hidden_truth import hidden_truths
from benchmarks.search.landscape import difficulty, landscape
from benchmarks.search.methods import Method, Run
from benchmarks.search.problem import Problem

BUDGET = 30
WITHIN = 0.02
NEAR, FAR = 0.05, 0.2
"""Log sd by which a source study differs from the task it warms."""
UNRELATED = 100_000
Advance = Callable[[str], None]


@dataclass(frozen=True)
class Trace:
    """One run of a method: regret after each evaluation, OOMs, CPU seconds."""

    regrets: tuple[float, ...]
    ooms: int
    cpu_s: float


def played(method: Method, problem: Problem, budget: int, memory_filter: bool, seed: int) -> Trace:
    """Runs a method and takes its time."""
    started = time.process_time()
    run: Run = method(problem, budget, memory_filter, seed)
    return Trace(tuple(run.regrets()), run.ooms, time.process_time() - started)


def at(regrets: Sequence[float], evaluations: int) -> float:
    """Regret after so many evaluations, or after all where there were fewer."""
    return regrets[min(evaluations, len(regrets)) - 1]


def mean_se(values: Iterable[float]) -> dict[str, float | int]:
    """Mean, standard error, median and count."""
    column = np.array(list(values), dtype=np.float64)
    spread = float(column.std(ddof=1) / np.sqrt(len(column))) if len(column) > 1 else 0.0
    return {
        "mean": float(column.mean()),
        "se": spread,
        "median": float(np.median(column)),
        "n": len(column),
    }


def summary(traces: Sequence[Trace], budget: int) -> dict[str, Any]:
    """Regret at 10, 20 and the budget, OOM share, shares within 2%, 5% and 10%, CPU."""
    final = np.array([at(trace.regrets, budget) for trace in traces])
    spent = [min(budget, len(trace.regrets)) for trace in traces]
    return {
        **{f"regret@{n}": mean_se(at(t.regrets, n) for t in traces) for n in (10, 20, budget)},
        "oom_share": float(np.mean([t.ooms / s for t, s in zip(traces, spent, strict=True)])),
        "within": {f"{w:.0%}": float((final <= w).mean()) for w in (0.02, 0.05, 0.10)},
        "cpu_s": float(np.mean([trace.cpu_s for trace in traces])),
    }


def _words(traces: Sequence[Trace]) -> str:
    value = mean_se(at(trace.regrets, BUDGET) for trace in traces)
    return f"{value['mean']:.1%} ± {value['se']:.1%}"


def paired(ours: Sequence[Trace], theirs: Sequence[Trace], budget: int) -> dict[str, Any]:
    """Difference of regret on the same problems: mean, standard error, wins."""
    difference = np.array(
        [at(a.regrets, budget) - at(b.regrets, budget) for a, b in zip(ours, theirs, strict=True)]
    )
    return {**mean_se(difference), "wins": int((difference < 0).sum())}


def related(relation: float) -> Callable[[Problem], Problem]:
    """A related task of a landscape: half the model, other tables by this log sd."""
    return lambda problem: landscape(problem.seed, relation)


def informed() -> dict[str, Method]:
    """PoolSampler with a source study or an expert of known quality."""
    return {
        "PoolSampler, warm": methods.pool_sampler(warm=methods.first_study(related(NEAR))),
        "PoolSampler, warm far": methods.pool_sampler(warm=methods.first_study(related(FAR))),
        "PoolSampler, worthless source": methods.pool_sampler(
            warm=methods.first_study(lambda p: landscape(p.seed + UNRELATED))
        ),
        "PoolSampler, good expert": methods.pool_sampler(methods.simulated_expert(0.8)),
        "PoolSampler, weak expert": methods.pool_sampler(methods.simulated_expert(0.5)),
        "PoolSampler, adversarial expert": methods.pool_sampler(methods.simulated_expert(-0.5)),
        **EXPERTS,
    }


def landscapes(seeds: Sequence[int], advance: Advance, only: Sequence[str] = ()) -> dict[str, Any]:
    """All methods on the synthetic tasks of some seeds, with and without the memory filter."""
    problems = [landscape(seed) for seed in seeds]
    tasks = [difficulty(problem) for problem in problems]
    content: dict[str, Any] = {
        "seeds": list(seeds),
        "budget": BUDGET,
        "tasks": {key: mean_se(task[key] for task in tasks) for key in tasks[0]},
    }
    for memory_filter in (True, False):
        chosen = dict(methods.PLAIN) | (informed() if memory_filter else {})
        chosen = {name: m for name, m in chosen.items() if not only or name in only}
        traces: dict[str, list[Trace]] = {}
        for name, method in chosen.items():
            traces[name] = [
                played(method, p, BUDGET, memory_filter, seed)
                for p, seed in zip(problems, seeds, strict=True)
            ]
            kind = "memory filter" if memory_filter else "black box"
            advance(f"landscape, {kind}, {name}: regret {_words(traces[name])}")
        ours = traces.get("PoolSampler")
        content["memory_filter" if memory_filter else "black_box"] = {
            name: summary(found, BUDGET)
            | ({"PoolSampler_minus_this": paired(ours, found, BUDGET)} if ours else {})
            for name, found in traces.items()
        }
    return content


def hidden(draws: int, advance: Advance, only: Sequence[str] = ()) -> dict[str, Any]:
    """All methods on the Mixtral study with draws of the surrogate as the truth."""
    known = methods.PLAIN | methods.TOLD
    chosen = {name: m for name, m in known.items() if not only or name in only}
    traces: dict[str, dict[str, list[Trace]]] = {"memory_filter": {}, "black_box": {}}
    start: list[float] = []
    believed: list[float] = []
    for problem in hidden_truths(draws):
        fitting = np.where(problem.memory <= 1.0, problem.speed, 0.0)
        believed.append(problem.regret(int(np.argmax(fitting))))
        start.append(problem.regret(problem.start))
        for kind, found in traces.items():
            for name, method in chosen.items():
                trace = played(method, problem, BUDGET, kind == "memory_filter", problem.seed)
                found.setdefault(name, []).append(trace)
        told = ", ".join(f"{n} {_words(found)}" for n, found in traces["memory_filter"].items())
        advance(f"hidden truth {problem.seed + 1} of {draws}: {told}")
    return {
        "draws": draws,
        "budget": BUDGET,
        "start_regret": mean_se(start),
        "believed_best_regret": mean_se(believed),
        **{
            kind: {name: summary(found, BUDGET) for name, found in by.items()}
            for kind, by in traces.items()
        },
    }


def replayed(
    problems: Sequence[Problem], seeds: Sequence[int], advance: Advance, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Evaluations until within 2% of the best of each measured set, by method."""
    chosen = {name: m for name, m in methods.PLAIN.items() if not only or name in only}
    needed: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in chosen} for kind in ("memory_filter", "black_box")
    }
    sets = []
    for problem in problems:
        entry: dict[str, Any] = {"name": problem.name, "configs": len(problem)}
        for kind, by in needed.items():
            for name, method in chosen.items():
                counts = [
                    until_within(method(problem, len(problem), kind == "memory_filter", s), problem)
                    for s in seeds
                ]
                by[name].append(float(np.mean(counts)))
                entry.setdefault(kind, {})[name] = float(np.mean(counts))
        sets.append(entry)
        told = ", ".join(f"{n} {count:.1f}" for n, count in entry["memory_filter"].items())
        advance(f"replay of {len(problem)} configs: evaluations {told}")
    share = {
        kind: {
            name: mean_se(
                count / len(problem) for count, problem in zip(counts, problems, strict=True)
            )
            for name, counts in by.items()
        }
        for kind, by in needed.items()
    }
    total = {
        kind: {name: mean_se(counts) for name, counts in by.items()} for kind, by in needed.items()
    }
    return {
        "seeds": list(seeds),
        "surrogate": "fitted without the Folds of the set",
        "evaluations": total,
        "share_of_set": share,
        "sets": sets,
    }


def until_within(run: Run, problem: Problem) -> int:
    """Evaluations until a config within 2% of the best was run; one more than all if never."""
    for count, regret in enumerate(run.regrets(), 1):
        if regret <= WITHIN:
            return count
    return len(problem) + 1


def verdicts(content: dict[str, Any]) -> dict[str, bool]:
    """Whether each target is met; targets of parts that were not run are left out."""
    found: dict[str, bool] = {}
    if "landscape" in content:
        by = content["landscape"]["memory_filter"]
        final = f"regret@{BUDGET}"
        if "PoolSampler" in by:
            ours = by["PoolSampler"]
            found["mean regret at 30 <= 8%"] = ours[final]["mean"] <= 0.08
            found["OOM share <= 10%"] = ours["oom_share"] <= 0.10
            if "analytic top-k" in by:
                against = by["analytic top-k"]["PoolSampler_minus_this"]
                found["not worse than analytic top-k"] = against["mean"] <= against["se"]
        found |= expert_verdicts(by)
        if "PoolSampler, warm" in by:
            found["mean regret at 30, warm, <= 6%"] = by["PoolSampler, warm"][final]["mean"] <= 0.06
    if "hidden_truth" in content:
        for kind, words in (("memory_filter", ", memory filter"), ("black_box", "")):
            ours = content["hidden_truth"][kind].get("PoolSampler")
            if ours:
                target = f"regret <= 2% in 90% of the draws{words}"
                found[target] = ours["within"]["2%"] >= 0.9
    return found


def expert_verdicts(by: dict[str, Any]) -> dict[str, bool]:
    """Whether experts in the place of the LLM help and do no harm, as far as they were run."""
    gains = {
        quality: by[name_of(quality, "")]["PoolSampler_minus_this"]
        for quality in ("good", "weak", "adversarial")
        if name_of(quality, "") in by and "PoolSampler" in by
    }
    found = {}
    if "good" in gains:
        found["a good expert as the LLM gains >= 3 points"] = gains["good"]["mean"] >= 0.03
    if "weak" in gains:
        found["a weak one does not hurt"] = gains["weak"]["mean"] >= -gains["weak"]["se"]
    if "adversarial" in gains:
        found["an adversarial one costs <= 2 points"] = gains["adversarial"]["mean"] >= -0.02
    return found
