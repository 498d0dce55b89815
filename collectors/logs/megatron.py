"""Logs of Megatron-LM and its descendants Primus and Megatron-DeepSpeed."""

from __future__ import annotations

import ast
import re
from typing import Any

from collectors.logs.format import Description, LogFormat
from collectors.logs.run_log import RunLog
from specs import catalog
from specs.choices import CpComm, RecomputeMethod, RecomputeModules, Sharding
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.megatron import ARGPARSE_DEFAULTS
from specs.formats.megatron.axes import read_config
from specs.formats.megatron.flags import from_flags
from specs.formats.megatron.model import read_model
from specs.formats.megatron.stack import read_stack
from specs.formats.megatron.values import Values
from specs.model import Model
from specs.stack import Framework, Stack

_MEMBER = re.compile(r"[A-Z]\w{1,60}\.(\w{1,60})")
_DTYPE = re.compile(r"torch\.(\w{1,20})")
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}


class MegatronLm(LogFormat):
    """Megatron-LM: the argument dump, iteration lines and memory lines."""

    name = "Megatron-LM"
    framework = Framework.MEGATRON

    def recognises(self, run: RunLog) -> bool:
        return bool(run.arguments or len(run.iterations) or "command" in run.facts)

    def describe(self, run: RunLog, where: str) -> Description:
        arguments = self.arguments(run)
        if "num_layers" not in arguments:
            return self._without_dump(run, "the log holds no argument dump")
        try:
            return self._described(run, arguments, where)
        except InputError:
            if not run.in_arguments:
                raise
            return self._without_dump(run, "the argument dump is cut")

    def _described(self, run: RunLog, arguments: dict[str, Any], where: str) -> Description:
        """The configuration that the arguments state."""
        values = Values(ARGPARSE_DEFAULTS | arguments, where)
        model = self.model(values)
        config = self.config(values, model)
        environment = dict.fromkeys(
            ["PYTORCH_CUDA_ALLOC_CONF"] if "expandable_segments" in run.facts else [],
            "expandable_segments:True",
        )
        stack = read_stack(values, self.framework, self.name, environment)
        found = Description(model=named(model), notes=list(values.notes))
        found.columns = config_columns(config, model) | {
            "framework": self.name,
            "framework_version": self.version(run),
            "model": found.model.name if found.model else "",
            "seq_len": str(values.required("seq_length")),
            "gbs": str(values.integer("global_batch_size", 1) or ""),
            "num_gpus": str(values.integer("world_size", 1) or run.facts.get("world_size", "")),
            "dp": str(values.integer("data_parallel_size", 1) or ""),
        }
        found.words = stack_words(stack, config)
        return found

    def _without_dump(self, run: RunLog, why: str) -> Description:
        """What is known of a run whose arguments are not."""
        found = Description(columns={"framework": self.name})
        if "world_size" in run.facts:
            found.columns["num_gpus"] = run.facts["world_size"]
        found.notes.append(f"{why}, so that the configuration is unknown; --set states it")
        return found

    def version(self, run: RunLog) -> str:
        """What the log says about releases."""
        parts = [f"{n} {run.facts[n]}" for n in ("deepspeed", "torch") if n in run.facts]
        return ", ".join(parts)

    def arguments(self, run: RunLog) -> dict[str, Any]:
        """Arguments by destination name, from the dump or else from the launch command."""
        if run.arguments:
            given = {name: parsed(text) for name, text in run.arguments.items()}
        elif "command" in run.facts:
            given = _of_command(run.facts["command"])
        else:
            return {}
        for name in ("vocab_size", "padded_vocab_size", "world_size"):
            if given.get(name) is None and name in run.facts:
                given[name] = int(run.facts[name])
        if given.get("vocab_size") is None and given.get("padded_vocab_size") is not None:
            given["vocab_size"] = given["padded_vocab_size"]
        # Megatron prints derived values beside the arguments: they are no second model.
        if given.get("encoder_num_layers") == given.get("num_layers"):
            given.pop("encoder_num_layers", None)
        if given.get("model_type") == "encoder_or_decoder":
            given["model_type"] = None
        if given.get("experimental_attention_variant") is None:
            given.pop("linear_num_key_heads", None)
        return given

    def model(self, values: Values) -> Model:
        """The architecture."""
        return read_model(values, "model")

    def config(self, values: Values, model: Model) -> TrainingConfig:
        """The axes."""
        return read_config(values, model)


