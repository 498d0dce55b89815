"""The speed of light of a training run: every FLOP of the model at the dense peak of its GPU."""

from __future__ import annotations

import numpy as np

from specs.choices import Precision, TrainingKind
from specs.run_rows import model_flops_per_token
from surrogate.cases import Cases, Column

FROZEN_SHARE = 2 / 3
"""Share of the FLOPs of a step that is left where weights are frozen: no weight gradients."""

_FORMATS = tuple(dict.fromkeys(p.gemm_format for p in Precision))
_FORMAT_OF = np.array([_FORMATS.index(p.gemm_format) for p in Precision])
"""Precision code -> the format in which GEMMs multiply."""


def fastest_tokens_per_s_per_gpu(cases: Cases) -> Column:
    """Tokens/s/GPU that no run of each row can exceed, shape (n,).

    Model FLOPs as Megatron counts them, with causal attention counted once, over the dense peak of
    the format of the GEMMs; recomputation and communication are free.
    """
    rows = (len(cases),)
    peaks = [
        np.broadcast_to(getattr(cases.cluster, f"peak_{name}_flops"), rows) for name in _FORMATS
    ]
    peak = np.choose(_FORMAT_OF[cases.config.precision], peaks)
    fastest: Column = peak / flops_per_token(cases)
    return fastest


def flops_per_token(cases: Cases) -> Column:
    """FLOPs of the model that a token needs, without weight gradients where weights are frozen;
    shape () where all rows are of one model and length, else (n,)."""
    jobs = np.stack(np.broadcast_arrays(cases.model_index, cases.workload.seq_len), axis=-1)
    distinct, place = np.unique(jobs.reshape(-1, 2), axis=0, return_inverse=True)
    flops = [
        model_flops_per_token(cases.models[index], int(seq_len), causal=True)
        for index, seq_len in distinct
    ]
    lora = cases.workload.kind == int(TrainingKind.LORA)
    all_trained = np.array(flops)[place].reshape(jobs.shape[:-1])
    needed: Column = all_trained * np.where(lora, FROZEN_SHARE, 1.0)
    return needed
