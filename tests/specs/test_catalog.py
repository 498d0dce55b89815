"""The catalog: exact parameter counts, provenance, names and what a user adds."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from specs import catalog
from specs.choices import Precision
from specs.errors import InputError
from specs.gpu import Gpu
from specs.provenance import Quantity

# (model, total, active) with the unpadded vocabulary, embeddings included.
PARAMETERS = [
    ("llama2-7b", 6_738_415_616, 6_738_415_616),
    ("Llama-3.1-8B", 8_030_261_248, 8_030_261_248),
    ("Llama-3.1-70B", 70_553_706_496, 70_553_706_496),
    ("Llama-3.1-405B", 405_853_388_800, 405_853_388_800),
    ("Qwen2.5-7B", 7_615_616_512, 7_615_616_512),
    ("Qwen3-8B", 8_190_735_360, 8_190_735_360),
    ("Mixtral-8x7B", 46_702_792_704, 12_879_925_248),
    ("mixtral_8x22B_v0.1", 140_630_071_296, 39_161_468_928),
    ("Qwen3-30B-A3B", 30_532_122_624, 3_353_032_704),
    ("Qwen3-235B-A22B", 235_093_634_560, 22_190_763_520),
    ("DeepSeek-V2-Lite", 15_706_484_224, 2_661_150_208),
    ("DeepSeek-V2", 235_741_434_880, 21_375_800_320),
    ("DeepSeek-V3", 671_026_404_352, 37_552_282_624),
    ("Kimi-K2", 1_026_408_232_448, 32_861_500_928),
    ("GPT-OSS-20B", 20_914_757_184, 4_187_440_704),
    ("GPT-OSS-120B", 116_829_156_672, 5_711_982_912),
    ("gpt3-175b-meg", 174_615_846_912, 174_615_846_912),
    ("megatron-22b", 22_074_273_792, 22_074_273_792),
    ("megatron-530b", 529_600_819_200, 529_600_819_200),
    # BLOOM as released: an embedding norm besides the final one
    ("bs-h14336-l70-a112", 176_247_271_424, 176_247_271_424),
    # xai-org/grok-1 model.py holds 770 tensors: 12 a layer, the embedding and one last norm
    ("Grok-1", 315_684_820_992, 83_756_587_008),
]


@pytest.mark.parametrize(("name", "total", "active"), PARAMETERS)
def test_parameter_counts(name: str, total: int, active: int) -> None:
    model = catalog.model(name)
    assert model.total_parameters() == total
    assert model.active_parameters() == active


def test_mixtral_with_the_smaller_vocabulary() -> None:
    mixtral = catalog.model("mixtral-8x22b").model_copy(update={"vocab_size": 32_000})
    assert mixtral.total_parameters() == 140_620_634_112


def test_multi_token_prediction_shares_embedding_and_head() -> None:
    deepseek = catalog.model("deepseek-v3")
    assert deepseek.mtp_parameters() == 11_610_067_968
    assert deepseek.total_parameters(with_mtp=True) == 682_636_472_320


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"),
    [
        (128_256, 1, 128_256),
        (128_256, 8, 129_024),
        (129_280, 8, 130_048),
        (201_088, 8, 201_728),
        (50_257, 1, 50_304),
        (50_257, 8, 51_200),
        (32_000, 8, 32_768),
    ],
)
def test_padded_vocabulary(vocab: int, tp: int, padded: int) -> None:
    model = catalog.model("llama2-7b").model_copy(update={"vocab_size": vocab})
    assert model.padded_vocab(tp) == padded


def test_every_model_and_gpu_of_the_catalog_is_valid_and_sourced() -> None:
    for name in catalog.model_names():
        assert catalog.model(name).source, name
    for name in catalog.gpu_names():
        gpu = catalog.gpu(name)
        for field in type(gpu).model_fields:
            value = getattr(gpu, field)
            for quantity in value.values() if isinstance(value, dict) else [value]:
                assert not isinstance(quantity, Quantity) or quantity.source


def test_gpus_that_must_be_there() -> None:
    names = [
        "MI250X",
        "MI300X",
        "MI325X",
        "MI350X",
        "MI355X",
        "A100-40GB",
        "A100-80GB",
        "H100-SXM",
        "H100-96GB",
        "H200",
    ]
    for name in [*names, "B200", "B300", "GB200", "GB300"]:
        assert catalog.gpu(name.lower()).name == name
    assert catalog.gpu("GB300").scale_up_gpus == 72
    assert catalog.gpu("GB200").gpus_per_node == 4
    assert catalog.gpu("H100").name == catalog.gpu("H100-80GB").name == "H100-SXM"


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("MI250X", "bf16 fp16 fp32"),
        ("A100-80GB", "bf16 fp16 fp32"),
        ("MI300X", "bf16 fp16 fp32 fp8 fp8-cs fp8-sc"),
        ("MI355X", "bf16 fp16 fp32 fp8 fp8-cs fp8-sc mxfp8 mxfp4"),
        ("H200", "bf16 fp16 fp32 fp8 fp8-cs fp8-sc"),
        ("GB200", "bf16 fp16 fp32 fp8 fp8-cs fp8-sc mxfp8 nvfp4"),
    ],
)
def test_precisions_by_gpu(name: str, runs: str) -> None:
    gpu = catalog.gpu(name)
    assert {p.label for p in Precision if gpu.supports(p)} == set(runs.split())
    assert all(Precision.parse(label).gemm_format in gpu.peak_flops for label in runs.split())


def test_unknown_names_offer_near_ones() -> None:
    with pytest.raises(InputError, match=r"MI355X.*--gpu-file"):
        catalog.gpu("MI355")
    with pytest.raises(InputError, match=r"llama4-maverick.*config\.json"):
        catalog.model("llama-4")
    with pytest.raises(InputError, match="linear attention"):
        catalog.model("Qwen3-Next-80B-A3B")


def test_a_user_adds_a_gpu_and_a_model(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "gpus:\n  MI999X: {extends: MI355X, aliases: [next], hbm_gib: [432, assumed, rumour]}\n"
        "models:\n  tiny: {extends: llama3.1-8b, num_layers: 2}\n"
    )
    own = catalog.read_gpus(file)
    assert own["MI999X"].hbm_gib.value == 432
    assert own["MI999X"].hbm_bytes_per_s == catalog.gpu("MI355X").hbm_bytes_per_s
    assert catalog.gpu("NEXT", own).name == "MI999X"
    assert catalog.gpu("mi355x", own).name == "MI355X"
    assert catalog.model("Tiny", catalog.read_models(file)).num_layers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: {X: {extends: X}}", "extends"),
        ("gpus: {X: {extends: Y}, Y: {extends: X}}", "circle"),
        ("gpus: {X: {extends: MI355X, hbm_gib: many}}", "hbm_gib"),
        ("gpus: {X: {vendor: amd}}", "architecture"),
        ("gpus: {X: 3}", "no fields"),
        ("other: {}", "no gpus: section"),
        ("gpus: [", "YAML"),
    ],
)
def test_a_faulty_gpu_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        catalog.read_gpus(file)


def test_names_of_the_measured_tables_are_known(shared: Path) -> None:
    left_out = catalog.unsupported_models()
    for table in ("runs", "memory_runs", "small_runs_memory", "vtrain_single_node"):
        with (shared / "measured" / f"{table}.csv").open() as file:
            rows = list(csv.DictReader(file))
        for name in {row["gpu"] for row in rows} - {""}:
            assert isinstance(catalog.gpu(name), Gpu)
        unknown = {"mamba-370m", "gdn-300m", "kda-300m", "gemma4-31b", "gemma4-26b"}
        for name in {row["model"] for row in rows} - unknown - set(left_out):
            assert catalog.model(name).name == name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct(TM) MI350X", "MI350X"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250X"),
    ],
)
def test_what_a_machine_prints_of_its_gpu_is_known(printed: str, name: str) -> None:
    assert catalog.gpu(printed).name == name


@pytest.mark.parametrize(
    "printed",
    [
        *(
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA H100 NVL",
            "NVIDIA GH200 480GB",
        ),
        *(
            "NVIDIA H100 80GB HBM2e",
            "AMD Radeon Graphics",
            "NVIDIA",
            "AMD Instinct",
            "NVIDIA H200 NVL",
        ),
        *("AMD Instinct MI300A", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ],
)
def test_another_variant_is_not_taken_for_a_known_one(printed: str) -> None:
    with pytest.raises(InputError, match="there is no GPU"):
        catalog.gpu(printed)


def test_aliases_name_one_gpu_each() -> None:
    seen: dict[str, str] = {}
    for name in catalog.gpu_names():
        for spelling in (name, *catalog.gpu(name).aliases):
            for form in (spelling, catalog.device_name(spelling)):
                assert seen.setdefault(catalog.normalised(form), name) == name
