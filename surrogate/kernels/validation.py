"""How well kernel times are known: whole shapes left out, and whole GPUs left out.

``gpu_left_out`` is the figure for hardware that was never profiled: constants come from the data
sheet and from the other GPUs, trees from the other GPUs. ``family_left_out`` also takes away the
GPU's siblings (all Blackwells for a Blackwell): the figure for a new generation.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.errors import InputError
from surrogate.kernels.constants import KernelBook, constants_of, shipped_book, shipped_corrections
from surrogate.kernels.correction import Correction
from surrogate.kernels.fitting import READERS, fit_corrections, fit_laws, sheets_of
from surrogate.kernels.laws import LAWS, Law
from surrogate.kernels.profiles import Columns, read_mla_module
from surrogate.kernels.regression import select, subsample
from surrogate.kernels.sheets import KernelSheet
from surrogate.kernels.transfer import SAME_FAMILY_WEIGHT, carried, kinship
from surrogate.kernels.utilisation import attention_forward_time_s, elementwise_time_s, gemm_time_s

HELD_OUT_SHARE = 5
"""One shape in five is left out, the same on every GPU and in every format."""

JUDGED_ROWS = 20_000
"""Rows judged per GPU and key, evenly spaced."""

_MLA = "mla_forward_module.parquet"

_FILES = {
    "gemm": "gemm.parquet",
    "attention": "attention_forward.parquet",
    "moe": "moe_forward.parquet",
    "collective": "collectives.parquet",
    "dispatch": "deepep.parquet",
}

Errors = dict[tuple[str, str], npt.NDArray[np.float64]]
"""(GPU, key) -> projected over measured time, minus one."""


def kernel_table(folder: Path, operators: tuple[str, ...] = tuple(READERS)) -> dict[str, Any]:
    """Errors of the kernel laws on the profiles of a folder.

    Returns:
        ``shapes_left_out`` and ``gpu_left_out``, each operator -> ``law`` and ``corrected`` ->
        ``{n, median_ape, p90_ape, bias, by_gpu{...}, by{gpu/key: median_ape}}`` (fractions);
        ``family_left_out`` has GEMMs alone; ``mla_module`` is one such summary for whole
        attention modules, added up from the laws;
        ``skipped`` says what was not judged and why.

    Raises:
        InputError: the folder has none of the profiles.
    """
    tables = {
        name: READERS[name](folder) for name in operators if (folder / _FILES[name]).is_file()
    }
    if not tables:
        raise InputError(
            f"{folder} has no profiles; expected at least one of {', '.join(_FILES.values())}."
        )
    names = {name for columns in tables.values() for name in columns["gpu"].tolist()}
    sheets, unknown = sheets_of(names)
    if not sheets:
        raise InputError(
            f"the catalog has none of the GPUs of {folder} ({', '.join(unknown)}); "
            "add one to specs/catalog."
        )
    skipped = [f"{name}: the catalog has no such GPU" for name in unknown]
    skipped += [f"{name}: no {_FILES[name]}" for name in operators if name not in tables]
    gemm = {name: columns for name, columns in tables.items() if name == "gemm"}
    return {
        "shapes_left_out": _report(*_shapes_left_out(tables, sheets)),
        "gpu_left_out": _report(*_gpus_left_out(tables, sheets)),
        "family_left_out": _report(*_gpus_left_out(gemm, sheets, siblings=False)),
        "mla_module": _composed_mla(folder, sheets),
        "skipped": skipped,
    }


def _composed_mla(folder: Path, sheets: Mapping[str, KernelSheet]) -> dict[str, Any] | None:
    """MLA modules of DeepSeek-V3 added up from the shipped laws; nothing is fitted to them.

    Sizes from the model's config.json: hidden 7168, query rank 1536, key-value rank 512, rope 64,
    head 128, value 128. Between the GEMMs every latent, query, key and value moves twice.
    """
    if not (folder / _MLA).is_file():
        return None
    rows = read_mla_module(folder)
    errors: Errors = {}
    for name, sheet in sheets.items():
        c = constants_of(sheet, shipped_book())
        for key in c.gemm:
            at = (rows["gpu"] == name) & (rows["format"] == key)
            if not at.any():
                continue
            heads, batch, seq = (rows[each][at] for each in ("num_heads", "batch_size", "isl"))
            tokens = batch * seq
            latents = 1536.0 + 512.0 + 64.0
            projections = ((latents, 7168.0), (heads * 192, 1536.0), (heads * 256, 512.0))
            time_s = sum(
                gemm_time_s(tokens, n, k, c.gemm[key])
                for n, k in (*projections, (7168.0, heads * 128))
            )
            time_s += attention_forward_time_s(
                batch, seq, seq, heads, heads, 192.0, 128.0, c.attention["bf16"]
            )
            moved = 2 * 2 * tokens * (latents + heads * (2 * 192 + 128))
            time_s += elementwise_time_s(moved, c.elementwise)
            errors[name, key] = np.asarray(time_s) / rows["time_s"][at] - 1
    return _summary(errors) if errors else None


def held_out(columns: Columns, key_column: str) -> npt.NDArray[np.bool_]:
    """Which rows have a shape that is left out: by a hash of the sizes alone."""
    names = sorted(set(columns) - {"gpu", "time_s", key_column})
    shapes, inverse = np.unique(
        np.column_stack([columns[name] for name in names]), axis=0, return_inverse=True
    )
    out = np.array([zlib.crc32(row.tobytes()) % HELD_OUT_SHARE == 0 for row in shapes])
    return np.asarray(out[inverse.ravel()])


def _shapes_left_out(
    tables: Mapping[str, Columns], sheets: Mapping[str, KernelSheet]
) -> tuple[dict[str, Errors], dict[str, Errors]]:
    masks = {name: held_out(columns, LAWS[name].key_column) for name, columns in tables.items()}
    training = {name: select(columns, ~masks[name]) for name, columns in tables.items()}
    fitted, _ = _fit(training, sheets)
    corrections = fit_corrections(training, fitted, sheets)
    judged = {name: select(columns, masks[name]) for name, columns in tables.items()}
    plain: dict[str, Errors] = {}
    corrected: dict[str, Errors] = {}
    for operator, table in fitted.items():
        for key, by_gpu in table.items():
            for name, values in by_gpu.items():
                law = LAWS[operator]
                rows = _rows_of(judged[operator], law, key, name)
                if rows is None:
                    continue
                one, two = _judge(law, key, rows, sheets[name], values, corrections[operator])
                plain.setdefault(operator, {})[name, key] = one
                corrected.setdefault(operator, {})[name, key] = two
    return plain, corrected


def _fit(
    tables: Mapping[str, Columns], sheets: Mapping[str, KernelSheet]
) -> tuple[dict[str, dict[str, dict[str, dict[str, float]]]], float]:
    """Laws of the tables; the onset of throttling from their GEMMs, or as shipped without any."""
    if "gemm" in tables:
        return fit_laws(tables, sheets)
    return fit_laws(tables, sheets, shipped_book().onset)


def _gpus_left_out(
    tables: Mapping[str, Columns], sheets: Mapping[str, KernelSheet], siblings: bool = True
) -> tuple[dict[str, Errors], dict[str, Errors]]:
    """Each GPU from its data sheet: by a refit without it, or by the shipped constants.

    The shipped constants serve where they never saw the GPU. Without ``siblings`` the refit leaves
    out the GPU's whole family.
    """
    book = shipped_book()
    plain: dict[str, Errors] = {}
    corrected: dict[str, Errors] = {}
    for name, sheet in sheets.items():
        others = {
            each: other
            for each, other in sheets.items()
            if each != name and (siblings or kinship(other, sheet) < SAME_FAMILY_WEIGHT)
        }
        fitted: Mapping[str, Mapping[str, Mapping[str, dict[str, float]]]]
        if siblings and _never_seen(book, sheet):
            known, onset = book.sheets, book.onset
            fitted, corrections = book.operators, shipped_corrections()
        elif others:
            training = {
                operator: select(columns, np.isin(columns["gpu"], list(others)))
                for operator, columns in tables.items()
                if np.any(np.isin(columns["gpu"], list(others)))
            }
            fitted, onset = _fit(training, others)
            corrections = fit_corrections(training, fitted, others)
            known = others
        else:
            continue
        for operator in tables.keys() & fitted.keys():
            law = LAWS[operator]
            for key, by_gpu in fitted[operator].items():
                rows = _rows_of(tables[operator], law, key, name)
                if rows is None or not by_gpu:
                    continue
                values = carried(law, key, by_gpu, known, sheet, onset)
                one, two = _judge(law, key, rows, sheet, values, corrections[operator])
                plain.setdefault(operator, {})[name, key] = one
                corrected.setdefault(operator, {})[name, key] = two
    return plain, corrected


def _never_seen(book: KernelBook, sheet: KernelSheet) -> bool:
    return not any(
        rows.get(sheet.name, 0) for table in book.rows.values() for rows in table.values()
    )


def _rows_of(columns: Columns, law: Law, key: str, name: str) -> Columns | None:
    rows = select(columns, (columns[law.key_column] == key) & (columns["gpu"] == name))
    return subsample(rows, JUDGED_ROWS) if len(rows["time_s"]) else None


def _judge(
    law: Law,
    key: str,
    rows: Columns,
    sheet: KernelSheet,
    values: dict[str, float],
    correction: Correction,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Relative errors of the law, and of the law with its correction."""
    constants = law.build(sheet, key, values)
    measured = rows["time_s"]
    lawful = law.time(rows, constants, key)
    return lawful / measured - 1, correction.time_s(rows, constants, sheet, key) / measured - 1


def _report(plain: dict[str, Errors], corrected: dict[str, Errors]) -> dict[str, Any]:
    return {
        operator: {
            "law": _summary(plain[operator]),
            "corrected": _summary(corrected[operator]),
        }
        for operator in sorted(plain)
    }


def _summary(errors: Errors) -> dict[str, Any]:
    everything = np.concatenate(list(errors.values()))
    gpus = sorted({name for name, _ in errors})
    return {
        "n": len(everything),
        "median_ape": _median(everything),
        "p90_ape": float(np.quantile(np.abs(everything), 0.9)),
        "bias": float(np.mean(everything)),
        "by_gpu": {
            gpu: _median(
                np.concatenate([each for (name, _), each in errors.items() if name == gpu])
            )
            for gpu in gpus
        },
        "by": {f"{name}/{key}": _median(each) for (name, key), each in sorted(errors.items())},
    }


def _median(errors: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(errors)))
