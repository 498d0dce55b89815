"""Clusters from a shorthand, from our own YAML and from the two of Primus."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specs.errors import InputError
from specs.formats.cluster import cluster_of, read_cluster


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "gpu"),
    [
        ("64xMI355X", 8, 8, "MI355X"),
        ("8x8xMI355X", 8, 8, "MI355X"),
        ("4x4xmi300x", 4, 4, "MI300X"),
        ("2xMI355X", 1, 2, "MI355X"),
        ("16384xH100", 2048, 8, None),
    ],
)
def test_shorthand(text: str, nodes: int, per_node: int, gpu: str | None) -> None:
    cluster = read_cluster(text)
    assert (cluster.num_nodes, cluster.gpus_per_node) == (nodes, per_node)
    assert gpu is None or cluster.gpu.name == gpu
    assert cluster.name == f"{nodes * per_node}x{cluster.gpu.name}"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("64xMI399X", "MI399X"),
        ("0xMI355X", "not possible"),
        ("0x8xMI355X", "not possible"),
        ("12xMI355X", "whole nodes"),
        ("999999999999999999xMI355X", "not possible|whole"),
        ("MI355X", "neither"),
        ("missing.yaml", "neither"),
        ("", "neither"),
    ],
)
def test_bad_shorthand(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        read_cluster(text)


def test_own_yaml(tmp_path: Path) -> None:
    content = {
        "name": "lab",
        "gpu": "MI355X",
        "num_nodes": 4,
        "price_usd_per_gpu_hour": 2.5,
        "overrides": {"nic_bytes_per_s": 2.5e10, "link_topology": "switch", "hbm_gib": 256},
    }
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(content))
    cluster = read_cluster(str(path))
    assert (cluster.name, cluster.num_gpus, cluster.price_usd_per_gpu_hour) == ("lab", 32, 2.5)
    assert cluster.gpu.nic_bytes_per_s.value == 2.5e10
    assert cluster.gpu.nic_bytes_per_s.source == str(path)
    assert cluster.gpu.link_topology == "switch"
    assert cluster.gpu.hbm_gib.value == 256


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"num_nodes": 4}, "gpu is missing"),
        ({"gpu": "MI355X", "nodes": 4}, "no field 'nodes'"),
        ({"gpu": "MI355X", "num_nodes": -4}, "num_nodes"),
        ({"gpu": "MI355X", "num_nodes": 1.5}, "num_nodes"),
        ({"gpu": "MI355X", "overrides": {"nic_bytes_per_s": 0}}, "nic_bytes_per_s"),
        ({"gpu": "MI355X", "overrides": {"nic_bytes_per_s": float("nan")}}, "nic_bytes_per_s"),
        ({"gpu": "MI355X", "overrides": {"color": 1}}, "color"),
        ({"gpu": "MI355X", "price_usd_per_gpu_hour": 1e308}, "price_usd_per_gpu_hour"),
        ({"gpu": "Voodoo"}, "Voodoo"),
    ],
)
def test_bad_own_yaml(content: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        cluster_of(content, "lab.yaml")


@pytest.mark.parametrize(
    ("gpu", "nodes", "per_node", "stated", "domain"),
    [
        ("H100", 2, 8, None, 8),
        ("H100", 2, 4, None, 4),
        ("A100-80GB", 2, 16, None, 16),
        ("A100-80GB", 2, 8, 4, 4),
        ("A100-80GB", 2, 2, 4, 2),
        ("GB200", 4, 4, None, 16),
        ("GB200", 36, 4, None, 72),
        ("H100", 4, 8, 16, 16),
    ],
)
def test_links_end_at_the_node(
    gpu: str, nodes: int, per_node: int, stated: int | None, domain: int
) -> None:
    """Only a rack's links leave a node, and boards of a node may be domains of their own."""
    content = {"gpu": gpu, "num_nodes": nodes, "gpus_per_node": per_node}
    cluster = cluster_of(content | {"overrides": {"scale_up_gpus": stated}}, "test")
    assert cluster.scale_up_gpus == domain


def test_primus_target_cluster(shared: Path) -> None:
    folder = shared / "primus/examples"
    cluster = read_cluster(str(folder / "agents/tuning_agent/target_cluster_mi355x_4nodes.yaml"))
    assert (cluster.name, cluster.num_nodes, cluster.gpus_per_node) == ("mi355x_4nodes", 4, 8)
    assert cluster.gpu.name == "MI355X"
    assert cluster.gpu.hbm_gib.value == 288
    assert cluster.gpu.link_bytes_per_s.value == 537.6e9
    assert cluster.gpu.nic_bytes_per_s.value == 50e9
    assert cluster.gpu.link_topology == "mesh"


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "mi350x", "mi355x"])
def test_primus_hardware(shared: Path, name: str) -> None:
    cluster = read_cluster(str(shared / f"primus/examples/hardware_configs/{name}.yaml"))
    assert (cluster.gpu.name, cluster.num_gpus) == (name.upper(), 8)


def test_network_yaml_is_not_ignored(shared: Path, tmp_path: Path) -> None:
    hardware = (shared / "primus/examples/hardware_configs/mi355x.yaml").read_text()
    (tmp_path / "slow.yaml").write_text(hardware.replace("node_bw: 537.6", "node_bw: 53.76"))
    target = {
        "target_cluster": {
            "num_nodes": 2,
            "gpus_per_node": 8,
            "gpu_arch": "mi355x",
            "hardware_config": "slow.yaml",
        }
    }
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(target))
    assert read_cluster(str(path)).gpu.link_bytes_per_s.value == pytest.approx(53.76e9)
    target["target_cluster"]["gpus_per_node"] = 4
    path.write_text(yaml.safe_dump(target))
    with pytest.raises(InputError, match="node_size"):
        read_cluster(str(path))
    target["target_cluster"]["hardware_config"] = "nowhere.yaml"
    path.write_text(yaml.safe_dump(target))
    with pytest.raises(InputError, match="nowhere"):
        read_cluster(str(path))
