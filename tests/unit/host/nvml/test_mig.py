# SPDX-License-Identifier: Apache-2.0
"""The MIG verbs on the simulated NVML, by the real nvidia-ml-py."""

from __future__ import annotations

import os

import pytest

from nvct import typed
from nvct.errors import ContainerNotPossibleError, NvmlError
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
from nvct.host.nvml.session import NvmlSession
from nvct_sim import tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


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
