"""Primus experiment YAML: the reader."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from specs import catalog
from specs.choices import TrainingKind
from specs.errors import InputError
from specs.formats.experiment import Experiment
from specs.formats.megatron.axes import read_config
from specs.formats.megatron.model import ARCHITECTURE_KEYS, check_supported, read_model
from specs.formats.megatron.stack import read_stack
from specs.formats.megatron.values import Values
from specs.formats.primus.presets import Presets, find_root, load_presets, shipped_defaults
from specs.formats.primus.torchtitan import read_torchtitan
from specs.formats.yaml_files import as_mapping, fill_environment, read_chain
from specs.layout import is_explicit, layout_problem, virtual_stages
from specs.model import Model, unsupported
from specs.stack import Framework
from specs.workload import Workload

_TOP_KEYS = ("work_group", "user_name", "exp_name", "workspace", "modules", "platform")
_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
_LORA_TARGETS = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
_UNPROJECTED_FLAGS = {
    "enable_odc": "on-demand communication with batches of varying length (enable_odc)",
    "use_turbo_mega_moe": "the fused MegaMoE layer (use_turbo_mega_moe)",
}


class Module(NamedTuple):
    """The trainer module of an experiment: its framework, presets and overrides."""

    name: str
    framework: str
    config: str
    model: str
    overrides: dict[str, Any]


def is_primus(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping looks like a Primus experiment."""
    return "modules" in content


def read_primus(path: Path, environment: Mapping[str, str] | None = None) -> Experiment:
    """The training job of a Primus experiment YAML.

    Raises:
        InputError: the file is no Primus experiment, contradicts itself, or trains something that
            foretune does not project.
    """
    variables = os.environ if environment is None else environment
    content = as_mapping(fill_environment(read_chain(path), str(path), variables), str(path))
    module = read_module(content, path)
    root = find_root(path, variables)
    presets = load_presets(root, module.framework, module.config, module.model, variables)
    notes = _stray_notes(content)
    name = str(content.get("exp_name") or path.stem)
    if module.framework == "torchtitan":
        experiment = read_torchtitan(module.overrides, presets, module.model, str(path), name)
    else:
        experiment = _read_megatron(module, presets, str(path), name, variables)
    return Experiment(
        name=experiment.name,
        workload=experiment.workload,
        stack=experiment.stack,
        baseline=experiment.baseline,
        gpu=gpu_of_path(path),
        notes=(*notes, *experiment.notes),
        sequences_per_data_parallel=experiment.sequences_per_data_parallel,
        source=path,
    )


def read_module(content: Mapping[str, Any], path: Path) -> Module:
    """The one trainer module of an experiment.

    Raises:
        InputError: there is none or more than one, or it lacks its model or framework.
    """
    if not is_primus(content):
        raise InputError(f"{path} is no Primus experiment: it has no modules.")
    modules = as_mapping(content["modules"], f"{path}: modules")
    trainers = [
        name for name, body in modules.items() if isinstance(body, dict) and "model" in body
    ]
    if len(trainers) != 1:
        found = ", ".join(trainers) or "none"
        raise InputError(
            f"{path}: modules must hold one trainer with a model (pre_trainer), found {found}."
        )
    name = trainers[0]
    body = modules[name]
    fields = []
    for key, default in (("framework", "megatron"), ("config", "pre_trainer.yaml"), ("model", "")):
        value = body.get(key, default)
        if not isinstance(value, str) or not value:
            raise InputError(f"{path}: modules.{name}.{key} must be a name, not {value!r}.")
        fields.append(value)
    overrides = as_mapping(body.get("overrides"), f"{path}: modules.{name}.overrides")
    if fields[0] not in ("megatron", "torchtitan"):
        raise unsupported(f"the framework {fields[0]!r}", f"{path}: modules.{name}")
    return Module(name, fields[0], fields[1], fields[2], overrides)


def _stray_notes(content: Mapping[str, Any]) -> list[str]:
    """A note on keys outside modules, which Primus does not hand to the trainer."""
    stray = sorted(set(content) - set(_TOP_KEYS))
    if not stray:
        return []
    return [f"{', '.join(stray)} stand outside modules.*.overrides and have no effect."]


