"""Primus experiments: every shipped YAML reads or says why not, and exports read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    Schedule,
    Sharding,
    TrainingKind,
)
from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.experiment import Experiment
from specs.formats.primus import overlay, read_primus, write_experiment, write_overlay
from specs.formats.primus.presets import load_presets, shipped_defaults
from specs.formats.yaml_files import read_chain
from specs.stack import Framework, Stack
from tests.specs.configs import MODELS, legal_configs, workload

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
PRIMUS = Stack(framework=Framework.PRIMUS, framework_name="Primus")
CONFIGS = "examples/megatron/configs/MI355X"

# Examples that are refused, and a word of the sentence that says why.
REFUSED = {
    "deepseek1.5B-odc-lbmini": "on-demand communication",
    "deepseek_v4_flash-BF16-pretrain": "deepseek_v4",
    "deepseek_v4_flash-FP8-pretrain": "deepseek_v4",
    "kimi_k3-BF16-8L-official": "kimi_k3",
    "kimi_k3-BF16-curve": "kimi_k3",
    "lfm2_8B_A1B-BF16-pretrain": "short-convolution",
    "lfm2_8B_A1B-FP8-pretrain": "short-convolution",
    "lfm2_8B_A1B-FP8-te-precision": "no modules",
    "mamba_370M-pretrain": "mamba",
    "native_hf_to_megatron_sft.template": "YOUR_MODEL_YAML",
    "qwen14B-odc-dn": "on-demand communication",
    "qwen3_5_35B_A3B-BF16-pretrain": "gated_delta_net",
    "qwen3_5_35B_A3B-FP8-pretrain": "gated_delta_net",
    "zebra_llama_1B-pretrain": "mamba",
    "zebra_llama_1B_gdn-pretrain": "mamba",
    "zebra_llama_1B_gdn_pure-pretrain": "mamba",
    "zebra_llama_1B_kda-pretrain": "mamba",
    "zebra_llama_1B_kda_pure-pretrain": "mamba",
    "zebra_llama_3B-pretrain": "mamba",
    "zebra_llama_8B-pretrain": "mamba",
}


@pytest.fixture(scope="module")
def primus(shared: Path) -> Path:
    return shared / "primus"


def test_every_shipped_experiment_reads_or_says_why(primus: Path) -> None:
    read = 0
    for path in sorted((primus / "examples").glob("*/configs/*/*.yaml")):
        word = REFUSED.get(path.stem)
        if word is None:
            experiment = read_primus(path)
            assert experiment.gpu == "MI355X"
            assert experiment.workload.global_batch_size > 0
            assert experiment.source == path
            read += 1
            continue
        with pytest.raises(InputError, match=word) as caught:
            read_primus(path)
        assert str(caught.value).count("\n") == 0
    assert read > 110


def test_mixtral_baseline(primus: Path) -> None:
    experiment = read_primus(primus / CONFIGS / "mixtral_8x22B_v0.1-BF16-pretrain.yaml")
    assert experiment.workload.model == catalog.model("mixtral-8x22b")
    assert experiment.workload.model.total_parameters() == 140_630_071_296
    assert (experiment.workload.seq_len, experiment.workload.global_batch_size) == (8192, 128)
    assert experiment.baseline == TrainingConfig(
        pp=4, ep=8, mbs=2, cross_entropy_fusion=True, overlap=Overlap.DP
    )
    assert experiment.min_gpus == 32
    assert not experiment.stack.turbo
    assert not experiment.stack.gradient_accumulation_fusion
    assert any("recomputes nothing" in note for note in experiment.notes)
    assert any("32,768" in note for note in experiment.notes)


def test_deepseek_v3_layout_without_mtp_is_reported(primus: Path) -> None:
    experiment = read_primus(primus / CONFIGS / "deepseek_v3-FP8-pretrain.yaml")
    config = experiment.baseline
    assert (config.pp, config.vpp, config.schedule) == (16, 2, Schedule.INTERLEAVED)
    assert config.precision is Precision.FP8
    assert len(config.recompute_layer_ids) == 21
    assert (config.moe_dispatcher, config.sync_free_stage) == (MoeDispatcher.DEEPEP, 1)
    assert experiment.workload.model.mtp_layers == 0
    assert experiment.workload.model.total_parameters() == 671_026_404_352
    assert any("contradiction: mtp_num_layers" in note for note in experiment.notes)
    assert experiment.stack.gradient_bytes == 2


def test_overrides_that_change_the_architecture_are_noted(primus: Path) -> None:
    experiment = read_primus(primus / CONFIGS / "deepseek_v2_lite-BF16-pretrain.yaml")
    assert experiment.workload.model.mla is None
    assert any("multi_latent_attention" in note for note in experiment.notes)
    assert any("differs from deepseek-v2-lite" in note for note in experiment.notes)
    glm = read_primus(primus / CONFIGS / "glm5-BF16-pretrain.yaml")
    assert glm.baseline.layout == "last=8"
    assert glm.workload.model.num_moe_layers == 78
    assert any("DSA" in note for note in glm.notes)


def test_fine_tuning_and_lora(primus: Path) -> None:
    lora = read_primus(primus / CONFIGS / "llama3_8B-BF16-lora-sft.yaml")
    assert lora.workload.kind is TrainingKind.LORA
    assert lora.workload.lora_rank == 32
    assert lora.baseline.mbs == 1
    assert any("outside modules" in note for note in lora.notes)


def test_fsdp(primus: Path) -> None:
    config = read_primus(primus / CONFIGS / "llama2_70B-FP8-pretrain.yaml").baseline
    assert config.sharding is Sharding.FSDP
    assert (config.recompute_method, config.recompute_layers) == (RecomputeMethod.BLOCK, 80)


def test_bases_chain_and_layout_chunks(primus: Path) -> None:
    experiment = read_primus(primus / CONFIGS / "minimax_m2.5-BF16-pretrain.yaml")
    assert experiment.workload.model.num_experts == 256
    assert (experiment.baseline.pp, experiment.baseline.vpp) == (4, 2)


def test_torchtitan(primus: Path) -> None:
    folder = primus / "examples/torchtitan/configs/MI355X"
    experiment = read_primus(folder / "llama3.1_405B-FP8-pretrain.yaml")
    config = experiment.baseline
    assert experiment.stack.framework is Framework.TORCHTITAN
    assert (config.precision, config.sharding) == (Precision.FP8_CS, Sharding.FSDP)
    assert config.recompute is Recompute.FULL
    assert experiment.workload.global_batch_size == 192
    assert experiment.stack.compiled
    assert experiment.stack.compiled_loss
    moe = read_primus(folder / "deepseek_v3_16b-BF16-pretrain.yaml")
    assert (moe.baseline.ep, moe.baseline.mbs, moe.min_gpus) == (8, 13, 8)
    gpu = catalog.gpu("MI355X")
    two_nodes = Cluster(name="", gpu=gpu, num_nodes=2, gpus_per_node=8, price_usd_per_gpu_hour=None)
    assert moe.on(two_nodes).workload.global_batch_size == 13 * 16


def test_environment_changes_what_is_read(primus: Path) -> None:
    path = primus / CONFIGS / "deepseek_v3-BF16-pretrain.yaml"
    experiment = read_primus(path, environment={"PRIMUS_SEQ_LENGTH": "2048", "PRIMUS_EP": "16"})
    assert experiment.workload.seq_len == 2048
    assert experiment.baseline.ep == 16


def test_without_a_checkout_the_catalog_stands_in(primus: Path, tmp_path: Path) -> None:
    for name in ("mixtral_8x22B_v0.1-BF16-pretrain", "llama3.1_70B-FP8-pretrain"):
        source = primus / CONFIGS / f"{name}.yaml"
        copy = tmp_path / source.name
        copy.write_text(source.read_text())
        alone, beside = read_primus(copy, environment={}), read_primus(source)
        assert alone.baseline == beside.baseline
        assert alone.workload == beside.workload
        assert any("no Primus checkout" in note for note in alone.notes)
        named = read_primus(copy, environment={"PRIMUS_PATH": str(primus)})
        assert named.notes == beside.notes
    with pytest.raises(InputError, match="no Primus checkout"):
        read_primus(copy, environment={"PRIMUS_PATH": str(tmp_path)})
    mamba = tmp_path / "mamba.yaml"
    mamba.write_text((primus / CONFIGS / "mamba_370M-pretrain.yaml").read_text())
    with pytest.raises(InputError, match="PRIMUS_PATH"):
        read_primus(mamba, environment={})


def test_shipped_defaults_are_those_of_primus(primus: Path) -> None:
    defaults = shipped_defaults()
    for config, keys in (
        ("pre_trainer.yaml", defaults["module"]),
        ("sft_trainer.yaml", defaults["module"] | defaults["sft_module"]),
    ):
        module = load_presets(primus, "megatron", config, "language_model.yaml").module
        assert {key: module[key] for key in keys} == keys
    model = load_presets(primus, "megatron", "pre_trainer.yaml", "language_model.yaml").model
    assert model is not None
    assert {key: model[key] for key in defaults["model"]} == defaults["model"]
    mixtral = load_presets(primus, "megatron", "pre_trainer.yaml", "mixtral_base.yaml").model
    assert mixtral is not None
    assert {key: mixtral[key] for key in defaults["moe_model"]} == defaults["moe_model"]


def test_module_and_model_presets_share_no_key_that_matters(primus: Path) -> None:
    """Their order decides nothing: only models that are not projected overlap with the trainer."""
    folder = primus / "primus/configs"
    module = read_chain(folder / "modules/megatron/pre_trainer.yaml")
    for path in sorted((folder / "models/megatron").glob("*.yaml")):
        model = read_chain(path)
        if model.get("model_type") in ("deepseek_v4", "kimi_k3"):
            continue
        overlap = {key for key in set(module) & set(model) if module[key] != model[key]}
        assert overlap <= {"enable_experimental"}, path.name


def _experiment(name: str, stack: Stack = PRIMUS) -> Experiment:
    model = catalog.model(name)
    return Experiment(
        name="study", workload=workload(model), stack=stack, baseline=TrainingConfig()
    )


@SLOW
@given(data=st.data(), name=st.sampled_from(MODELS))
def test_exports_read_back_without_a_checkout(
    data: st.DataObject, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    experiment = _experiment(name)
    config = data.draw(legal_configs(experiment.workload.model, PRIMUS))
    path = tmp_path_factory.mktemp("export") / "best.yaml"
    write_overlay(path, experiment, config, ("one line", "and two\nmore"))
    read = read_primus(path, environment={})
    assert read.baseline == config
    assert read.workload.model.total_parameters() == experiment.workload.model.total_parameters()
    assert read.workload.model.mtp_layers == experiment.workload.model.mtp_layers
    assert (read.workload.seq_len, read.workload.global_batch_size) == (8192, 4096)


@SLOW
@given(
    data=st.data(),
    name=st.sampled_from(
        (
            "mixtral_8x22B_v0.1-BF16-pretrain",
            "deepseek_v3-FP8-pretrain",
            "llama3.1_70B-BF16-pretrain",
        )
    ),
)
def test_exports_over_a_shipped_experiment_read_back(
    data: st.DataObject, name: str, primus: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    experiment = read_primus(primus / CONFIGS / f"{name}.yaml")
    presets = load_presets(primus, "megatron", "pre_trainer.yaml", "deepseek_v3.yaml")
    config = data.draw(legal_configs(experiment.workload.model, experiment.stack))
    written = overlay(config, experiment.workload, experiment.stack)
    megatron = shipped_defaults()["megatron_names"]
    assert [key for key in written if key not in presets and key not in megatron] == []
    path = tmp_path_factory.mktemp("export") / "best.yaml"
    write_overlay(path, experiment, config)
    read = read_primus(path, environment={"PRIMUS_PATH": str(primus)})
    assert read.baseline == config
    assert read.workload == experiment.workload
    assert read.stack.turbo == experiment.stack.turbo or config.sync_free_stage >= 2
    if config.precision not in (Precision.FP16, Precision.FP32):
        assert read.stack.optimizer_bytes == experiment.stack.optimizer_bytes
        assert read.stack.gradient_bytes == experiment.stack.gradient_bytes


def test_torchtitan_exports_read_back(primus: Path, tmp_path: Path) -> None:
    folder = primus / "examples/torchtitan/configs/MI355X"
    experiment = read_primus(folder / "llama3.1_70B-FP8-pretrain.yaml")
    base = TrainingConfig(sharding=Sharding.FSDP, overlap=Overlap.DP, mbs=2)
    full = {
        "recompute": Recompute.FULL,
        "recompute_method": RecomputeMethod.UNIFORM,
        "recompute_layers": 1,
    }
    for index, changes in enumerate(
        (
            {},
            {"tp": 2, "sequence_parallel": True, "cp": 2, "precision": Precision.FP8_CS},
            {"sharding": Sharding.HSDP, "replicate": 2, "precision": Precision.FP8_SC},
            full,
            {"recompute": Recompute.FULL, "recompute_layer_ids": tuple(range(1, 80, 2))},
        )
    ):
        config = base.changed(**changes)
        path = tmp_path / f"{index}.yaml"
        write_overlay(path, experiment, config)
        read = read_primus(path, environment={"PRIMUS_PATH": str(primus)})
        assert read.baseline == config
        assert read.workload == experiment.workload
    with pytest.raises(InputError, match="zero1"):
        write_experiment(experiment, base.changed(sharding=Sharding.ZERO1))


def test_keys_that_a_checkout_would_drop_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for kind, name in (("modules", "pre_trainer"), ("models", "llama")):
        folder = old / "primus/configs" / kind / "megatron"
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text("{}\n")
    source = old / "run.yaml"
    overrides = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "vocab_size": 128,
        "global_batch_size": 8,
        "seq_length": 128,
        "bf16": True,
    }
    module = {"framework": "megatron", "model": "llama.yaml", "overrides": overrides}
    source.write_text(yaml.safe_dump({"modules": {"pre_trainer": module}}))
    experiment = read_primus(source)
    assert write_experiment(experiment, experiment.baseline)
    zbv = experiment.baseline.changed(pp=2, schedule=Schedule.ZBV, vpp=2)
    with pytest.raises(InputError, match="does not know patch_primus_pipeline, pp_algorithm"):
        write_experiment(experiment, zbv)


def test_unknown_overrides_with_a_near_name_are_noted(primus: Path, tmp_path: Path) -> None:
    content = read_chain(primus / CONFIGS / "llama3.1_8B-BF16-pretrain.yaml")
    content["modules"]["pre_trainer"]["overrides"]["tensor_model_paralel_size"] = 8
    path = tmp_path / "typo.yaml"
    path.write_text(yaml.safe_dump(content))
    notes = read_primus(path, environment={"PRIMUS_PATH": str(primus)}).notes
    assert any("is it tensor_model_parallel_size?" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"modules": None}, "one trainer"),
        ({"modules": [1]}, "mapping"),
        ({"modules": {"pre_trainer": {"model": 3}}}, "model must be a name"),
        ({"modules": {"a": {"model": "x"}, "b": {"model": "y"}}}, "one trainer"),
        ({"modules": {"t": {"framework": "maxtext", "model": "x.yaml"}}}, "maxtext"),
        ({"modules": {"t": {"model": "mixtral_8x22B.yaml", "overrides": [1]}}}, "mapping"),
        ({"modules": {"t": {"model": "unheard-of.yaml"}}}, "unheard-of"),
    ],
)
def test_bad_experiments(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(change))
    with pytest.raises(InputError, match=word):
        read_primus(path, environment={})


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"seq_length": -1}, "seq_length"),
        ({"seq_length": 4096, "max_position_embeddings": 2048}, "max_position_embeddings"),
        ({"micro_batch_size": "many"}, "micro_batch_size"),
        ({"moe_layer_freq": "__import__('os').system('true')"}, "moe_layer_freq"),
        ({"num_experts": 8, "moe_router_topk": 9}, "moe_topk"),
        ({"hidden_size": 6145, "kv_channels": None}, "heads"),
        ({"pipeline_model_parallel_layout": "Et*3|t*4,L", "pipeline_model_parallel_size": 2}, "7"),
    ],
)
def test_bad_overrides(overrides: dict[str, Any], word: str, tmp_path: Path) -> None:
    module = {"model": "mixtral_8x22B.yaml", "overrides": overrides}
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({"modules": {"pre_trainer": module}}))
    with pytest.raises(InputError, match=word):
        read_primus(path, environment={})
