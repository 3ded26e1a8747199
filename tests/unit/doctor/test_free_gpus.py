# SPDX-License-Identifier: Apache-2.0
"""Which devices are free, and who uses the others."""

from typing import Any

from nvct.doctor import free_gpus
from nvct.doctor.containers import Containers
from nvct.doctor.gpu_users import Device, Use
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.host.nvml.sample_model import GpuSample, MigSample, NvmlSamples, ProcessSample

GI = 1 << 30


def gpu(index: int, used: int = 0, **values: Any) -> GpuSample:
    memory = {"memory_total": float(80 * GI), "memory_used": float(used)}
    text = {"bus_id": "", "name": "H100", **values}
    return GpuSample(index=index, minor=index, uuid=f"GPU-{index}", values=memory, **text)


def found(
    *gpus: GpuSample, uses: tuple[Use, ...] = (), leased: dict[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    state = MigState(gpus=tuple(state_of(one) for one in gpus))
    samples = NvmlSamples(gpus=gpus)
    candidates = free_gpus.candidates(state, samples, uses, leased or {}, Containers("/nowhere"))
    return {one.uuid: one.users for one in candidates}


def state_of(sample: GpuSample) -> MigGpu:
    return MigGpu(
        index=sample.index, uuid=sample.uuid, name="", bus_id="", minor=sample.index, device=0,
        subsystem=0, enabled=bool(sample.mig),
    )  # fmt: skip


def test_who_computes_uses_a_gpu_and_a_display_server_does_not() -> None:
    users = found(
        gpu(0, processes=(ProcessSample(pid=1 << 30, memory=None, computes=False),)),
        gpu(1, processes=(ProcessSample(pid=1 << 30, memory=None),)),
    )

    assert users == {"GPU-0": (), "GPU-1": ("process 1073741824",)}


def test_a_container_uses_what_it_has_and_a_lease_counts() -> None:
    labels = {"container": "trainer"}
    uses = (Use(device=Device(0, ""), labels=labels), Use(device=Device(1, ""), pid=7))

    users = found(gpu(0), gpu(1), gpu(2), uses=uses, leased={"GPU-2": "container x", "GPU-9": "y"})

    assert users == {"GPU-0": ("container trainer",), "GPU-1": (), "GPU-2": ("container x",)}


def test_a_gpu_in_mig_mode_is_its_mig_devices() -> None:
    mig = (
        MigSample(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb"),
        MigSample(uuid="MIG-2", gi=2, ci=0, profile="1g.10gb"),
    )
    process = ProcessSample(pid=1 << 30, memory=None, gi=2, ci=0)
    use = Use(device=Device(0, "1/0"), labels={"container": "a"})

    users = found(gpu(0, mig=mig, processes=(process,)), uses=(use,))

    assert users == {"MIG-1": ("container a",), "MIG-2": ("process 1073741824",)}


def test_a_lease_of_a_gpu_is_one_of_its_mig_devices_and_the_reverse() -> None:
    """Its container keeps it while somebody switches MIG mode."""
    mig = (
        MigSample(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb"),
        MigSample(uuid="MIG-2", gi=2, ci=0, profile="1g.10gb"),
    )
    by_gpu, by_mig = {"GPU-0": "container a"}, {"GPU-0:1-0": "container a"}
    a = ("container a",)

    assert found(gpu(0, mig=mig), leased=by_gpu) == {"MIG-1": a, "MIG-2": a}
    assert found(gpu(0), gpu(1), leased=by_mig) == {"GPU-0": a, "GPU-1": ()}
    assert found(gpu(0, mig=mig), leased=by_mig) == {"MIG-1": a, "MIG-2": ()}
    assert found(gpu(0, mig=mig), leased={"MIG-2": "b"}) == {"MIG-1": (), "MIG-2": ("b",)}


def test_a_display_adapter_is_no_gpu() -> None:
    assert found(gpu(0, name="DGX Display")) == {}


def test_the_emptiest_comes_first() -> None:
    candidates = free_gpus.candidates(
        MigState(), NvmlSamples(gpus=(gpu(0, used=2), gpu(1), gpu(2, used=1))), (), {},
        Containers("/nowhere"),
    )  # fmt: skip

    assert [one.uuid for one in free_gpus.fitting(candidates, 0, "")] == [
        "GPU-1",
        "GPU-2",
        "GPU-0",
    ]
    assert free_gpus.fitting(candidates, 81 * GI, "") == []
    assert free_gpus.fitting(candidates, 0, "1g.10gb") == []


def test_users_are_named_once() -> None:
    candidates = free_gpus.candidates(
        MigState(), NvmlSamples(gpus=(gpu(0), gpu(1), gpu(2))), (),
        {"GPU-0": "container a", "GPU-1": "container b", "GPU-2": "container a"},
        Containers("/nowhere"),
    )  # fmt: skip

    assert free_gpus.used_by(candidates) == [
        "GPU 0, 2: container a", "GPU 1: container b",
    ]  # fmt: skip
