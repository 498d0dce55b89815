"""Architectures from the ``models.json`` that accompanies a table of measured runs.

The file maps a model name to its dimensions: num_layers, hidden_size, ffn_hidden_size,
num_attention_heads, num_query_groups, head_dim, vocab_size, tied_embeddings, gated_mlp, attention,
mla{}, num_experts, moe_topk, moe_ffn_hidden_size, shared_expert_ffn, dense_layers, mtp_layers.
Any other field of ``Model`` (biases, norms, windows, which layers are MoE) is read where an entry
states it; it and what a file leaves null comes from the catalog's model of the same name else,
where the stated dimensions agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specs import catalog
from specs.errors import InputError
from specs.formats.yaml_files import read_json
from specs.model import Model

_REQUIRED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "head_dim",
    "ffn_hidden_size",
    "vocab_size",
)
_MOE = ("num_experts", "moe_topk", "moe_ffn_hidden_size")
_OPTIONAL = ("shared_expert_ffn", "dense_layers", "mtp_layers")
_DETAILS = (
    *("linear_bias", "qkv_bias", "attention_output_bias", "qk_norm", "attention_sinks"),
    *("layer_norm_bias", "norms_per_layer", "learned_positions", "embedding_norm", "dropout"),
    *("sliding_window", "window_layers", "shared_expert_gate", "moe_layers", "router_bias"),
    *("expert_bias", "parallel_block"),
)
_MLA_NAMES = {"qk_head_dim": "qk_nope_head_dim", "qk_pos_emb_head_dim": "qk_rope_head_dim"}
_ALWAYS = ("tied_embeddings", "gated_mlp")
_ATTENTION = (None, "mha", "gqa", "mqa", "mla")


@dataclass(frozen=True)
class ModelsFile:
    """What a ``models.json`` holds.

    ``unsupported`` says for each name that cannot be projected what it is or lacks; ``notes`` says
    what was assumed for the others.
    """

    models: dict[str, Model]
    unsupported: dict[str, str]
    notes: dict[str, str]
    where: str

    def find(self, name: str) -> Model:
        """The model of this name, from the file or else from the catalog.

        Raises:
            InputError: the name is unknown, or its architecture is unsupported or incomplete.
        """
        if name in self.models:
            return self.models[name]
        if name in self.unsupported:
            raise InputError(f"model {name} of {self.where} {self.unsupported[name]}.")
        return catalog.model(name)


def models_json(path: Path) -> ModelsFile:
    """Reads a ``models.json``.

    Raises:
        InputError: the file is no JSON object.
    """
    file = ModelsFile({}, {}, {}, str(path))
    for name, fields in read_json(path).items():
        if isinstance(fields, Mapping):
            _add(file, name, fields)
        else:
            file.unsupported[name] = "holds no fields; write an object of dimensions"
    return file


def models_text(models: Iterable[Model]) -> str:
    """A ``models.json`` of these models: what is read back equals what was written."""
    entries = {}
    for model in models:
        entry = model.model_dump(exclude={"name"}, exclude_defaults=True)
        entry |= {key: getattr(model, key) for key in (*_REQUIRED, *_ALWAYS)}
        kind = "gqa" if model.num_query_groups != model.num_attention_heads else "mha"
        entries[model.name] = entry | {"attention": "mla" if model.mla else kind}
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def _add(file: ModelsFile, name: str, stated: Mapping[str, Any]) -> None:
    """Puts one entry where it belongs."""
    if reason := _foreign(name, stated):
        file.unsupported[name] = reason
        return
    fields = _fields(name, stated)
    known = _known(name, fields)
    note = ""
    if known is not None:
        given = {key: value for key, value in fields.items() if value is not None}
        fields = {**known.model_dump(), **given}
        filled = [key for key in _REQUIRED if key not in given]
        note = f"{' and '.join(filled)} from the catalog" if filled else ""
    if missing := [*_missing(fields), *(_implied(stated) if known is None else ())]:
        file.unsupported[name] = f"lacks {' and '.join(missing)}"
        return
    if fields.get("tied_embeddings") is None:
        fields["tied_embeddings"] = False
        note = "embeddings taken as untied"
    fields = {key: value for key, value in fields.items() if value is not None}
    try:
        file.models[name] = Model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        file.unsupported[name] = f"is contradictory: {place + ': ' if place else ''}{problem}"
        return
    if note:
        file.notes[name] = note


def _missing(fields: Mapping[str, Any]) -> list[str]:
    """Dimensions without which no model is projected."""
    return [key for key in _REQUIRED if fields.get(key) is None]


def _implied(stated: Mapping[str, Any]) -> list[str]:
    """Dimensions that others call for: without them the model would be taken for a simpler one."""
    experts = any(stated.get(key) for key in ("moe_topk", "moe_ffn_hidden_size"))
    implied = {"num_experts": experts, "mla": stated.get("attention") == "mla"}
    return [key for key, needed in implied.items() if needed and not stated.get(key)]


def _foreign(name: str, stated: Mapping[str, Any]) -> str:
    """What makes the architecture one that is not projected; empty where nothing does."""
    if name in catalog.unsupported_models():
        what = catalog.unsupported_models()[name]
    elif stated.get("hybrid"):
        what = f"a hybrid ({stated['hybrid']})"
    elif stated.get("linear_attention_freq"):
        what = "linear attention in some of its layers"
    elif not isinstance(stated.get("attention"), str | None) or (
        stated.get("attention") not in _ATTENTION
    ):
        what = f"attention of the kind {stated['attention']!r}"
    else:
        return ""
    return f"has an unsupported architecture: {str(what)[:80]}"


def _fields(name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The entry in the fields of Model; null where the file is silent."""
    fields: dict[str, Any] = {key: stated.get(key) for key in (*_REQUIRED, *_OPTIONAL)}
    fields["name"] = name
    fields["tied_embeddings"] = stated.get("tied_embeddings")
    fields["gated_mlp"] = stated.get("gated_mlp")
    fields["source"] = stated.get("source")
    fields |= {key: stated[key] for key in _DETAILS if stated.get(key) is not None}
    if stated.get("num_experts"):
        fields |= {key: stated.get(key) for key in _MOE}
        if fields["ffn_hidden_size"] is None and not stated.get("dense_layers"):
            fields["ffn_hidden_size"] = stated.get("moe_ffn_hidden_size")
    mla = stated.get("mla")
    if isinstance(mla, dict) and mla:
        widths = {_MLA_NAMES.get(key, key): value or 0 for key, value in mla.items()}
        fields["mla"] = {"q_lora_rank": 0, **widths}
        if fields["head_dim"] is None:
            fields["head_dim"] = widths.get("qk_nope_head_dim")
    return fields


def _known(name: str, fields: Mapping[str, Any]) -> Model | None:
    """The catalog's model of this name, if no dimension that the file states differs from it."""
    try:
        known = catalog.model(name)
    except InputError:
        return None
    keys = (*_REQUIRED, *_MOE, "shared_expert_ffn", "gated_mlp")
    same = all(fields.get(key) in (None, getattr(known, key)) for key in keys)
    return known if same else None
