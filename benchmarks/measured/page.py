"""The ground truth's verdicts as a page."""

from __future__ import annotations

from typing import Any


def page(content: dict[str, Any], picture: str, date: str) -> str:
    """Markdown of the benchmark's JSON."""
    command = "python -m benchmarks.measured --page docs/measured_truth.md"
    about = content["environment"]
    lines = [
        "# The measured loop against the truth",
        "",
        f"Generated on {date} by `{command}`; do not edit.",
        "",
        "Every config of two small spaces was really run on two processes of one CPU node, in "
        f"interleaved rounds: {about['machine']}, PyTorch {about['torch']}, gloo. The data are "
        "`benchmarks/measured/data/`. Errors are |projected / measured - 1|.",
        "",
        f"![Learning curves]({picture})",
    ]
    for name, study in content["studies"].items():
        lines += ["", f"## {name}", "", *_study(study)]
    return "\n".join(lines) + "\n"


def _study(s: dict[str, Any]) -> list[str]:
    speed, found = s["speed"], s["search"]
    lines = [
        f"{s['configs']} configs, {s['rounds']} rounds each: {speed['slowest']:,.0f} to "
        f"{speed['fastest']:,.0f} tokens/s/GPU. The rounds of a config differ by "
        f"{speed['spread_median']:.1%} (median), {speed['spread_p90']:.1%} (90th percentile). "
        + (
            f"{s['out_of_memory']} configs run out of the memory limit."
            if s["out_of_memory"]
            else "None runs out of memory."
        ),
        "",
        "| throughput | mean error | median error | bias | 90% intervals hold | half width | "
        "Kendall's tau |",
        "|---|---|---|---|---|---|---|",
        _row("data sheet alone", s["before_profile"]["speed"]),
        _row("after profiling", s["after_profile"]["speed"]),
        *(
            _row(f"after {k} run{'s' if k != '1' else ''}", entry)
            for k, entry in s["by_runs"].items()
            if k != "0"
        ),
        "",
        "| peak memory | mean error | median error | bias |",
        "|---|---|---|---|",
        _memory("device, no run", s["after_profile"]["device"]),
        _memory("allocated, no run", s["after_profile"]["allocated"]),
        *(
            _memory(f"allocated, after {k} run{'s' if k != '1' else ''}", entry)
            for k, entry in s["memory_by_runs"].items()
            if k != "0"
        ),
        "",
        f"Runs until one of a config within 2% of the best, over {found['seeds']} seeds "
        f"({found['within_2_percent']} of {found['configs']} configs within 2%; the config "
        f"believed best is {found['believed_best_regret']:.1%} below the best, the baseline "
        f"{found['start_regret']:.1%}). Coordinate descent and PoolSampler begin with the "
        "baseline, which counts; the others do not. Seeds also decide which round of a config "
        "answers.",
        "",
        "| method | mean | median | 90th percentile |",
        "|---|---|---|---|",
    ]
    for name, entry in sorted(found["runs"].items(), key=lambda item: item[1]["mean"]):
        spread = f"{entry['mean']:.1f} ± {entry['se']:.1f}"
        lines.append(f"| {name} | {spread} | {entry['median']:.0f} | {entry['p90']:.0f} |")
    return lines


def _row(name: str, entry: dict[str, float]) -> str:
    return (
        f"| {name} | {entry['mape']:.1%} | {entry['median_ape']:.1%} | {entry['bias']:+.1%} | "
        f"{entry['coverage90']:.0%} | {entry['half_width90']:.0%} | {entry['kendall_tau']:.2f} |"
    )


def _memory(name: str, entry: dict[str, float]) -> str:
    return f"| {name} | {entry['mape']:.1%} | {entry['median_ape']:.1%} | {entry['bias']:+.1%} |"
