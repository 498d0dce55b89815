"""Fits the kernel laws to profiles: ``python -m surrogate.kernels.fitting --profiles DIR``.

Writes ``kernels.json`` (constants per GPU and format, data sheets, sources, data hash) and, beside
it, ``kernel_corrections.json.gz``. Deterministic: the same data give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from specs import catalog
from specs.errors import InputError
from surrogate.constants import write_json
from surrogate.kernels import profiles
from surrogate.kernels.amd import fit_amd, read_rows
from surrogate.kernels.constants import KERNELS, KernelBook
from surrogate.kernels.correction import Correction, features_of, fit_correction
from surrogate.kernels.laws import LAWS
from surrogate.kernels.profiles import Columns
from surrogate.kernels.regression import fit_operator, select
from surrogate.kernels.sheets import KernelSheet, sheet_of
from surrogate.kernels.transfer import ONSET_PRIOR, fit_onset

READERS: dict[str, Callable[[Path], Columns]] = {
    "gemm": profiles.read_gemm,
    "attention": profiles.read_attention,
    "moe": profiles.read_moe,
    "collective": profiles.read_collectives,
    "dispatch": profiles.read_dispatch,
}

AMD_SOURCES = (
    "rocm-blogs measuring-max-achievable-flops-part2, cdna4-gemm-kernels, mi300x-rccl-xgmi; "
    "samuel-bohman/AI-benchmarking-guide ND_MI300X_v5_results; MI350X Training Benchmark Results; "
    "AMD-AGI/Primus-Turbo README_Mega_MoE; AMD-AGI/TraceLens llama_70b_fsdp"
)


def sheets_of(names: Iterable[str]) -> tuple[dict[str, KernelSheet], list[str]]:
    """Data sheets by profile name, and the names that the catalog does not know."""
    sheets: dict[str, KernelSheet] = {}
    unknown = []
    for name in sorted(set(names)):
        try:
            sheets[name] = sheet_of(catalog.gpu(name))
        except InputError:
            unknown.append(name)
    return sheets, unknown


def read_tables(folder: Path) -> dict[str, Columns]:
    """Every profile table of the folder, by operator."""
    return {operator: read(folder) for operator, read in READERS.items()}


def fit_laws(
    tables: Mapping[str, Columns], sheets: Mapping[str, KernelSheet], onset: float | None = None
) -> tuple[dict[str, dict[str, dict[str, dict[str, float]]]], float]:
    """Operator -> key -> GPU -> values for all GPUs of ``sheets``, and the onset of throttling.

    The onset is fitted to the GEMMs unless it is given.
    """
    if onset is None:
        first = fit_operator(LAWS["gemm"], tables["gemm"], sheets, ONSET_PRIOR[0])
        onset = fit_onset(first, sheets)
    fitted = {
        operator: fit_operator(LAWS[operator], columns, sheets, onset)
        for operator, columns in tables.items()
    }
    return fitted, onset


def fit_corrections(
    tables: Mapping[str, Columns],
    fitted: Mapping[str, Mapping[str, Mapping[str, dict[str, float]]]],
    sheets: Mapping[str, KernelSheet],
) -> dict[str, Correction]:
    """Operator -> trees for what the fitted laws leave."""
    corrections = {}
    for operator, columns in tables.items():
        law = LAWS[operator]
        features, ratios = [], []
        for key, by_gpu in fitted[operator].items():
            for name, values in by_gpu.items():
                at = (columns[law.key_column] == key) & (columns["gpu"] == name)
                rows = select(columns, at)
                constants = law.build(sheets[name], key, values)
                features.append(features_of(operator, rows, sheets[name], key))
                ratios.append(np.log(rows["time_s"] / law.time(rows, constants, key)))
        if features:
            corrections[operator] = fit_correction(
                operator, np.concatenate(features), np.concatenate(ratios)
            )
    return corrections


def fit_book(folder: Path, amd: Path | None) -> tuple[KernelBook, dict[str, Correction]]:
    """Constants of all GPUs of the profiles and of AMD's from their published rows."""
    tables = read_tables(folder)
    sheets, unknown = sheets_of(tables["gemm"]["gpu"].tolist())
    if unknown:
        raise InputError(
            f"the catalog has no GPU {', '.join(unknown)} of {folder}; add it to specs/catalog."
        )
    fitted, onset = fit_laws(tables, sheets)
    corrections = fit_corrections(tables, fitted, sheets)
    rows = {
        operator: {
            key: {
                name: int(
                    np.sum((columns[LAWS[operator].key_column] == key) & (columns["gpu"] == name))
                )
                for name in by_gpu
            }
            for key, by_gpu in fitted[operator].items()
        }
        for operator, columns in tables.items()
    }
    sources = {"profiles": profiles.PROFILE_SOURCE}
    if amd is not None:
        targets = {
            name: sheet_of(catalog.gpu(name))
            for name in catalog.gpu_names()
            if catalog.gpu(name).vendor == "amd"
        }
        amd_fitted, counts = fit_amd(fitted, read_rows(amd), sheets, targets, onset)
        for operator, table in amd_fitted.items():
            for key, by_gpu in table.items():
                fitted[operator][key].update(by_gpu)
                rows[operator][key].update(counts[operator][key])
        sheets = {**sheets, **targets}
        sources["amd"] = AMD_SOURCES
    book = KernelBook(
        operators=fitted,
        sheets=sheets,
        onset=onset,
        rows=rows,
        data_hash=profiles.data_hash(folder),
        sources=sources,
    )
    return _rounded(book), corrections


def _rounded(book: KernelBook) -> KernelBook:
    """Six digits: more would be noise of the optimiser."""
    operators = {
        operator: {
            key: {
                name: {field: float(f"{value:.6g}") for field, value in values.items()}
                for name, values in by_gpu.items()
            }
            for key, by_gpu in table.items()
        }
        for operator, table in book.operators.items()
    }
    return KernelBook(operators, book.sheets, book.onset, book.rows, book.data_hash, book.sources)


def write(book: KernelBook, corrections: Mapping[str, Correction], out: Path) -> None:
    """Writes both files; the corrections lie beside ``out``."""
    write_json(out, book.as_json())
    models = {name: correction.as_json() for name, correction in sorted(corrections.items())}
    text = json.dumps(models, sort_keys=True, separators=(",", ":")).encode()
    target = out.with_name("kernel_corrections.json.gz")
    partial = target.with_suffix(".part")
    partial.write_bytes(gzip.compress(text, 9, mtime=0))
    partial.replace(target)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code (2: bad input)."""
    parser = argparse.ArgumentParser(
        prog="python -m surrogate.kernels.fitting", description=__doc__
    )
    parser.add_argument("--profiles", type=Path, required=True, help="folder of Parquet profiles")
    parser.add_argument("--amd", type=Path, help="CSV of published AMD kernel measurements")
    parser.add_argument("--out", type=Path, default=KERNELS)
    options = parser.parse_args(arguments)
    try:
        book, corrections = fit_book(options.profiles, options.amd)
        write(book, corrections, options.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {options.out} and its corrections", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
