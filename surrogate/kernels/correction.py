"""A small learned correction of the kernel laws: gradient-boosted trees on shape features.

The laws alone serve the hot path. Where a shape is known one by one (a kernel table, the distinct
shapes of a search space) the correction adds what libraries do to single shapes: tile choice,
split-K, power. Features are dimensionless and do not name the GPU, so that it carries to GPUs that
were never profiled. It is bounded, and a corrected time stays above the speed of light.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surrogate.kernels.laws import LAWS, format_of
from surrogate.kernels.profiles import Columns
from surrogate.kernels.sheets import FORMATS, KernelSheet

MAX_CORRECTION = 0.7
"""Largest |log| correction, about a factor of two."""

TREES = {
    "gemm": {"n_estimators": 250, "max_depth": 6, "learning_rate": 0.12},
    "attention": {"n_estimators": 200, "max_depth": 6, "learning_rate": 0.12},
    "moe": {"n_estimators": 300, "max_depth": 7, "learning_rate": 0.12},
    "collective": {"n_estimators": 120, "max_depth": 5, "learning_rate": 0.12},
    "dispatch": {"n_estimators": 120, "max_depth": 5, "learning_rate": 0.12},
}

TRAIN_ROWS = 40_000

_FLAGS = {
    "gemm": ("bf16", "fp8", "fp8_block", "nvfp4"),
    "attention": ("bf16", "fp8"),
    "moe": ("bf16", "fp8", "fp8_block", "nvfp4", "w4a16", "w4a8"),
    "collective": ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"),
    "dispatch": ("dispatch", "combine"),
}


def _fill(count: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How full the last of ``count`` (fractional) units is, in (0, 1]."""
    return np.asarray(count / np.ceil(count))


def _intensity(
    flops: npt.NDArray[np.float64], moved: npt.NDArray[np.float64], sheet: KernelSheet, key: str
) -> npt.NDArray[np.float64]:
    """log2 of arithmetic intensity over the machine balance of the roofline."""
    balance = sheet.peak_flops[FORMATS[format_of(key)].peak] / sheet.hbm_bytes_per_s
    return np.asarray(np.log2(flops / moved / balance))


def _gemm_features(rows: Columns, sheet: KernelSheet, key: str) -> list[Any]:
    m, n, k = rows["m"], rows["n"], rows["k"]
    form = FORMATS[key]
    moved = m * k * form.a_bytes + k * n * form.b_bytes + 2 * m * n
    features = [np.log2(m), np.log2(n), np.log2(k), _fill(m / 128), _fill(m / 256), m % 16 == 0]
    for tile_rows, tile_columns in ((128, 128), (128, 256), (256, 256)):
        waves = np.ceil(m / tile_rows) * np.ceil(n / tile_columns) / sheet.sm_count
        features += [np.log2(waves), _fill(waves)]
    features.append(_intensity(2 * m * n * k, moved, sheet, key))
    return features


def _attention_features(rows: Columns, sheet: KernelSheet, key: str) -> list[Any]:  # noqa: ARG001
    batch, seq, heads = rows["batch_size"], rows["seq_len"], rows["num_heads"]
    window = np.where(rows["window_size"] > 0, rows["window_size"], np.inf)
    features = [np.log2(batch), np.log2(seq), np.log2(heads), np.log2(rows["head_dim"])]
    features += [np.log2(rows["num_key_value_heads"]), heads / rows["num_key_value_heads"]]
    features += [np.log2(np.minimum(window, seq)), window < seq]
    for tile in (128, 256):
        waves = batch * heads * np.ceil(seq / tile) / sheet.sm_count
        features += [np.log2(waves), _fill(waves)]
    return features


