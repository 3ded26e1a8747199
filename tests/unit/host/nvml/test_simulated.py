# SPDX-License-Identifier: Apache-2.0
"""Discovery with the real nvidia-ml-py and a library with the real NVML ABI."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct import typed
from nvct.errors import ContainerNotPossibleError, NvmlError
from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import Inventory
from nvct.host.nvml.mig_model import (
    ComputeInstance,
    Create,
    CreateCompute,
    Destroy,
    DestroyCompute,
    MigState,
    Placement,
    SetMode,
)
from nvct.host.nvml.session import NvmlSession, shared_session
from nvct.host.roots import Roots
from nvct_sim import tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE


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


# The MIG verbs on the simulated NVML, by the real nvidia-ml-py.


@pytest.fixture
def session(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NvmlSession]:
    try:
        with in_memory(tmp_path_factory.mktemp("nodes")) as folder:
            node = tree.create("mixed", "mixed", folder, native_cache=CACHE)
            monkeypatch.setitem(os.environ, "NVCT_SIM_DEV", str(node.dev))
            session = NvmlSession(f"{node.library_dir}/libnvidia-ml.so.{node.installed}")
            yield session
            session.close()
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


def test_the_state_of_every_gpu_is_read(session: NvmlSession) -> None:
    t4, a100, empty, *_ = session.mig().gpus

    assert not t4.capable
    assert t4.profiles == ()
    assert f"0x{t4.device:08X}" == "0x1EB810DE"
    assert (a100.enabled, a100.pending) == (True, True)
    assert [p.name for p in a100.profiles] == [
        "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb",
    ]  # fmt: skip
    by_name = {profile.name: profile for profile in a100.profiles}
    assert by_name["3g.40gb"].placements == (Placement(0, 4), Placement(4, 4))
    assert by_name["1g.10gb"].limit == 7
    kinds = {profile.kind: profile.name for profile in a100.profiles}
    assert {kinds[gi.kind] for gi in a100.instances} == {"3g.40gb", "2g.20gb", "1g.10gb+me"}
    assert all(len(gi.compute) == 1 for gi in a100.instances)
    assert empty.enabled
    assert empty.instances == ()


def test_instances_are_created_and_destroyed(session: NvmlSession) -> None:
    gpu = session.mig().gpus[2]
    gi = session.change_mig(Create(uuid=gpu.uuid, kind=2, start=4, size=4))
    ci = session.change_mig(CreateCompute(uuid=gpu.uuid, gi=gi, kind=1, engine=0))

    (instance,) = session.mig().gpus[2].instances
    assert instance.placement == Placement(4, 4)
    assert instance.compute == (ComputeInstance(id=ci, kind=1, engine=0, start=0, size=2),)

    with pytest.raises(NvmlError, match=r"nvmlGpuInstanceDestroy of .* failed: in use"):
        session.change_mig(Destroy(uuid=gpu.uuid, gi=gi))
    session.change_mig(DestroyCompute(uuid=gpu.uuid, gi=gi, ci=ci))
    session.change_mig(Destroy(uuid=gpu.uuid, gi=gi))
    assert session.change_mig(SetMode(uuid=gpu.uuid, enabled=False))
    assert not session.mig().gpus[2].enabled


def test_a_place_that_is_taken_is_refused_by_name(session: NvmlSession) -> None:
    gpu = session.mig().gpus[1]

    with pytest.raises(NvmlError, match=r"nvmlDeviceCreateGpuInstanceWithPlacement of .* failed"):
        session.change_mig(Create(uuid=gpu.uuid, kind=4, start=0, size=8))


def test_a_state_survives_the_protocol(session: NvmlSession) -> None:
    state = session.mig()

    assert typed.load(MigState, typed.dump(state)) == state
