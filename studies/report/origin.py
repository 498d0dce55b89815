"""The origin: where every constant comes from, and how to get this report again."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from importlib import metadata

from specs.config import ConfigTable
from specs.gpu import Gpu
from specs.provenance import Quantity
from studies.report.facts import StudyFacts
from studies.report.html import Markup, folded, join, paragraphs, table, tag
from surrogate.constants import Constant, ConstantFile, shipped_constants
from surrogate.kernels.constants import kernel_constants, shipped_book
from surrogate.learned import SHIPPED
from surrogate.memory_constants import FRAMEWORKS, VENDORS
from surrogate.time_constants import RateDesign

PACKAGES = ("foretune", "optuna", "numpy", "scipy", "plotly")


def provenance_section(facts: StudyFacts) -> Markup:
    """Every constant that the projections of this study use, with its source."""
    job = facts.job
    gpu, stack = job.cluster.gpu, job.experiment.stack
    cases = job.cases(ConfigTable.from_configs([facts.best.config]))
    design = RateDesign(cases, only=job.belief.constants.log_values)  # type: ignore[arg-type]
    learned = ConstantFile.model_validate(json.loads(SHIPPED.read_bytes())["constants"])
    time = [(name, learned.constants[name]) for name in design.names if name in learned.constants]
    memory = shipped_constants("memory_constants")
    here = {FRAMEWORKS[int(stack.framework)], gpu.vendor, stack.framework_name}
    named = {*FRAMEWORKS, *VENDORS}
    held = [
        (name, constant)
        for name, constant in memory.constants.items()
        if "/" not in name
        or set(name.split("/")[1:]) & here
        or not set(name.split("/")[1:]) & named
    ]
    kernels = kernel_constants(gpu)
    book = shipped_book()
    origin = [
        (operator, key, "fitted to its profiles" if how == "fitted" else "carried from its kin")
        for operator, keys in sorted(kernels.origin.items())
        for key, how in sorted(keys.items())
    ]
    return join(
        [
            paragraphs(
                "Measured and fitted numbers come from public runs and profiles, vendor numbers "
                "from data sheets, assumed ones are said to be so. A fitted constant is shown with "
                "what was believed before."
            ),
            folded(
                f"{gpu.name}: data sheet",
                table(
                    f"Numbers of the {gpu.name}",
                    ("number", "value", "kind", "source"),
                    [(n, f"{q.value:.6g}", q.kind, q.source) for n, q in quantities(gpu)],
                    numeric=(1,),
                ),
            ),
            folded(
                f"Kernels: {len(origin)} laws",
                table("Kernel laws of this GPU", ("operator", "kind", "origin"), origin),
                paragraphs(
                    f"Profiles: {'; '.join(book.sources.values())}. Data {book.data_hash[:16]}."
                ),
            ),
            folded(
                f"Time: {len(time)} constants",
                _constants("Constants of the time model", time),
                paragraphs(f"Fitted to {learned.fitted_on}, data {learned.data_hash[:16]}."),
            ),
            folded(
                f"Memory: {len(held)} constants",
                _constants("Constants of the memory model", held),
                paragraphs(f"Fitted to {memory.fitted_on}, data {memory.data_hash[:16]}."),
            ),
        ]
    )


def quantities(gpu: Gpu) -> Iterator[tuple[str, Quantity]]:
    """Every number of a GPU by name."""
    for name in type(gpu).model_fields:
        held = getattr(gpu, name)
        if isinstance(held, Quantity):
            yield name, held
        elif isinstance(held, dict):
            yield from ((f"{name} {key}", item) for key, item in held.items())


def _constants(caption: str, constants: Iterable[tuple[str, Constant]]) -> Markup:
    rows = [
        (
            tag("code", name),
            f"{constant.value:.4g}",
            constant.unit,
            constant.kind,
            "" if constant.prior is None else f"{constant.prior:.4g}",
            constant.source,
        )
        for name, constant in constants
    ]
    header = ("constant", "value", "unit", "kind", "before the data", "source")
    return table(caption, header, rows, numeric=(1, 4))


def reproduce_section(facts: StudyFacts, command: str) -> Markup:
    """The commands, versions and hashes behind this report."""
    job, inputs = facts.job, facts.inputs
    workload, stack = job.experiment.workload, job.experiment.stack
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    rows = [
        ("study", facts.name),
        ("storage", facts.storage),
        (
            "workload",
            f"{workload.model.name}, {workload.model.total_parameters() / 1e9:.1f} B parameters, "
            f"sequence {workload.seq_len:,}, global batch {workload.global_batch_size:,}, "
            f"{workload.kind.label}, routing imbalance {workload.routing_imbalance:g}",
        ),
        ("cluster", job.cluster.shape),
        ("stack", f"{stack.framework_name} {stack.version}".strip()),
        ("oracle", str(inputs.get("oracle", ""))),
        ("seed", str(inputs.get("seed", ""))),
        ("constants", str(inputs.get("surrogate", ""))),
        ("versions", f"Python {platform.python_version()}, {versions}"),
    ]
    return join(
        [
            paragraphs(
                "The same input, seed and constants give the same trials. The study keeps all its "
                "inputs, so this report can be made again from its storage alone:"
            ),
            tag("pre", tag("code", command), tabindex="0"),
            table("What was run", ("what", "value"), rows),
        ]
    )