def gpu_of_path(path: Path) -> str:
    """Catalog name of the GPU that a path names (``.../MI355X/...``), or nothing."""
    for part in reversed(path.resolve().parts):
        for word in re.split(r"[^A-Za-z0-9]+", part):
            if re.fullmatch(r"(MI|A|H|B|GB)\d{2,3}[A-Z]?", word, re.IGNORECASE):
                with suppress(InputError):
                    return catalog.gpu(word).name
    return ""


def _read_megatron(
    module: Module, presets: Presets, where: str, name: str, environment: Mapping[str, str]
) -> Experiment:
    """The job of a module that runs Megatron-LM."""
    complete = all(module.overrides.get(key) for key in _SIZES)
    base = None
    if presets.model is None and not complete:
        base = _catalog_model(module.model, where)
    values = Values(layered(module, presets, base), where)
    _check_projected(values)
    check_supported(values)
    _note_keys(values, module, presets)
    if base is None:
        _fill_vocabulary(values, module.model)
    else:
        values.note(
            f"no Primus checkout around {where}: defaults are those of Primus fd1eeab, the model "
            f"is {base.name} of the catalog (name the checkout with PRIMUS_PATH)."
        )
    model = _named(read_model(values, preset_stem(module.model), base), module.model, values)
    config = read_config(values, model)
    model = _settle_layout(values, model, config.layout, config.pp, config.vpp)
    problem = layout_problem(
        config.layout,
        model.num_layers,
        model.mtp_layers,
        config.pp,
        config.vpp,
        config.schedule.is_v_shaped,
    )
    if problem:
        values.note(f"the file's own pipeline does not run: {problem}")
    stack = read_stack(values, Framework.PRIMUS, "Primus", environment)
    return Experiment(
        name=name,
        workload=_workload(values, module, model),
        stack=stack,
        baseline=config,
        notes=tuple(values.notes),
    )


def layered(module: Module, presets: Presets, base: Model | None) -> dict[str, Any]:
    """The flat dict of arguments: module preset < model preset < overrides."""
    defaults = shipped_defaults()
    below = presets.model
    if below is None:
        below = dict(defaults["model"])
        if base is not None and base.is_moe:
            below |= defaults["moe_model"]
    return {**presets.module, **below, **module.overrides}


def preset_stem(model: str) -> str:
    """Name of a model preset without its ending."""
    return Path(model).name.removesuffix(".yaml").removesuffix(".yml")


def _catalog_name(model: str) -> str:
    """The name to look a preset up by in the catalog."""
    stem = preset_stem(model)
    entry = shipped_defaults()["presets"].get(stem, {})
    return str(entry.get("catalog") or re.sub(r"_v\d+\.\d+$", "", stem))


def _catalog_model(model: str, where: str) -> Model:
    """The catalog's model of a preset.

    Raises:
        InputError: the catalog has none; the sentence says how to name the checkout.
    """
    try:
        return catalog.model(_catalog_name(model))
    except InputError as error:
        raise InputError(
            f"{where}: no Primus checkout holds the model preset {model!r} "
            f"(PRIMUS_PATH names it), and {error}"
        ) from None


def _named(model: Model, preset: str, values: Values) -> Model:
    """The model under its catalog name where it is the same, with a note where it differs."""
    note = shipped_defaults()["presets"].get(preset_stem(preset), {}).get("note")
    if note:
        values.note(f"{preset}: {note}.")
    known = None
    with suppress(InputError):
        known = catalog.model(_catalog_name(preset))
    if known is None:
        return model
    # Correction biases of the router are buffers here, which a catalog may count; MTP layers are a
    # setting of the training, not another model. Rotary base and epsilon are those of the preset,
    # which the job is run with: without a checkout the same job must read the same.
    apart = ("name", "source", "moe_layers", "router_bias", "mtp_layers", "rotary_base",
             "norm_epsilon")  # fmt: skip
    fields = [name for name in Model.model_fields if name not in apart]
    other = [name for name in fields if getattr(model, name) != getattr(known, name)]
    if model.layer_is_moe().tolist() != known.layer_is_moe().tolist():
        other.append("moe_layers")
    if not other:
        return known.model_copy(update={"mtp_layers": model.mtp_layers})
    values.note(f"the model differs from {known.name} of the catalog in {', '.join(other)}.")
    return model


def _check_projected(values: Values) -> None:
    for key, what in _UNPROJECTED_FLAGS.items():
        if values.flag(key):
            raise InputError(f"{values.where}: {what} is not supported; switch it off.")


