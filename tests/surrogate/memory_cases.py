"""Models, GPUs and studies that the memory tests share; numbers are those of the public configs."""

from __future__ import annotations

from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.gpu import Gpu
from specs.model import Mla, Model
from specs.provenance import Quantity
from specs.stack import Stack
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.constants import shipped_constants
from surrogate.memory_constants import MemoryConstants

DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    num_layers=61,
    hidden_size=7168,
    ffn_hidden_size=18432,
    num_attention_heads=128,
    num_query_groups=128,
    head_dim=128,
    vocab_size=129280,
    mla=Mla(
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
    num_experts=256,
    moe_topk=8,
    moe_ffn_hidden_size=2048,
    shared_expert_ffn=2048,
    dense_layers=3,
    mtp_layers=1,
)
MIXTRAL_8X22B = Model(
    name="mixtral-8x22b",
    num_layers=56,
    hidden_size=6144,
    ffn_hidden_size=16384,
    num_attention_heads=48,
    num_query_groups=8,
    head_dim=128,
    vocab_size=32768,
    num_experts=8,
    moe_topk=2,
    moe_ffn_hidden_size=16384,
)
LLAMA_8B = Model(
    name="llama-3.1-8b",
    num_layers=32,
    hidden_size=4096,
    ffn_hidden_size=14336,
    num_attention_heads=32,
    num_query_groups=8,
    head_dim=128,
    vocab_size=128256,
)


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 51200) -> Model:
    """A GPT of arXiv 2205.05198: LayerNorm, biases, dropout and an ungated MLP."""
    return Model(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        tied_embeddings=True,
        gated_mlp=False,
        linear_bias=True,
        layer_norm_bias=True,
        learned_positions=2048,
        dropout=True,
    )


def quantity(value: float) -> Quantity:
    """A vendor number."""
    return Quantity(value=value, kind="vendor", source="data sheet")


def gpu(vendor: str = "amd", hbm_gib: float = 288.0) -> Gpu:
    """A GPU with this capacity; rates do not matter for memory."""
    return Gpu.model_validate(
        {
            "name": f"{vendor}-{hbm_gib:g}",
            "vendor": vendor,
            "architecture": "test",
            "precisions": ("bf16", "fp8"),
            "hbm_gib": quantity(hbm_gib),
            "hbm_bytes_per_s": quantity(8e12),
            "peak_flops": {"bf16": quantity(2.3e15), "fp8": quantity(4.6e15)},
            "sm_count": quantity(256),
            "max_clock_hz": quantity(2.4e9),
            "power_w": quantity(1400),
            "link_bytes_per_s": quantity(5e11),
            "link_latency_s": quantity(1e-6),
            "link_topology": "mesh" if vendor == "amd" else "switch",
            "scale_up_gpus": 8,
            "gpus_per_node": 8,
            "nic_bytes_per_s": quantity(5e10),
            "nic_latency_s": quantity(2e-6),
        }
    )


def study(
    model: Model,
    configs: ConfigTable | TrainingConfig,
    num_gpus: int = 64,
    seq_len: int = 4096,
    global_batch_size: int = 256,
    stack: Stack | None = None,
    device: Gpu | None = None,
    **workload: object,
) -> Cases:
    """Cases of one model on one cluster."""
    if isinstance(configs, TrainingConfig):
        configs = ConfigTable.from_configs([configs])
    nodes, per_node = max(num_gpus // 8, 1), min(num_gpus, 8)
    cluster = Cluster(name="", gpu=device or gpu(), num_nodes=nodes, gpus_per_node=per_node)
    job = Workload.model_validate(
        {
            "model": model,
            "seq_len": seq_len,
            "global_batch_size": global_batch_size,
            **workload,
        }
    )
    return Cases.of_study(configs, job, cluster, stack or Stack())


def prior_constants() -> MemoryConstants:
    """Constants before any data: what the sources say, in which known answers hold exactly."""
    constants = shipped_constants("memory_constants").constants
    return MemoryConstants.from_values(
        {name: c.value if c.prior is None else c.prior for name, c in constants.items()}
    )
