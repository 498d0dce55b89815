"""The pipeline layout that a recipe picks where nobody states one: stages of about equal work.

Recipes of models whose layers do not divide by the stages, or that end in MTP layers, write an
explicit layout in which the last stages hold fewer decoder layers (Megatron-Bridge
``deepseek_v3.py``, ``get_deepseek_v3_pipeline_layout``).
"""

from __future__ import annotations

from functools import lru_cache

from specs.model import Model


@lru_cache(maxsize=4096)
def balanced_layout(model: Model, pp: int, vpp: int) -> str:
    """A Megatron layout string of pp*vpp virtual stages, or "" where an even split balances.

    Work is counted in forward FLOPs of a token. MTP layers and the output share the last stage;
    decoder layers fill the others.
    """
    stages = pp * vpp
    # L = k*stages - 2 is even too: first and last stage hold a layer less (specs.layout).
    divides = model.num_layers % stages == 0 or (model.num_layers + 2) % stages == 0
    if pp == 1 or stages > model.num_layers + 1 or (divides and not model.mtp_layers):
        return ""
    layer = _layer_parameters(model)
    output = (1 + model.mtp_layers) * model.embedding_parameters() / layer
    tail = output + model.mtp_layers * (1.0 + 2 * model.hidden_size**2 / layer)
    share = (model.num_layers + tail) / stages
    last = min(max(round(share - tail), 0), model.num_layers)
    size, larger = divmod(model.num_layers - last, stages - 1)
    # The first stages are the larger ones: an MoE model's dense layers are there.
    counts = [size + (stage < larger) for stage in range(stages - 1)] + [last]
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[-1] += "m" * model.mtp_layers + "L"
    return "|".join(texts)


def _layer_parameters(model: Model) -> float:
    """Parameters that one token passes in the mean decoder layer."""
    moe = model.num_moe_layers
    routed = model.moe_topk * model.expert_parameters() + sum(model.shared_expert_parameters())
    mlp = (model.num_layers - moe) * sum(model.dense_mlp_parameters()) + moe * routed
    return float(sum(model.attention_parameters()) + mlp / model.num_layers)