class Primus(MegatronLm):
    """Primus on its Megatron backend: prefixed lines, device memory inside the iteration lines."""

    name = "Primus"
    framework = Framework.PRIMUS

    _arguments = ("enable_primus_turbo", "patch_primus_pipeline", "use_turbo_attention")

    def recognises(self, run: RunLog) -> bool:
        marked = any(name in run.arguments for name in self._arguments)
        return marked or "primus" in run.facts or "primus memory" in run.facts


class MegatronDeepSpeed(MegatronLm):
    """Megatron-DeepSpeed (BigScience, Microsoft, TurkuNLP): older argument names, ZeRO stages."""

    name = "Megatron-DeepSpeed"
    framework = Framework.MEGATRON_DEEPSPEED

    def recognises(self, run: RunLog) -> bool:
        return run.arguments.get("deepspeed") == "True" or "zero_stage" in run.arguments

    def arguments(self, run: RunLog) -> dict[str, Any]:
        given = super().arguments(run)
        if given.get("checkpoint_activations"):
            given["recompute_granularity"] = "full"
            given["recompute_method"] = given.get("checkpoint_method") or "uniform"
            given["recompute_num_layers"] = given.get("checkpoint_num_layers") or 1
        if str(given.get("glu_activation")).lower() in ("swiglu", "geglu", "reglu", "liglu"):
            given["swiglu"] = True
        norm = str(given.get("normalization") or "LayerNorm").lower()
        given["normalization"] = "RMSNorm" if norm == "rmsnorm" else "LayerNorm"
        if given.get("position_embedding_type") == "absolute":
            given["position_embedding_type"] = "learned_absolute"
        if given.get("num_key_value_heads") not in (None, given.get("num_attention_heads")):
            given["num_query_groups"] = given["num_key_value_heads"]
            given["group_query_attention"] = True
        experts = given.get("num_experts")
        if isinstance(experts, list) and all(isinstance(count, int) for count in experts):
            given["num_experts"] = max(experts) if max(experts, default=1) > 1 else None
        given["transformer_impl"] = "local"
        given["use_flash_attn"] = any(
            given.get(f"use_flash_attn{suffix}") for suffix in ("", "_v1", "_v2", "_triton")
        )
        return given

    def model(self, values: Values) -> Model:
        model = super().model(values)
        # BLOOM's norm behind the embedding has no Megatron argument.
        return model.model_copy(update={"embedding_norm": values.flag("embed_layernorm")})

    def config(self, values: Values, model: Model) -> TrainingConfig:
        config = super().config(values, model)
        ulysses = values.integer("ds_sequence_parallel_size", 1) or 1
        if ulysses > 1:
            config = config.changed(cp=ulysses, cp_comm=CpComm.A2A)
        stage = values.integer("zero_stage") or 0
        if stage > 3:
            raise values.fail(f"zero_stage is {stage}; use 0 to 3.")
        sharding = (Sharding.NONE, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)[stage]
        if stage == 0 and values.flag("deepspeed") and values.flag("bf16"):
            values.note(
                "DeepSpeed shards the fp32 master weights and moments of bf16 training over data "
                "parallelism at ZeRO stage 0 too (deepspeed/runtime/bf16_optimizer.py): read as "
                "zero1."
            )
            sharding = Sharding.ZERO1
        return config.changed(sharding=sharding)


