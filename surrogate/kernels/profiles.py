"""Readers of the public kernel profiles: Parquet tables to plain numpy columns.

The tables are those of ai-dynamo/aiconfigurator (commit 095f58a51, Apache-2.0): one row a
measurement. Columns keep their profile names; ``dtype`` becomes the kernel format of
``surrogate.kernels.sheets``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.errors import InputError

PROFILE_SOURCE = "ai-dynamo/aiconfigurator commit 095f58a51 (Apache-2.0)"

Columns = dict[str, npt.NDArray[Any]]

_FORMATS = {
    "gemm": {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"},
    "attention": {"bfloat16": "bf16", "fp8": "fp8"},
    "moe": {
        "bfloat16": "bf16",
        "fp8": "fp8",
        "fp8_block": "fp8_block",
        "nvfp4": "nvfp4",
        "w4a16_mxfp4": "w4a16",
        "w4a8_mxfp4_mxfp8": "w4a8",
    },
}
"""Profile dtype -> kernel format; what is absent (A100 integer weights) is not for training."""

_MOE_VARIANTS = {"moe_torch_flow_nongated": "/nongated", "moe_torch_flow_min_latency": "/latency"}
"""Kernel families fitted apart: MLPs without a gate, and the kernels tuned for few tokens."""

_ALL_TO_ALL = {"alltoall": "all_to_all"}


def _read(folder: Path, name: str) -> Any:
    import pandas as pd

    path = folder / name
    try:
        return pd.read_parquet(path)
    except FileNotFoundError:
        raise InputError(
            f"there is no profile {path}; give the folder with {name} by --profiles."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"profile {path} cannot be read as Parquet: {error}.") from None


def _columns(table: Any, keys: list[str]) -> Columns:
    """Sorted columns (a deterministic order whatever the file's), numbers as float64."""
    missing = [key for key in [*keys, "time_s"] if key not in table.columns]
    if missing:
        raise InputError(f"the profile lacks the columns {', '.join(missing)}.")
    table = table.sort_values([*keys, "time_s"], kind="stable").reset_index(drop=True)
    columns: Columns = {}
    for key in [*keys, "time_s"]:
        values = table[key]
        text = values.dtype.kind not in "iufb"
        columns[key] = values.to_numpy(dtype=str if text else np.float64)
    return columns


def _formatted(table: Any, operator: str) -> Any:
    formats = table["dtype"].map(_FORMATS[operator])
    return table.assign(format=formats)[formats.notna()]


def read_gemm(folder: Path) -> Columns:
    """Dense GEMMs: gpu, format, m, n, k, time_s (quantisation of A included where there is one)."""
    table = _formatted(_read(folder, "gemm.parquet"), "gemm")
    return _columns(table, ["gpu", "format", "m", "n", "k"])


def read_attention(folder: Path, fastest: bool = True) -> Columns:
    """Causal attention forward.

    bf16 rows come twice, with two formats of the serving KV cache that the table does not tell
    apart and that differ by up to 1.5 times. Training has no such cache: ``fastest`` keeps the
    faster of equal shapes.
    """
    table = _formatted(_read(folder, "attention_forward.parquet"), "attention")
    keys = ["gpu", "format", "batch_size", "seq_len", "num_heads", "num_key_value_heads"]
    keys += ["head_dim", "window_size"]
    if fastest:
        table = table.groupby(keys, as_index=False)["time_s"].min()
    return _columns(table, keys)


def read_moe(folder: Path) -> Columns:
    """Routed MLPs of one rank; ``format`` carries the kernel family as a suffix.

    ``exponent`` is that of the routing power law (0 balanced), ``ffn_size`` one expert's on the
    rank.
    """
    table = _formatted(_read(folder, "moe_forward.parquet"), "moe")
    exponent = table["distribution"].str.removeprefix("power_law_").replace("balanced", "0")
    table = table.assign(
        format=table["format"] + table["kernel_source"].map(_MOE_VARIANTS).fillna(""),
        exponent=exponent.astype(float),
        ffn_size=table["inter_size"] / table["moe_tp_size"],
    )
    keys = ["gpu", "format", "num_tokens", "hidden_size", "ffn_size", "topk", "num_experts"]
    return _columns(table, [*keys, "moe_ep_size", "exponent"])


def read_collectives(folder: Path) -> Columns:
    """Collectives of one node: gpu, kind, ranks, message_bytes, time_s."""
    table = _read(folder, "collectives.parquet")
    width = table["dtype"].map({"half": 2.0, "int8": 1.0})
    table = table.assign(
        kind=table["collective"].replace(_ALL_TO_ALL),
        ranks=table["num_gpus"],
        message_bytes=table["elements"] * width,
    )
    return _columns(table, ["gpu", "kind", "ranks", "message_bytes"])


def read_dispatch(folder: Path) -> Columns:
    """DeepEP dispatch (fp8) and combine (bf16): ``way`` tells them apart; 8 GPUs a node."""
    import pandas as pd

    table = _read(folder, "deepep.parquet")
    ways = []
    for way in ("dispatch", "combine"):
        ways.append(
            table.assign(
                way=way,
                sms=table[f"{way}_sms"],
                time_s=table[f"{way}_transmit_us"] * 1e-6,
            )
        )
    both = pd.concat(ways)
    keys = ["gpu", "way", "node_num", "hidden_size", "num_token", "num_topk", "sms"]
    return _columns(both, keys)


def read_mla_module(folder: Path) -> Columns:
    """Whole MLA attention modules of DeepSeek-V3 (``num_heads`` on the rank), GEMMs included."""
    table = _read(folder, "mla_forward_module.parquet")
    table = table.assign(format=table["gemm_type"].map(_FORMATS["gemm"]))
    return _columns(table, ["gpu", "format", "num_heads", "batch_size", "isl"])


def data_hash(folder: Path) -> str:
    """SHA-256 over the Parquet files of the folder, in name order."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.parquet")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
