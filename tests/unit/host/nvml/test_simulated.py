# SPDX-License-Identifier: Apache-2.0
"""Discovery with the real nvidia-ml-py and a library with the real NVML ABI."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError, NvmlError
from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import Inventory
from nvct.host.nvml.session import shared_session
from nvct.host.roots import Roots
from nvct_sim import tree


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tree.Node]:
    """A node with whole GPUs, one in MIG mode with devices, and one in MIG mode without."""
    try:
        created = tree.create("mixed", "mixed", tmp_path_factory.mktemp("nodes"))
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    before = os.environ.get("NVCT_SIM_DEV")
    os.environ["NVCT_SIM_DEV"] = str(created.dev)
    yield created
    if before is None:
        del os.environ["NVCT_SIM_DEV"]
    else:
        os.environ["NVCT_SIM_DEV"] = before


def look(node: tree.Node) -> Inventory:
    folders = {"proc": node.proc, "sys": node.sys, "etc": node.etc, "run": node.tree / "run"}
    roots = Roots(
        driver_root=str(node.driver_root),
        dev_root=str(node.tree),
        **{name: str(path) for name, path in folders.items()},
    )
    return discover(roots, DiscoveryOptions(stat_node=named_nodes(roots)))


def library_of(node: tree.Node) -> str:
    return f"{node.library_dir}/libnvidia-ml.so.{node.installed}"


def test_mig_devices_of_a_mixed_node_are_found(node: tree.Node) -> None:
    inventory = look(node)

    assert inventory.warnings == ()
    assert [(gpu.index, gpu.minor, gpu.mig_enabled) for gpu in inventory.gpus] == [
        (0, 3, False),
        (1, 0, True),
        (2, 1, True),
        (3, 4, False),
        (4, 2, False),
    ]
    assert [mig.profile for mig in inventory.gpus[1].mig] == ["3g.40gb", "2g.20gb", "1g.10gb+me"]
    assert all(mig.uuid.startswith("MIG-") for mig in inventory.gpus[1].mig)
    assert inventory.gpus[2].mig == ()


def test_library_that_does_not_fit_the_loaded_driver_says_so(
    node: tree.Node, tmp_path: Path
) -> None:
    newer = tmp_path / "libnvidia-ml.so.999.99.99"
    newer.write_bytes((node.library_dir / f"libnvidia-ml.so.{node.installed}").read_bytes())
    state = node.library_dir / f"libnvidia-simstate.so.{node.installed}"
    (tmp_path / "libnvidia-simstate.so.999.99.99").write_bytes(state.read_bytes())

    with pytest.raises(NvmlError, match="version mismatch") as caught:
        shared_session(str(newer)).report()

    assert caught.value.hint == "reboot, or reload the nvidia modules"


def test_discovery_and_later_calls_share_a_worker(node: tree.Node) -> None:
    look(node)
    session = shared_session(library_of(node))
    assert session._worker
    pid = session._worker.pid

    session.check()
    properties = session.properties()

    assert session._worker.pid == pid
    assert {gpu.arch for gpu in properties.values()} == {"7.5", "8.0", "9.0"}
    assert len(properties) == 5