def parsed(text: str) -> Any:
    """A value of the dump in its Python type; enumeration members lose their class."""
    if text in ("None", ""):
        return None
    if text in ("True", "False"):
        return text == "True"
    if match := _DTYPE.fullmatch(text):
        return _DTYPES.get(match[1], match[1])
    if match := _MEMBER.fullmatch(text):
        return match[1]
    if (text[0] in "[(" and len(text) < 4096) or text[0] in "-.0123456789":
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return value if isinstance(value, int | float | list | tuple) else text
    return text


def _of_command(command: str) -> dict[str, Any]:
    """Arguments of the launch command; empty where it is no command line."""
    try:
        flags = from_flags(command)
    except InputError:
        return {}
    return {k: parsed(v) if isinstance(v, str) else v for k, v in flags.items()}


_DIMENSIONS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("head_dim", "tied_embeddings", "gated_mlp", "mla", "num_experts", "moe_topk", "mtp_layers"),
    *("moe_ffn_hidden_size", "shared_expert_ffn", "dense_layers", "qkv_bias", "linear_bias"),
    *("layer_norm_bias", "embedding_norm", "learned_positions", "sliding_window"),
)
_VOCABULARY_SLACK = 1024 * 8
"""A padded vocabulary exceeds the catalog's by less than 128 entries for each of 64 TP ranks."""


def named(model: Model) -> Model:
    """The model under the catalog's name where every dimension agrees, else named after its own.

    The vocabulary may be padded: the log then states more entries than the catalog.
    """
    for name in catalog.model_names():
        try:
            known = catalog.model(name)
        except InputError:
            continue
        same = all(getattr(known, key) == getattr(model, key) for key in _DIMENSIONS)
        if same and 0 <= model.vocab_size - known.vocab_size < _VOCABULARY_SLACK:
            return known
    experts = f"-e{model.num_experts}" if model.is_moe else ""
    name = f"gpt-l{model.num_layers}-h{model.hidden_size}-a{model.num_attention_heads}{experts}"
    return model.model_copy(update={"name": name})


def config_columns(config: TrainingConfig, model: Model) -> dict[str, str]:
    """The axes as columns of the table of runs."""
    labels = config.as_labels()
    names = ("tp", "pp", "vpp", "cp", "mbs", "precision", "sharding", "recompute")
    columns = {name: str(labels[name]) for name in names}
    columns["sequence_parallel"] = str(int(config.sequence_parallel))
    columns["schedule"] = str(labels["schedule"]) if config.pp > 1 else ""
    columns["overlap"] = str(labels["overlap"])
    if config.layout:
        columns["layout"] = config.layout
    if model.is_moe:
        columns |= {name: str(labels[name]) for name in ("ep", "etp", "moe_dispatcher")}
        columns["sync_free_stage"] = str(config.sync_free_stage)
    if config.recompute_method is not RecomputeMethod.NONE:
        columns["recompute_method"] = config.recompute_method.label
        columns["recompute_layers"] = str(config.recompute_layers)
    if config.recompute_modules is not RecomputeModules.NONE:
        columns["recompute_modules"] = config.recompute_modules.label
    return columns


def stack_words(stack: Stack, config: TrainingConfig) -> list[str]:
    """What the stack is, in the words that the reader of tables of runs knows."""
    words = ["flash attention" if stack.flash_attention else "no flash attention"]
    if stack.gradient_bytes == 2.0 and config.precision.label != "fp16":
        words.append("bf16 gradients")
    if stack.optimizer_bytes < 12.0 and config.precision.label not in ("fp16", "fp32"):
        words.append("precision-aware optimizer")
    if stack.expandable_segments:
        words.append("expandable_segments")
    if stack.full_iteration_graphs:
        words.append("cuda_graph_impl=full_iteration")
    elif stack.cuda_graphs:
        words.append("CUDA graphs on")
    if stack.turbo:
        words.append("Primus-Turbo")
    if stack.optimizer_offload_fraction:
        words.append("optimizer offloaded to CPU")
    if config.cross_entropy_fusion:
        words.append("cross-entropy fusion")
    return words
