"""The search benchmark as a page: what was compared, the numbers, which targets are met."""

from __future__ import annotations

from typing import Any

KINDS = {"memory_filter": "with the memory filter", "black_box": "memory only learned"}


def page(content: dict[str, Any], command: str, date: str) -> str:
    """Markdown of a benchmark's JSON."""
    lines = ["# Search benchmark", "", f"Generated on {date} by `{command}`; do not edit.", ""]
    lines.append(
        "Regret is the percentage below the best config that fits, of the config that was measured "
        "fastest; ± is the standard error; an OOM costs an evaluation. TPE and GPSampler are "
        "snapped to the nearest legal candidate that is still open."
    )
    if "landscape" in content:
        lines += _landscape(content["landscape"])
    if "hidden_truth" in content:
        lines += _hidden(content["hidden_truth"])
    if "replay" in content:
        lines += _replay(content["replay"])
    lines += ["", "## Targets", ""]
    lines += [
        f"* {'met' if met else '**missed**'}: {name}" for name, met in content["targets"].items()
    ]
    return "\n".join(lines) + "\n"


def _landscape(part: dict[str, Any]) -> list[str]:
    tasks = part["tasks"]
    lines = [
        "",
        f"## Synthetic tasks ({len(part['seeds'])} seeds, {part['budget']} evaluations)",
        "",
        f"Each seed is another task: {tasks['candidates']['mean']:,.0f} legal candidates, "
        f"{tasks['oom_share']['mean']:.0%} of them OOM, {tasks['within_2%']['mean']:.1f} within 2% "
        f"of the best and {tasks['within_5%']['mean']:.1f} within 5%; the believed physics has a "
        f"rank correlation of {tasks['spearman']['mean']:.2f} with the truth, the memory filter "
        f"excludes the best in {tasks['optimum_filtered']['mean']:.0%} of the tasks.",
    ]
    for kind, words in KINDS.items():
        lines += ["", f"### {words}", "", *_table(part[kind], part["budget"])]
    return lines


def _hidden(part: dict[str, Any]) -> list[str]:
    believed = part["believed_best_regret"]
    lines = [
        "",
        f"## Mixtral 8x22B with a hidden truth ({part['draws']} draws)",
        "",
        "Draws of the surrogate's uncertainty are the truth; all methods know the mean projection "
        "alone. PoolSampler expects each part of a step and each config to be off by assumed "
        "round amounts; the variants show what it makes of the axes alone, and of the posterior "
        "itself. Its priors were chosen on other draws. The config believed best is "
        f"{believed['mean']:.1%} ± {believed['se']:.1%} below the best.",
    ]
    for kind, words in KINDS.items():
        lines += ["", f"### {words}", "", *_table(part[kind], part["budget"])]
    return lines


def _table(by: dict[str, Any], budget: int) -> list[str]:
    columns = [f"regret@{n}" for n in (10, 20, budget)]
    ours = any("PoolSampler_minus_this" in found for found in by.values())
    head = ["method", "n", *columns, "median", "within 2%", "OOM", "CPU s a run"]
    if ours:
        head.insert(6, "PoolSampler less this")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, found in by.items():
        final = found[columns[-1]]
        cells = [name, str(final["n"]), *(_percent(found[column]) for column in columns)]
        cells += [f"{final['median']:.1%}", f"{found['within']['2%']:.0%}"]
        cells += [f"{found['oom_share']:.0%}", f"{found['cpu_s']:.2f}"]
        if ours:
            cells.insert(6, _percent(found["PoolSampler_minus_this"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _replay(part: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"## Measured tables ({len(part['sets'])} sets)",
        "",
        "Evaluations until a config within 2% of the best of the set was run; the surrogate was "
        f"{part['surrogate']}.",
        "",
        "| method | with the memory filter | memory only learned | share of the set |",
        "|---|---|---|---|",
    ]
    for name, found in part["evaluations"]["memory_filter"].items():
        other = part["evaluations"]["black_box"][name]
        share = part["share_of_set"]["black_box"][name]["mean"]
        lines.append(
            f"| {name} | {found['mean']:.1f} ± {found['se']:.1f} | "
            f"{other['mean']:.1f} ± {other['se']:.1f} | {share:.0%} |"
        )
    return lines


def _percent(value: dict[str, Any]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * value['se']:.1f}"