def _note_keys(values: Values, module: Module, presets: Presets) -> None:
    """Notes on overrides that nothing reads and on overrides that change the architecture."""
    if presets.model is not None:
        known = presets.known_keys()
        for key in module.overrides:
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.9)
            if near:
                values.note(f"the override {key} is unknown and has no effect; is it {near[0]}?")
        changed = [
            key
            for key in ARCHITECTURE_KEYS
            if key in module.overrides
            and key in presets.model
            and str(module.overrides[key]) != str(presets.model[key])
            and presets.model[key] is not None
        ]
        if changed:
            pairs = [f"{k} {presets.model[k]} -> {module.overrides[k]}" for k in changed]
            values.note(f"overrides change the model preset: {', '.join(pairs)}.")
    if "global_batch_size" not in module.overrides:
        batch = values.arguments.get("global_batch_size")
        values.note(f"global_batch_size is not in the overrides; {module.config} says {batch}.")


def _fill_vocabulary(values: Values, preset: str) -> None:
    """vocab_size from the tokenizer, or from the catalog's model of the preset."""
    if values.given("vocab_size"):
        return
    tokenizer = values.text("tokenizer_model")
    size = shipped_defaults()["tokenizers"].get(tokenizer)
    origin = f"tokenizer {tokenizer}"
    if size is None:
        with suppress(InputError):
            known = catalog.model(_catalog_name(preset))
            size, origin = known.vocab_size, f"{known.name} of the catalog"
    if size is None:
        raise values.fail(f"the vocabulary of tokenizer {tokenizer!r} is unknown; add vocab_size.")
    values.arguments["vocab_size"] = size
    values.note(f"vocab_size is null in the preset; {size:,} is that of {origin}.")


def _settle_layout(values: Values, model: Model, layout: str, pp: int, vpp: int) -> Model:
    """The model with the MTP layers that an explicit layout places.

    Raises:
        InputError: the layout does not place the model's decoder layers.
    """
    if not is_explicit(layout):
        return model
    try:
        stages = virtual_stages(layout, model.num_layers, model.mtp_layers, pp, vpp)
    except InputError as error:
        raise values.fail(str(error)) from None
    placed = sum(stage.mtp_layers for stage in stages)
    if placed == model.mtp_layers:
        return model
    values.note(
        f"contradiction: mtp_num_layers is {model.mtp_layers}, but pipeline_model_parallel_layout "
        f"places {placed} MTP layers (m); projected with {placed}, as the layout says."
    )
    return model.model_copy(update={"mtp_layers": placed})


def _workload(values: Values, module: Module, model: Model) -> Workload:
    """What is trained."""
    seq_len = values.required("seq_length")
    positions = values.integer("max_position_embeddings", 1)
    if positions is not None and positions < seq_len:
        raise values.fail(
            f"seq_length {seq_len} is above max_position_embeddings {positions}; raise the latter."
        )
    kind, rank = _kind(values, module)
    if model.is_moe and not values.flag("moe_router_force_load_balancing"):
        values.note("routing is not forced to be balanced; it is projected as balanced.")
    return Workload(
        model=model,
        seq_len=seq_len,
        global_batch_size=values.required("global_batch_size"),
        kind=kind,
        lora_rank=rank,
        capacity_factor=values.number("moe_expert_capacity_factor") or 0.0,
    )


def _kind(values: Values, module: Module) -> tuple[TrainingKind, int]:
    """Kind of training and LoRA rank."""
    lora = values.arguments.get("lora")
    tuned = module.config.startswith("sft") or values.text("stage") == "sft"
    if values.flag("use_packed_attention"):
        values.note("attention is kept within packed samples; it is projected over the sequence.")
    if not isinstance(lora, dict) or not Values(lora, f"{values.where}: lora").flag("enabled"):
        return (TrainingKind.FINETUNE if tuned else TrainingKind.PRETRAIN), 0
    settings = Values(lora, f"{values.where}: lora")
    targets = settings.words("target_modules")
    if targets is not None and set(targets) != _LORA_TARGETS:
        values.note(
            f"LoRA adapts {', '.join(targets)}; it is projected on all linear layers of a block."
        )
    return TrainingKind.LORA, settings.integer("dim", 1) or 32