def _moe_features(rows: Columns, sheet: KernelSheet, key: str) -> list[Any]:
    tokens, hidden, ffn = rows["num_tokens"], rows["hidden_size"], rows["ffn_size"]
    local = rows["num_experts"] / rows["moe_ep_size"]
    per_expert = tokens * rows["topk"] / rows["num_experts"]
    form = FORMATS[format_of(key)]
    gates = 1.0 if key.endswith("/nongated") else 2.0
    held = per_expert * local
    weights = np.minimum(local, held) * hidden * ffn * (gates + 1) * form.b_bytes
    flops = 2 * held * hidden * ffn * (gates + 1)
    features = [np.log2(each) for each in (tokens, hidden, ffn, local, per_expert)]
    features += [rows["topk"], np.log2(rows["num_experts"]), np.log2(rows["moe_ep_size"])]
    features += [rows["exponent"], _fill(per_expert / 128), _fill(per_expert / 64)]
    for columns in (ffn * gates, hidden):
        waves = local * np.ceil(per_expert / 128) * np.ceil(columns / 128) / sheet.sm_count
        features += [np.log2(waves), _fill(waves), _fill(columns / 128)]
    features.append(_intensity(flops, weights + 4 * held * hidden, sheet, key))
    features += [np.full(len(tokens), key.endswith(suffix)) for suffix in ("/nongated", "/latency")]
    return features


def _collective_features(rows: Columns, sheet: KernelSheet, key: str) -> list[Any]:  # noqa: ARG001
    per_link_s = rows["message_bytes"] / sheet.link_bytes_per_s
    return [np.log2(rows["message_bytes"]), rows["ranks"], np.log2(per_link_s)]


def _dispatch_features(rows: Columns, sheet: KernelSheet, key: str) -> list[Any]:  # noqa: ARG001
    moved = rows["num_token"] * rows["hidden_size"]
    features = [np.log2(rows["num_token"]), np.log2(rows["hidden_size"]), np.log2(moved)]
    return [*features, rows["num_topk"], rows["sms"], rows["node_num"]]


_FEATURES: dict[str, Callable[[Columns, KernelSheet, str], list[Any]]] = {
    "gemm": _gemm_features,
    "attention": _attention_features,
    "moe": _moe_features,
    "collective": _collective_features,
    "dispatch": _dispatch_features,
}


def features_of(
    operator: str, rows: Columns, sheet: KernelSheet, key: str
) -> npt.NDArray[np.float32]:
    """Feature matrix [rows, features] of one GPU and key."""
    columns = _FEATURES[operator](rows, sheet, key)
    name = format_of(key)
    columns += [np.full(len(columns[0]), name == flag) for flag in _FLAGS[operator]]
    return np.column_stack([np.asarray(column, dtype=np.float32) for column in columns])


@dataclass(frozen=True)
class Correction:
    """Trees of one operator; ``booster`` is an xgboost model."""

    operator: str
    booster: Any

    def log_factor(self, rows: Columns, sheet: KernelSheet, key: str) -> npt.NDArray[np.float64]:
        """Log of corrected over lawful time, bounded by ``MAX_CORRECTION``."""
        raw = self.booster.inplace_predict(features_of(self.operator, rows, sheet, key))
        return np.clip(np.asarray(raw, dtype=np.float64), -MAX_CORRECTION, MAX_CORRECTION)

    def time_s(
        self, rows: Columns, constants: Any, sheet: KernelSheet, key: str
    ) -> npt.NDArray[np.float64]:
        """Corrected time of profile rows, never below the speed of light."""
        law = LAWS[self.operator]
        corrected = law.time(rows, constants, key) * np.exp(self.log_factor(rows, sheet, key))
        return np.maximum(corrected, law.light(rows, constants, key))

    def as_json(self) -> dict[str, Any]:
        """The xgboost model as plain data."""
        return dict(json.loads(bytes(self.booster.save_raw("json"))))


def read_correction(operator: str, model: Mapping[str, Any]) -> Correction:
    """The correction of ``Correction.as_json``."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(json.dumps(model).encode()))
    return Correction(operator, booster)


def fit_correction(
    operator: str, features: npt.NDArray[np.float32], log_ratio: npt.NDArray[np.float64]
) -> Correction:
    """Trees for log(measured / law); at most ``TRAIN_ROWS`` rows, evenly spaced; deterministic."""
    import xgboost

    size = len(log_ratio)
    at = np.linspace(0, size - 1, min(size, TRAIN_ROWS)).astype(np.intp)
    model = xgboost.XGBRegressor(
        **TREES[operator],
        objective="reg:absoluteerror",
        subsample=0.8,
        colsample_bytree=0.8,
        min_child_weight=5,
        tree_method="hist",
        n_jobs=1,
        random_state=0,
    )
    model.fit(features[at], log_ratio[at])
    return Correction(operator, model.get_booster())
