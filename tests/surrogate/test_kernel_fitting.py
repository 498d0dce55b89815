"""Kernel constants: shipped file, goldens against published measurements, refit, transfer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specs import catalog
from specs.errors import InputError
from surrogate.kernels import fitting as kernel_fitting
from surrogate.kernels.amd import collective_rows, gemm_rows, read_rows
from surrogate.kernels.constants import (
    book_of,
    kernel_constants,
    read_book,
    shipped_book,
    shipped_corrections,
)
from surrogate.kernels.laws import LAWS
from surrogate.kernels.sheets import sheet_of
from surrogate.kernels.transfer import carried, throttle
from surrogate.kernels.utilisation import collective_time_s, gemm_time_s
from surrogate.kernels.validation import kernel_table

PROFILED = ("A100-80GB", "H100-SXM", "B200", "B300", "GB200", "GB300")


def test_shipped_sheets_are_those_of_the_catalog() -> None:
    # Utilisations were fitted against these peaks: another peak in the catalog needs a refit.
    for name, sheet in shipped_book().sheets.items():
        assert sheet == sheet_of(catalog.gpu(name)), f"{name}: refit the kernels"


def test_shipped_constants_lie_inside_their_bounds() -> None:
    for operator, table in shipped_book().operators.items():
        for by_gpu in table.values():
            for values in by_gpu.values():
                for p in LAWS[operator].parameters:
                    assert p.low * 0.999 <= values[p.name] <= p.high * 1.001


@pytest.mark.parametrize(
    ("gpu", "key", "shape", "tflops", "tolerance"),
    [
        # rocm-blogs measuring-max-achievable-flops-part2 (power-throttled clocks)
        ("MI300X", "bf16", (4096, 4864, 32896), 708, 0.03),
        ("MI325X", "bf16", (4096, 4864, 32896), 843, 0.03),
        ("MI325X", "fp8", (4096, 3648, 32896), 1519, 0.03),
        # rocm-blogs cdna4-gemm-kernels, "about"
        ("MI355X", "fp8", (8192, 8192, 8192), 3130, 0.05),
        # MI350X Training Benchmark Results, torch.matmul
        ("MI350X", "bf16", (8192, 8192, 8192), 1104, 0.10),
        ("MI350X", "bf16", (16384, 8192, 1280), 901, 0.10),
        # aiconfigurator 095f58a51, TRTLLM 1.3.0rc20, gemm table: 4096^3
        ("H100-SXM", "bf16", (4096, 4096, 4096), 789, 0.10),
        ("B200", "nvfp4", (4096, 4096, 4096), 2505, 0.10),
    ],
)
def test_gemm_goldens(
    gpu: str, key: str, shape: tuple[int, int, int], tflops: float, tolerance: float
) -> None:
    m, n, k = shape
    bare = catalog.gpu(gpu).vendor == "amd"  # hipBLASLt runs do not cast their operands
    time_s = gemm_time_s(m, n, k, kernel_constants(catalog.gpu(gpu)).gemm[key], quantise=not bare)
    assert 2e-12 * m * n * k / time_s == pytest.approx(tflops, rel=tolerance)


def test_rccl_golden() -> None:
    # rocm-blogs mi300x-rccl-xgmi: all-reduce of 1 GiB on 8 MI300X takes 5970.6 us.
    c = kernel_constants(catalog.gpu("MI300X")).scale_up["all_reduce"]
    assert collective_time_s("all_reduce", 2.0**30, 8, c) == pytest.approx(5970.6e-6, rel=0.06)


def test_gpu_without_profiles_follows_its_data_sheet() -> None:
    h100, h200 = (kernel_constants(catalog.gpu(name)) for name in ("H100-SXM", "H200"))
    assert h200.origin["gemm"]["bf16"] == "carried"
    assert h100.origin["gemm"]["bf16"] == "fitted"
    big = [gemm_time_s(8192, 8192, 8192, c.gemm["bf16"]) for c in (h100, h200)]
    assert big[0] == pytest.approx(big[1], rel=0.05)
    wide = [gemm_time_s(256, 65536, 4096, c.gemm["bf16"]) for c in (h100, h200)]
    assert wide[1] < wide[0]  # H200 has 1.43 times the memory bandwidth


def test_only_formats_with_units_are_offered() -> None:
    assert set(kernel_constants(catalog.gpu("A100-80GB")).gemm) == {"bf16", "fp32"}
    assert "nvfp4" not in kernel_constants(catalog.gpu("H100-SXM")).gemm


def test_power_limits_utilisation_by_peak_per_watt() -> None:
    assert throttle(1.0, 1.75) == 1.0
    assert throttle(2.25, 1.75) == pytest.approx((1.75 / 2.25) ** 0.6)
    book = shipped_book()
    fitted = {name: book.operators["gemm"]["bf16"][name] for name in PROFILED}
    b200, gb300 = (
        carried(LAWS["gemm"], "bf16", fitted, book.sheets, book.sheets[name], book.onset)
        for name in ("B200", "GB300")
    )
    assert gb300["utilisation_max"] > b200["utilisation_max"]  # 1400 W against 1000 W


def test_corrections_are_bounded_and_stay_above_light() -> None:
    book = shipped_book()
    rng = np.random.default_rng(0)
    rows = {name: rng.integers(256, 16384, 500).astype(float) for name in ("m", "n", "k")}
    sheet = book.sheets["H100-SXM"]
    constants = kernel_constants(catalog.gpu("H100-SXM")).gemm["bf16"]
    time_s = shipped_corrections()["gemm"].time_s(rows, constants, sheet, "bf16")
    lawful = LAWS["gemm"].time(rows, constants, "bf16")
    assert np.all(np.abs(np.log(time_s / lawful)) <= 0.7)
    assert np.all(time_s >= LAWS["gemm"].light(rows, constants, "bf16"))
    assert np.median(np.abs(np.log(time_s / lawful))) < 0.1


def test_another_schema_is_refused() -> None:
    with pytest.raises(InputError, match="schema version 99"):
        book_of({"schema_version": 99}, "kernels.json")
    with pytest.raises(InputError, match="incomplete"):
        book_of({"schema_version": 1}, "kernels.json")


def test_missing_profiles_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gemm\.parquet"):
        kernel_table(tmp_path)
    assert kernel_fitting.main(["--profiles", str(tmp_path)]) == 2
    with pytest.raises(InputError, match="nothing"):
        read_book(tmp_path / "nothing")


@pytest.fixture(scope="module")
def sample(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thin slice of the profiles of two GPUs."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("profiles")
    for path in sorted((shared / "profiles").glob("*.parquet")):
        table = pd.read_parquet(path)
        table = table[table["gpu"].isin(["H100-SXM", "B200"])]
        table.iloc[:: max(1, len(table) // 600)].to_parquet(folder / path.name)
    return folder


def test_refit_is_deterministic(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _thin_trees(monkeypatch)
    for name in ("one", "two"):
        assert (
            kernel_fitting.main(
                ["--profiles", str(sample), "--out", str(tmp_path / name / "kernels.json")]
            )
            == 0
        )
    for file in ("kernels.json", "kernel_corrections.json.gz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    content = json.loads((tmp_path / "one" / "kernels.json").read_text())
    assert set(content["operators"]["gemm"]["bf16"]) == {"H100-SXM", "B200"}
    assert "aiconfigurator" in content["sources"]["profiles"]


def test_table_of_a_sample(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _thin_trees(monkeypatch)
    table = kernel_table(sample, ("gemm", "collective"))
    shapes = table["shapes_left_out"]["gemm"]
    assert 0 < shapes["law"]["median_ape"] < 0.10
    assert set(table["gpu_left_out"]["gemm"]["law"]["by_gpu"]) == {"H100-SXM", "B200"}
    assert set(table["family_left_out"]["gemm"]["law"]["by_gpu"]) == {"H100-SXM", "B200"}
    assert table["skipped"] == []


def test_gpu_that_was_never_fitted_is_judged_from_its_data_sheet(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    _thin_trees(monkeypatch)
    table = pd.read_parquet(sample / "gemm.parquet")
    table = table[table["gpu"] == "H100-SXM"]
    # H200 is the same silicon with faster memory: H100's times stand in for a profile of it.
    both = pd.concat([table.assign(gpu="H200-SXM"), table.assign(gpu="Unheard-Of-1")])
    both.to_parquet(tmp_path / "gemm.parquet")
    result = kernel_table(tmp_path, ("gemm",))
    assert result["skipped"] == ["Unheard-Of-1: the catalog has no such GPU"]
    assert result["gpu_left_out"]["gemm"]["law"]["median_ape"] < 0.15
    both.assign(gpu="Unheard-Of-1").to_parquet(tmp_path / "gemm.parquet")
    with pytest.raises(InputError, match="Unheard-Of-1"):
        kernel_table(tmp_path, ("gemm",))


def _thin_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    from surrogate.kernels import correction as kernel_correction

    thin: dict[str, Any] = {
        name: {**settings, "n_estimators": 10} for name, settings in kernel_correction.TREES.items()
    }
    monkeypatch.setattr(kernel_correction, "TREES", thin)


def test_amd_rows_are_read_as_published(shared: Path) -> None:
    rows = read_rows(shared / "measured" / "kernels_amd.csv")
    mi350x = gemm_rows(rows, "MI350X", "bf16")
    assert len(mi350x["m"]) == 7
    assert sorted(mi350x["k"].tolist())[0] == 1280
    reduce = collective_rows(rows, "MI300X", "all_reduce")
    at = reduce["message_bytes"] == 1073741824
    np.testing.assert_allclose(reduce["time_s"][at], 5970.6e-6)
