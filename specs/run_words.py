"""What the words around a measured run say about it: its stack, kind and what has no column.

Sources describe a run in its id, source and notes ("LoRA", "zb-2p", "capacity-factor 1.25",
"recompute_modules=moe_act"); a column of the same name, where the file has one, always wins. Only
words about the configuration are read, never about results.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from specs.choices import MoeDispatcher, Overlap, Precision, Sharding, TrainingKind
from specs.errors import InputError
from specs.gpu import Gpu
from specs.model import Model
from specs.names import printable
from specs.stack import Framework, Stack

FLASH_ATTENTION_YEAR = 2023
"""First year whose Megatron runs use flash attention (arXiv 2205.14135, in Megatron-LM 2023-02)."""

SHARDED_MASTER_WEIGHTS = (
    Framework.TORCHTITAN,
    Framework.PYTORCH_FSDP,
    Framework.MAXTEXT,
    Framework.HUGGING_FACE,
)
"""Families whose sharded parameters are the fp32 master weights: 4 + 4 + 8 bytes a parameter."""

NATURAL_IMBALANCE = 1.3
"""Tokens of the busiest expert-parallel rank over the mean where a router routes real data.
Assumed: dropless DeepSeek-V3 runs lose a quarter on real against forced balanced routing
(rocm-blogs maxtext-dropless-moe), all of whose expert work waits for the busiest rank."""

FUSED_LOSS_BY_DEFAULT = ("llm-foundry",)
"""Frameworks whose default loss is a fused cross-entropy (llm-foundry: ``fused_crossentropy``)."""

PARALLEL_BLOCKS = ("megascale",)
"""Frameworks that run attention and MLP in parallel (MegaScale, arXiv 2402.15627, 3.1)."""
OVERLAPS_TENSOR_PARALLELISM = ("megascale",)
"""Frameworks that hide TP collectives in chunks of their GEMMs by default (the same, 3.2)."""

COMPILED_BY_XLA = (Framework.MAXTEXT,)
"""Always compiled: its constants hold for that."""
LOSS_NOT_COMPILED = ((0, 202409), (202412, 202503))
"""Months, from and before, in which torchtitan compiled layers but not the loss: before it began to
(#533, August 2024, still proposes it), and from #755 to #1033 (pytorch/torchtitan)."""
UNPADDED_VOCABULARY = (*SHARDED_MASTER_WEIGHTS, Framework.DEEPSPEED)
WITHOUT_MTP = (Framework.TORCHTITAN, Framework.MAXTEXT, Framework.PYTORCH_FSDP)
FULL_RECOMPUTE_BY_DEFAULT = (Framework.MAXTEXT, Framework.HUGGING_FACE)
"""Published MaxText runs rematerialise in full; the trainers of fine-tuning (TRL, ms-swift,
LLaMA-Factory, the scripts of Qwen) checkpoint every layer unless told not to."""
SEQUENCE_PARALLEL_BY_DEFAULT = (
    Framework.NEMO,
    Framework.MEGATRON_BRIDGE,
    Framework.PRIMUS,
    Framework.TORCHTITAN,
)
"""Their recipes switch it on with TP, or their parallel plans know nothing else (TorchTitan)."""
NVIDIA_CONTAINERS = (Framework.NEMO, Framework.MEGATRON_BRIDGE)
"""Released in containers that are named by year and month."""
BF16_GRADIENTS = NVIDIA_CONTAINERS
"""Their performance recipes reduce gradients in bf16 (``grad_reduce_in_fp32: false``)."""

FOUR_BIT_WEIGHT_BYTES = 0.52
"""A 4-bit weight and its doubly quantised scale (QLoRA, arXiv 2305.14314: 0.127 bits a weight)."""

_LORA = re.compile(r"(?<![a-z])q?lora(?![a-z])", re.IGNORECASE)
_LORA_RANK = re.compile(r"lora[^;,]{0,12}?(?:\br|rank[ =]|dim[ =])(\d+)", re.IGNORECASE)
_FINETUNE = re.compile(r"(?<![a-z])(?:sft|fine-?tun(?:e|ed|ing)|task=sft)(?![a-z])", re.IGNORECASE)
_CAPACITY = re.compile(
    r"(?:(?<![a-z])cf|capacity[-_ ]factor[ =]*)(\d+(?:\.\d+)?)(?![\w])", re.IGNORECASE
)
_TOKEN_DROP = re.compile(r"token[- _]?drop", re.IGNORECASE)
_ZB_DOUBLE = re.compile(r"zb-?2p|zb-?h2", re.IGNORECASE)
_MODULE = "(?:core_attn|moe_act|layernorm|mla_up_proj|mlp|moe|shared_experts)"
_MODULES = re.compile(
    rf"(?:recompute[-_]modules=\[?|recompute )({_MODULE}(?:[+, ]{_MODULE})*)(?![a-z_])",
    re.IGNORECASE,
)
_LAYOUT = re.compile(r"pp_layout=([EtmL*|()\d,]+)")
_GRAPHS = re.compile(
    r"cuda_graph_impl=(?!none)\w+|CUDA graphs? (?:on|attn|scopes)(?![a-z])", re.IGNORECASE
)
_WHOLE_GRAPHS = re.compile(r"cuda_graph_impl=full_iteration", re.IGNORECASE)
_NODE_NETWORK = re.compile(r"inter-node (\d+) Gbps", re.IGNORECASE)
_NO_MTP = re.compile(r"(?:w/o|no|without) MTP", re.IGNORECASE)
_NO_FLASH = re.compile(
    r"no (?:--use-)?flash[- ]att|flash[- ]attention off|attention-backend=unfused"
    r"|unfused attention|transformer-impl=local",
    re.IGNORECASE,
)
"""Megatron's own layers (``transformer-impl=local``) store scores unless flash is asked for."""
_EXPANDABLE = re.compile(r"(?<!without )expandable[_ ]segments", re.IGNORECASE)
_TURBO = re.compile(r"primus-?turbo|(?<![a-z])turbo(?![a-z])", re.IGNORECASE)
_OVERLAPPED = {
    Overlap.DP: re.compile(r"overlap[-_ ](?:grad[-_ ]reduce|param[-_ ]gather)", re.IGNORECASE),
    Overlap.TP: re.compile(
        r"(?<!no )tp[-_ ]comm[-_ ]overlap(?!=false| off)|async[-_ ]?tp", re.IGNORECASE
    ),
    Overlap.EP: re.compile(
        r"moe_a2a_overlap=true|(?<!no )(?:ep|a2a)[- ]overlap(?!=false| off)", re.IGNORECASE
    ),
}
_ONE_PEER_EXCHANGE = re.compile(
    r"(?:naive|one-?shot)[^;,]{0,40}(?:a2a|all[-_ ]?to[-_ ]?all)", re.IGNORECASE
)
_COARSE_GATHERS = re.compile(r"image-default XLA|gathers not overlapped", re.IGNORECASE)
"""XLA combines gathers up to a threshold, which images for AMD set to 8 GiB (maxtext-slurm)."""
_BALANCED_ROUTING = re.compile(
    r"force_load_balancing=true|forced? (?:load[- ])?balanc|balanced routing", re.IGNORECASE
)
_NATURAL_ROUTING = re.compile(
    r"force_load_balancing=false|natural routing|routing skew|real (?:C4 )?data", re.IGNORECASE
)
_ROW_SCALES = re.compile(r"(?<![a-z])row-?wise(?![a-z])", re.IGNORECASE)
_SYNC_FREE = re.compile(r"sync[- ]free (?:MoE )?stage ([0-3])", re.IGNORECASE)
_PRECISION_AWARE = re.compile(r"precision[- ]aware optimizer", re.IGNORECASE)
_FUSED_LOSS = re.compile(
    r"(?:loss|cross[- _]entropy)[- _](?:loss[- _])?fusion"
    r"|(?:fused|chunked)[- ](?:loss|cross[- ]entropy)",
    re.IGNORECASE,
)
_VOCABULARY_METHOD = re.compile(r"method Vocab-([12])", re.IGNORECASE)
_FOUR_BIT_BASE = re.compile(r"(?<![a-z])qlora|base 4-bit|4-bit base", re.IGNORECASE)
_PURE_16_BIT = re.compile(r"pure (?:bf16|16-bit)", re.IGNORECASE)
_16_BIT_MOMENTS = re.compile(r"bf16 Adam states|bf16 grads/moments|bf16 moments", re.IGNORECASE)
_16_BIT_GRADIENTS = re.compile(r"bf16 grad", re.IGNORECASE)
_8_BIT_MOMENTS = re.compile(r"8-bit Adam", re.IGNORECASE)
_OFFLOADED_WEIGHTS = re.compile(r"CPU offload of weights|params on CPU", re.IGNORECASE)
_OFFLOADED_CHECKPOINTS = re.compile(
    r"activations? (?:checkpoints? )?offload(?:ed|ing)?|offload(?:ed|s|ing)? activation",
    re.IGNORECASE,
)
_NOT_OFFLOADED = re.compile(r"(?:no|without) activation (?:checkpoint )?offload", re.IGNORECASE)
_COMPILED = re.compile(
    r"(?<!no )(?<!without )(?<![a-z])(?:torch\.)?compiled?(?![a-z])|\(compiler\)"
    r"|graph[- ](?:trainer|pass)|inductor|SimpleFSDP",
    re.IGNORECASE,
)
_GRAPH_OF_MODEL = re.compile(r"graph[- ](?:trainer|pass)", re.IGNORECASE)
_OFFLOADED_OPTIMIZER = re.compile(
    r"optimizer (?:states? )?(?:fully )?offload(?:ed)? to CPU", re.IGNORECASE
)


class Words(NamedTuple):
    """What the words say; empty, zero or None where they say nothing."""

    kind: TrainingKind
    lora_rank: int
    capacity_factor: float
    two_p_zero_bubble: bool
    recompute_modules: str
    layout: str
    overlapped: Overlap
    without_mtp: bool
    cross_entropy_fusion: bool
    node_bytes_per_s: float
    routing_imbalance: float
    sync_free_stage: int


def read_words(run_id: str, source: str, notes: str) -> Words:
    """What run id, source and notes say about the configuration."""
    text = f"{run_id} ; {source} ; {notes}"
    lora = _LORA.search(text) is not None
    tuned = _FINETUNE.search(f"{run_id} ; {source} ; {notes[:40]}") is not None
    kind = TrainingKind.LORA if lora else TrainingKind.FINETUNE if tuned else TrainingKind.PRETRAIN
    rank = _LORA_RANK.search(text)
    capacity = _CAPACITY.search(text)
    network = _NODE_NETWORK.search(notes)
    dropped = 1.0 if _TOKEN_DROP.search(text) else 0.0
    modules, layout = _MODULES.search(notes), _LAYOUT.search(notes)
    return Words(
        kind=kind,
        # 16 is the rank of the MLPerf Llama-2-70B LoRA benchmark and of most recipes.
        lora_rank=(int(rank[1]) if rank else 16) if lora else 0,
        capacity_factor=float(capacity[1]) if capacity else dropped,
        two_p_zero_bubble=_ZB_DOUBLE.search(run_id) is not None,
        recompute_modules=modules[1].replace(" ", "+") if modules else "",
        layout=layout[1] if layout else "",
        overlapped=_overlapped(notes),
        without_mtp=_NO_MTP.search(text) is not None,
        cross_entropy_fusion=_FUSED_LOSS.search(notes) is not None,
        node_bytes_per_s=float(network[1]) * 1e9 / 8 if network else 0.0,
        routing_imbalance=_routing_imbalance(notes),
        sync_free_stage=int(stage[1]) if (stage := _SYNC_FREE.search(notes)) else 0,
    )


def scales_by_row(notes: str) -> bool:
    """Whether 8-bit operands are scaled by row: finer than a tensor, as blocks are."""
    return _ROW_SCALES.search(notes) is not None


def _overlapped(notes: str) -> Overlap:
    """Communication that is said to overlap with compute."""
    said = Overlap.NONE
    for kind, words in _OVERLAPPED.items():
        if words.search(notes):
            said |= kind
    return said


def stack_of(
    framework: str, version: str, precision: Precision, source_date: str, notes: str
) -> Stack:
    """The Stack of a run from its framework, release, number format and date.

    Without a framework it is Megatron-LM.

    Raises:
        InputError: framework or version is no printable line.
    """
    for column, text in (("framework", framework), ("version", version)):
        try:
            printable(text)
        except ValueError as error:
            raise InputError(f"{column} {error}.") from None
    family = Framework.parse(framework or "Megatron-LM")
    weight_bytes, gradient_bytes, optimizer_bytes = _state_bytes(family, precision, notes)
    compiled = _is_compiled(family, precision, notes)
    return Stack(
        framework=family,
        framework_name=framework or "Megatron-LM",
        version=version,
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_bytes=optimizer_bytes,
        flash_attention=_has_flash_attention(framework, family, source_date, notes),
        expandable_segments=_EXPANDABLE.search(notes) is not None,
        cuda_graphs=_GRAPHS.search(notes) is not None,
        full_iteration_graphs=_WHOLE_GRAPHS.search(notes) is not None,
        compiled=compiled,
        compiled_loss=compiled and _compiles_loss(family, source_date, notes),
        one_peer_exchange=_ONE_PEER_EXCHANGE.search(notes) is not None,
        coarse_gathers=_COARSE_GATHERS.search(notes) is not None,
        turbo=_TURBO.search(f"{version} {notes}") is not None,
        optimizer_offload_fraction=1.0 if _OFFLOADED_OPTIMIZER.search(notes) else 0.0,
        weight_offload_fraction=1.0 if _OFFLOADED_WEIGHTS.search(notes) else 0.0,
        checkpoint_offload_fraction=1.0 if _offloads_checkpoints(notes) else 0.0,
        vocab_divisible_by=1 if family in UNPADDED_VOCABULARY else 128,
        vocabulary_barriers=_vocabulary_barriers(notes),
        untied_tp_mapping=False,
    )


def _is_compiled(family: Framework, precision: Precision, notes: str) -> bool:
    """Whether the layers run through torch.compile: as said, and in 8-bit torchtitan runs, whose
    casts pay only where they are fused (torchtitan docs/float8.md)."""
    in_8_bit = family is Framework.TORCHTITAN and precision >= Precision.FP8
    return family not in COMPILED_BY_XLA and (in_8_bit or _COMPILED.search(notes) is not None)


def _compiles_loss(family: Framework, source_date: str, notes: str) -> bool:
    """Whether the loss of a run with compiled layers is compiled too, as torchtitan does; passes
    over the graph of the model leave the loss out. A run without a date is taken as recent."""
    if family is not Framework.TORCHTITAN or _GRAPH_OF_MODEL.search(notes):
        return False
    digits = source_date.replace("-", "")[:6]
    month = int(digits) if len(digits) == 6 and digits.isdigit() else 999999
    return not any(start <= month < end for start, end in LOSS_NOT_COMPILED)


def _offloads_checkpoints(notes: str) -> bool:
    """Whether what full recomputation keeps of a layer lies in host memory."""
    return bool(_OFFLOADED_CHECKPOINTS.search(notes) and not _NOT_OFFLOADED.search(notes))


def _vocabulary_barriers(notes: str) -> int:
    """Barriers of vocabulary parallelism: Vocab-1 has two, Vocab-2 one (arXiv 2411.05288)."""
    method = _VOCABULARY_METHOD.search(notes)
    return {"1": 2, "2": 1}[method[1]] if method else 0


def _state_bytes(family: Framework, precision: Precision, notes: str) -> tuple[float, float, float]:
    """Bytes a parameter of weights, gradients and optimizer state.

    Megatron keeps fp32 main gradients in bf16 training and fp16 gradients in fp16 training
    (``accumulate_allreduce_grads_in_fp32``); FSDP families shard fp32 master weights; the fp16
    optimizer of DeepSpeed keeps an fp32 gradient beside master and moments, and its BF16_Optimizer
    fp32 gradients that are not sharded (deepspeed/runtime/bf16_optimizer.py).
    """
    weight, master, moments = 2.0, 4.0, 8.0
    gradient = 2.0 if precision is Precision.FP16 or family in BF16_GRADIENTS else 4.0
    if family in SHARDED_MASTER_WEIGHTS:
        weight, gradient, master = 4.0, 4.0, 0.0
    elif family is Framework.MEGATRON_DEEPSPEED:
        gradient, master = (2.0, 8.0) if precision is Precision.FP16 else (6.0, 4.0)
    if _PURE_16_BIT.search(notes):
        weight, gradient, master, moments = 2.0, 2.0, 0.0, 4.0
    if _PRECISION_AWARE.search(notes) or _16_BIT_MOMENTS.search(notes):
        moments = 4.0
    if _16_BIT_GRADIENTS.search(notes):
        gradient = 2.0
    if _8_BIT_MOMENTS.search(notes):
        moments = 2.0
    if _FOUR_BIT_BASE.search(notes):
        weight = FOUR_BIT_WEIGHT_BYTES
    return weight, gradient, master + moments


def _has_flash_attention(framework: str, family: Framework, source_date: str, notes: str) -> bool:
    """Whether attention scores are never stored.

    The zero-bubble fork of Megatron-LM (arXiv 2401.10241) and Megatron-DeepSpeed ship without
    flash attention switched on; the vocabulary-parallel successor (arXiv 2411.05288) uses it.
    """
    if _NO_FLASH.search(notes):
        return False
    if "flash attention" in notes.lower():
        return True
    year = int(source_date[:4]) if source_date[:4].isdigit() else 9999
    megatron = family in (Framework.MEGATRON, Framework.MEGATRON_DEEPSPEED)
    if megatron and year < FLASH_ATTENTION_YEAR:
        return False
    name = framework.lower()
    zero_bubble_fork = "sail-sg" in name and "vocab" not in name
    return not (zero_bubble_fork or family is Framework.MEGATRON_DEEPSPEED)


def fuses_loss(framework: str, words: Words) -> bool:
    """Whether the cross-entropy is fused: as said, or by default of the framework."""
    by_default = any(name in framework.lower() for name in FUSED_LOSS_BY_DEFAULT)
    return words.cross_entropy_fusion or by_default


def _routing_imbalance(notes: str) -> float:
    """Busiest over mean expert-parallel rank as said; 0 where nothing is said."""
    if _NATURAL_ROUTING.search(notes):
        return NATURAL_IMBALANCE
    return 1.0 if _BALANCED_ROUTING.search(notes) else 0.0


def default_imbalance(model: Model, stack: Stack, kind: TrainingKind) -> float:
    """Busiest over mean expert-parallel rank where the run does not say.

    Benchmarks of pretraining force or reach balance; fine-tuning routes real data by a trained
    router.
    """
    tuner = stack.framework is Framework.HUGGING_FACE or "swift" in stack.framework_name.lower()
    tunes = tuner or kind is not TrainingKind.PRETRAIN
    return NATURAL_IMBALANCE if model.is_moe and tunes else 1.0


def default_dispatcher(stack: Stack, gpu: Gpu, capacity_factor: float = 0.0) -> MoeDispatcher:
    """How the recipes of a release dispatch tokens where the run does not say.

    Megatron-Bridge performance recipes: in container 25.09 (tag v0.1.0, run_script.py) DeepEP where
    Hopper drops no tokens; later (tags v0.2.0 to v0.6.0) HybridEP on NVL72 from 25.11 on and on
    every Blackwell GPU from 26.02 on; else all-to-all.
    """
    if stack.framework is not Framework.MEGATRON_BRIDGE:
        return MoeDispatcher.ALLTOALL
    if dispatches_behind(stack, gpu, capacity_factor):
        return MoeDispatcher.DEEPEP
    since = (25, 11) if gpu.scale_up_gpus > gpu.gpus_per_node else (26, 2)
    blackwell = gpu.architecture.startswith("blackwell")
    hybrid = blackwell and _container(stack) >= since
    return MoeDispatcher.HYBRIDEP if hybrid else MoeDispatcher.ALLTOALL


def dispatches_behind(stack: Stack, gpu: Gpu, capacity_factor: float) -> bool:
    """Whether the recipes of a release hide the exchange of experts behind another microbatch.

    Megatron-Bridge's of container 25.09 do where Hopper drops no tokens (tag v0.1.0,
    run_script.py: DeepEP and A2A_1F1B); those of later ones say it.
    """
    first = stack.framework is Framework.MEGATRON_BRIDGE and _container(stack) == (25, 9)
    return first and gpu.architecture == "hopper" and capacity_factor == 0


def default_graphs(stack: Stack, gpu: Gpu, capacity_factor: float) -> bool:
    """Whether the recipes of a release capture layers in CUDA graphs where the run does not say.

    Megatron-Bridge's of container 25.09 do where Blackwell drops tokens (tag v0.1.0,
    scripts/performance/configs, ``cuda_graphs``); those of later ones say it.
    """
    first = stack.framework is Framework.MEGATRON_BRIDGE and _container(stack) == (25, 9)
    return first and gpu.architecture.startswith("blackwell") and capacity_factor > 0


def lacks_fused_attention(stack: Stack, gpu: Gpu, model: Model) -> bool:
    """Whether a release has no fused attention for this model on this GPU: it writes its scores.

    Transformer Engine trains heads of 192 by 128 (latent attention) on Blackwell from 2.5 on, with
    cuDNN 9.11 (its pull request 1797, 2025-05); containers before 25.07 have earlier ones.
    """
    released = _container(stack) if stack.framework in NVIDIA_CONTAINERS else ()
    early = () < released < (25, 7)
    return early and gpu.architecture.startswith("blackwell") and model.mla is not None


def _container(stack: Stack) -> tuple[int, ...]:
    """Year and month by which a release is named; empty where it is not."""
    return tuple(int(part) for part in re.findall(r"\d+", stack.version)[:2])


def default_overlap(stack: Stack, sharding: Sharding, tp: int, sequence_parallel: bool) -> Overlap:
    """What the recipes of a family overlap where the run does not say.

    NeMo and Bridge performance recipes overlap gradient reduction, parameter gathering and, with
    sequence parallelism, TP GEMMs; Primus and Megatron-LM recipes with a distributed optimizer
    overlap data parallelism; FSDP prefetches, and reduces behind the backward pass where it keeps
    its parameters gathered (ZeRO-2) as well.
    """
    family, name = stack.framework, stack.framework_name.lower()
    overlap = Overlap.NONE
    if any(word in name for word in OVERLAPS_TENSOR_PARALLELISM):
        return Overlap.DP | Overlap.TP
    recipe = family in (Framework.NEMO, Framework.MEGATRON_BRIDGE)
    distributed = sharding is Sharding.ZERO1 and family in (Framework.PRIMUS, Framework.MEGATRON)
    gathers = sharding in (Sharding.FSDP, Sharding.HSDP, Sharding.ZERO3)
    keeps = sharding is Sharding.ZERO2 and family in SHARDED_MASTER_WEIGHTS
    if recipe or distributed or gathers or keeps:
        overlap |= Overlap.DP
    if recipe and tp > 1 and sequence_parallel:
        overlap |= Overlap.TP
    return overlap
