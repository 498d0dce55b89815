"""``python -m benchmarks.measured``: what the ground truth says of projections and of the search.

Prints JSON; ``--page docs/measured_truth.md`` writes the page with its picture beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import errors
from benchmarks.measured.page import page
from benchmarks.measured.picture import learning_curves
from benchmarks.measured.replay import SEEDS, replayed
from benchmarks.measured.truth import ENVIRONMENT, Truth, truths
from specs.profile_rows import read_profile


def judged(name: str, truth: Truth, seeds: int) -> dict[str, Any]:
    """Everything about one study."""
    path = errors.profile_file(name)
    learned = errors.after_profile(truth, read_profile(path))
    return {
        "configs": len(truth),
        "rounds": truth.speed.shape[1],
        "speed": {
            "slowest": float(truth.mean.min()),
            "fastest": float(truth.mean.max()),
            "spread_median": float(np.median(truth.spread)),
            "spread_p90": float(np.quantile(truth.spread, 0.9)),
        },
        "out_of_memory": int(truth.out_of_memory.sum()),
        "before_profile": errors.zero_shot(truth, truth.job.belief),
        "after_profile": errors.zero_shot(truth, learned),
        "by_seconds": [[x, found] for x, found in errors.by_minutes(truth, path)],
        "by_runs": {str(k): errors.after_runs(truth, learned, k) for k in errors.RUNS},
        "memory_by_runs": {
            str(k): errors.memory_after_runs(truth, learned, k) for k in errors.RUNS
        },
        "search": replayed(truth, learned, seeds),
    }


def main() -> int:
    """Judges, prints, and writes the page where one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    content: dict[str, Any] = {
        "environment": json.loads(ENVIRONMENT.read_text(encoding="utf-8")),
        "studies": {name: judged(name, truth, options.seeds) for name, truth in truths().items()},
    }
    print(json.dumps(content, indent=1))
    if options.page is not None:
        studies = content["studies"]
        picture = options.page.with_suffix(".svg")
        curves = learning_curves(
            {n: [(x, e["mape"]) for x, e in s["by_seconds"]] for n, s in studies.items()},
            {n: [(int(k), e["mape"]) for k, e in s["by_runs"].items()] for n, s in studies.items()},
            "Mean error of projected throughput on configs that were not run",
        )
        picture.write_text(curves, encoding="utf-8")
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        options.page.write_text(page(content, picture.name, date), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
