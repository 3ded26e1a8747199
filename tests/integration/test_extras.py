# SPDX-License-Identifier: Apache-2.0
"""What containers get besides their GPUs, by real containers on a simulated HGX board."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import inside
from tests.integration.conftest import SimulatedNode, simulate

NODES = "cd /dev && find . -type c | sort"
BOARD = ("nvidia-fs", "infiniband", "gdrdrv", "nvswitch", "imex")
PRIVILEGED = ["CAP_SYS_ADMIN", "CAP_MKNOD"]


@pytest.fixture
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    """A node with NVSwitches, IMEX channels, GPUDirect Storage, GDRCopy and RDMA cards."""
    yield from simulate("hgx-h100", tmp_path_factory.mktemp("node"))


def container(work: Path, script: str, *env: str) -> subprocess.CompletedProcess[str]:
    """Run a container that asks for GPU 0 and something else."""
    count = len(list(work.glob("e*")))
    asks = ["NVIDIA_VISIBLE_DEVICES=0", *env]
    return inside.run(work, inside.make(work, f"e{count}", script, env=asks))


def nodes(said: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the nodes of the board that a container printed."""
    assert said.returncode == 0, said
    return [line for line in said.stdout.split() if any(word in line for word in BOARD)]


def each_feature_brings_its_nodes(work: Path) -> None:
    inside.configure(work)
    switches = [f"./nvidia-nvswitch{n}" for n in (0, 1, 2, 3, "ctl")]
    verbs = ["./infiniband/rdma_cm", *(f"./infiniband/uverbs{n}" for n in range(8))]
    disks = sorted(f"./nvidia-fs{n}" for n in range(16))
    channels = [f"./nvidia-caps-imex-channels/channel{n}" for n in (0, 2)]

    assert nodes(container(work, NODES)) == []
    assert nodes(container(work, NODES, "NVIDIA_GDS=enabled")) == disks
    assert nodes(container(work, NODES, "NVIDIA_MOFED=enabled")) == verbs
    assert nodes(container(work, NODES, "NVIDIA_GDRCOPY=enabled")) == ["./gdrdrv"]
    assert nodes(container(work, NODES, "NVIDIA_NVSWITCH=enabled")) == switches
    assert nodes(container(work, NODES, "NVIDIA_IMEX_CHANNELS=2,channel0")) == channels
    both = container(
        work, f"{NODES}; nvidia-smi -L; env", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"
    )
    assert nodes(both) == [channels[0], *disks]
    assert len(inside.UUID.findall(both.stdout)) == 1, both
    assert both.stdout.count("NVIDIA_VISIBLE_DEVICES=") == 1, both


def a_node_is_open_to_those_who_asked(work: Path) -> None:
    """The device rule comes with the node; ENXIO would mean that it is missing a driver only."""
    inside.configure(work)
    probe = "dd if=/dev/gdrdrv of=/dev/null count=0 2>&1; true"

    said = container(work, probe, "NVIDIA_GDRCOPY=enabled")

    assert "not permitted" not in said.stdout, said
    assert "denied" not in said.stdout, said


def what_comes_and_goes_is_seen(work: Path) -> None:
    inside.configure(work)
    folder = Path("/dev/nvidia-caps-imex-channels")
    asks = "NVIDIA_IMEX_CHANNELS=7"
    refused = container(work, NODES, asks)
    assert refused.returncode == 1
    assert "asks for channel 7, but this host has 0, 1, 2" in refused.stderr

    major = os.major((folder / "channel0").stat().st_rdev)
    os.mknod(folder / "channel7", 0o20666, os.makedev(major, 7))
    assert nodes(container(work, NODES, asks)) == ["./nvidia-caps-imex-channels/channel7"]
    (folder / "channel7").unlink()
    assert container(work, NODES, asks).returncode == 1

    assert len(nodes(container(work, NODES, "NVIDIA_GDS=enabled"))) == 16
    Path("/dev/nvidia-fs15").unlink()
    assert len(nodes(container(work, NODES, "NVIDIA_GDS=enabled"))) == 15
    for node in Path("/dev").glob("nvidia-fs*"):
        node.unlink()
    gone = container(work, NODES, "NVIDIA_GDS=enabled")
    assert gone.returncode == 1
    assert "NVIDIA_GDS=enabled: mode gds finds no " in gone.stderr, gone


def requirements_know_the_gpus(work: Path) -> None:
    inside.configure(work)
    too_new = "NVIDIA_REQUIRE_CUDA=cuda>=99 "
    fine = ("brand=nvidia,driver>=580", "brand=Nvidia", "arch>=9.0", "brand!=geforce,arch>=8.0")
    wrong = ("brand=geforce,driver>=580", "brand=geforcertx", "arch>=10.0", "brand!=nvidia")
    for words in fine:
        said = container(work, "true", too_new + words)
        assert said.returncode == 0, said
    for words in wrong:
        said = container(work, "true", too_new + words)
        assert said.returncode == 1, said
        assert "does not meet NVIDIA_REQUIRE_CUDA" in said.stderr


def mig_containers(work: Path) -> None:
    """A privileged container gets the capability, and GPUs in MIG mode as a whole."""
    inside.configure(work)
    config, monitor = "./nvidia-caps/nvidia-cap1", "./nvidia-caps/nvidia-cap2"

    def privileged(number: int, *env: str) -> list[str]:
        folder = inside.make(work, f"g{number}", NODES, env=env)
        path = folder / "config.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        sets = ("bounding", "effective", "permitted")
        document["process"]["capabilities"] = dict.fromkeys(sets, PRIVILEGED)
        path.write_text(json.dumps(document), encoding="utf-8")
        said = inside.run(work, folder)
        assert said.returncode == 0, said
        return said.stdout.split()

    got = privileged(0, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all")
    assert config in got
    assert monitor not in got
    assert "./nvidia3" in got
    got = privileged(1, "NVIDIA_VISIBLE_DEVICES=3", "NVIDIA_MIG_MONITOR_DEVICES=all")
    assert monitor in got
    assert "./nvidia3" in got
    assert "./nvidia0" not in got
    assert len([name for name in got if "nvidia-cap" in name]) == 1 + 2 * 7
    got = privileged(2, "NVIDIA_VISIBLE_DEVICES=0")
    assert not [name for name in got if "nvidia-cap" in name]
    plain = container(work, NODES, "NVIDIA_MIG_CONFIG_DEVICES=all")
    assert plain.returncode == 0, plain
    assert config not in plain.stdout


@pytest.mark.engine
def test_each_feature_brings_its_nodes(board: SimulatedNode) -> None:
    board.run(each_feature_brings_its_nodes)


@pytest.mark.engine
def test_a_node_is_open_to_those_who_asked(board: SimulatedNode) -> None:
    board.run(a_node_is_open_to_those_who_asked)


@pytest.mark.engine
def test_what_comes_and_goes_is_seen_by_the_next_create(board: SimulatedNode) -> None:
    board.run(what_comes_and_goes_is_seen)


@pytest.mark.engine
def test_requirements_on_brand_and_architecture_are_held_against_the_gpus(
    board: SimulatedNode,
) -> None:
    board.run(requirements_know_the_gpus)


@pytest.mark.engine
def test_privileged_containers_get_mig_capabilities(simulated: SimulatedNode) -> None:
    simulated.run(mig_containers)
