"""The accuracy page: the JSON of ``foretune bench surrogate`` as a table for people."""

from __future__ import annotations

from typing import Any

from specs.figures import percent

WORST = 12
FOLDS = {
    "source_fold": "source x model x GPU",
    "fold": "publisher x model x GPU",
}
"""Name of a kind of Fold in the JSON -> in words."""
WHOLE = {"model": "model", "source": "publisher", "gpu": "GPU", "framework": "framework"}
"""Name of what is left out as a whole in the JSON -> in words."""


def summary_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """(line, value) of every headline."""
    folds = content["folds"]
    rows = []
    for name, words in FOLDS.items():
        rows += _left_out_rows(words, folds[name])
    for name, words in WHOLE.items():
        found = folds[name]["zero_shot"]
        rows.append((f"throughput, {words} left out", _pair_with_interval(found)))
    groups = folds["fold"]["groups"]
    if groups["n"]:
        rows.append(
            (
                f"first choice's regret / Kendall tau in {groups['n']} ComparisonSets",
                f"{groups['top1_regret']:.1%} / {groups['kendall_tau']:.2f}",
            )
        )
    for name, found in folds["fold"].get("ablations", {}).items():
        rows.append((f"ablation, {name.replace('_', ' ')}", _pair(found)))
    rows += _memory_rows(content["memory"])
    if "zero_shot" in content["vtrain"]:
        told = content["vtrain"]
        after = told["after_8_runs"]
        rows.append(
            (
                f"vTrain multi-node ({told['n']} runs), none seen: MAPE / median",
                _pair(told["zero_shot"]),
            )
        )
        rows.append(("  after 8 of them", f"{after['mape']:.1%} +- {after['sd']:.1%}"))
    rows += _beside_rows(content["beside"])
    return rows + _kernel_rows(content["kernels"])


def _left_out_rows(words: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Errors with Folds left out, zero-shot and after runs of them."""
    zero = found["zero_shot"]
    rows = [(f"throughput, {words} left out: MAPE / median", _pair(zero))]
    for name in ("dense", "moe"):
        rows.append((f"  {name}", _pair_with_interval(zero[name])))
    rows += [(f"  {name}", _pair(zero[name])) for name in ("nvidia", "amd")]
    for runs in (1, 3, 8):
        rows += _calibrated_rows(runs, found[f"after_{runs}"])
    return rows


def _beside_rows(beside: dict[str, Any]) -> list[tuple[str, str]]:
    """Runs published for their memory: how a run of an untold cluster or trainer fares."""
    words = {
        "others": "throughput of runs published for their memory, none learned from",
        "trainers": "  of Transformers trainers, which set four constants",
    }
    return [
        (
            f"{said} ({beside[name]['n']} runs)",
            f"{_pair(beside[name])}; in the 90% interval {beside[name]['coverage90']:.0%}",
        )
        for name, said in words.items()
        if beside["n"] and beside[name]["n"]
    ]


def _calibrated_rows(runs: int, after: dict[str, Any]) -> list[tuple[str, str]]:
    """Errors after runs of the Fold were told, beside those of the same rows before."""
    if not after["n"]:
        return []
    words = f"after {runs} run{'s' if runs > 1 else ''} of the Fold"
    rows = [(f"{words} ({after['folds']} Folds, before: {after['mape_before']:.1%})", _pair(after))]
    for name in ("dense", "moe"):
        found = after[name]
        if found["n"]:
            rows.append(
                (
                    f"  {name} (before: {found['mape_before']:.1%})",
                    _pair_with_interval(found),
                )
            )
    return rows


MEMORY_PARTS = {
    "stated": "all that decides it is stated",
    "unstated": "recomputation, microbatch, sharding, counter or rank is not stated",
}


def _memory_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, found in memory.items():
        rows.append((f"memory, {name} left out: MAPE / median", _pair(found)))
        rows += [
            (f"  {words} ({found[part]['n']} runs)", _pair(found[part]))
            for part, words in MEMORY_PARTS.items()
            if found[part]["n"]
        ]
        rows += [
            (
                f"  {vendor}: more than 10% too low; in the 90% interval",
                f"{found[vendor]['unsafe']:.1%}; {found[vendor]['coverage90']:.0%}",
            )
            for vendor in ("nvidia", "amd")
            if found[vendor]["n"]
        ]
        failed = found["out_of_memory"]
        rows.append(
            (
                f"  of {failed['n']} runs out of memory: projected to fit; with P(fits) over 90%",
                f"{failed['called_fitting']}; {failed['surely']}",
            )
        )
    return rows


def _kernel_rows(kernels: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, words in (("shapes_left_out", "shapes left out"), ("gpu_left_out", "GPU left out")):
        for operator, found in kernels.get(key, {}).items():
            best = min(found["law"]["median_ape"], found["corrected"]["median_ape"])
            rows.append((f"kernels, {operator}, {words}: median", f"{best:.1%}"))
    return rows


def accuracy_page(content: dict[str, Any], date: str) -> str:
    """The page as Markdown, dated."""
    lines = [
        "# Accuracy",
        "",
        f"Generated on {date} by `foretune bench surrogate --data DIR --page FILE` from "
        f"{content['runs']:,} measured runs; do not edit.",
        "",
        "Errors are absolute percentage errors on runs that nothing was learned from: whole groups "
        "are left out and everything is learned again. A source is a table or page as the run "
        "cites it; a publisher is all its releases, so that leaving out publisher x model x GPU is "
        "stricter: no other release of the same repository tells of the model. Folds weigh "
        "equally where runs of them are revealed first. An interval is told by the share of runs "
        "in the 90% interval, learned from other groups, and its mean half-width. Identical "
        "stated layouts differ by 1.7% (dense) and 5.1% (MoE) in the median: less is noise.",
        "",
        "| what | value |",
        "|---|---|",
        *(f"| {line.strip()} | {value} |" for line, value in summary_rows(content)),
        "",
        "## Worst Folds",
        "",
        "| Fold | runs | MAPE | bias |",
        "|---|---|---|---|",
    ]
    for fold in content["folds"]["fold"].get("worst_folds", [])[:WORST]:
        name = fold["fold"].replace(" | ", ", ")
        bias = percent(fold["bias"], signed=True, digits=0)
        lines.append(f"| {name} | {fold['n']} | {fold['mape']:.0%} | {bias} |")
    lines += [
        "",
        "What they have in common: MoE models, or rows that state little of their software. "
        "Releases of one framework differ by up to two times at one layout; dispatcher, grouped "
        "GEMM kernel, CUDA graph scope and capacity factor are often not stated. One to three "
        "measured runs of the key (`foretune calibrate`) take most of that away.",
        "",
        "Runs published for their memory are the hardest test: other trainers, clusters whose "
        "network is not told, debugging runs of a few steps. Intervals are as wide as public "
        "benchmarks of tuned runs need them, and too narrow there: calibrate.",
        "",
    ]
    return "\n".join(lines)


def _pair_with_interval(found: dict[str, Any]) -> str:
    """MAPE and median, coverage and half-width of the 90% interval."""
    if found["mape"] is None:
        return "no runs"
    return f"{_pair(found)}; interval {found['coverage90']:.0%}, {found['half_width90']:.0%}"


def _pair(found: dict[str, Any]) -> str:
    if found["mape"] is None:
        return "no runs"
    return f"{found['mape']:.1%} / {found['median_ape']:.1%}"
