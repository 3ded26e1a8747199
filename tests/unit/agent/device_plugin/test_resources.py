# SPDX-License-Identifier: Apache-2.0
"""Resources where nvct's plugin does more than the recorded one, and where it leaves devices out."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Literal

import pytest

from nvct.agent.core.config_file import NamePattern, Replicas, Sharing
from nvct.agent.device_plugin import mig_changes
from nvct.agent.device_plugin.resources import GPU, Device, Resource, resources
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.machine.inventory import Inventory
from nvct.errors import HostError
from nvct.host.model import Gpu, MigDevice
from nvct.mig import pause
from tests.unit.agent.device_plugin.fake_kubelet import until

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def gpu(index: int, model: str = A100, *profiles: str, mig_enabled: bool = False) -> Gpu:
    return Gpu(
        index=index, minor=index, uuid=f"GPU-{index}", bus_id="", model=model, node=None,
        mig_enabled=mig_enabled or bool(profiles),
        mig=tuple(
            MigDevice(index=n, uuid=f"MIG-{index}-{n}", gi=n + 1, ci=0, profile=p, cap_minors=(n, n))
            for n, p in enumerate(profiles)
        ),
    )  # fmt: skip


def ids(found: dict[str, Resource]) -> dict[str, list[str]]:
    return {name: list(resource.devices) for name, resource in found.items()}


def of(*gpus: Gpu, **settings: object) -> dict[str, list[str]]:
    chosen = Settings(**settings)  # type: ignore[arg-type]
    return ids(resources(Inventory(gpus=gpus), chosen)[0])


def test_patterns_name_gpus_by_model_and_mig_devices_by_profile() -> None:
    found = of(
        gpu(0), gpu(1, T4), gpu(2, A100, "1g.10gb", "2g.20gb"),
        mig_strategy="mixed",
        gpu_names=(NamePattern(pattern="*A100*", name="nvidia.com/a100"),),
        mig_names=(NamePattern(pattern="1g.*", name="nvidia.com/tiny"),),
    )  # fmt: skip

    assert found == {
        "nvidia.com/a100": ["GPU-0"],
        GPU: ["GPU-1"],
        "nvidia.com/tiny": ["MIG-2-0"],
        "nvidia.com/mig-2g.20gb": ["MIG-2-1"],
    }


def test_a_pattern_has_no_other_special_characters() -> None:
    names = (NamePattern(pattern="Tesla.T4", name="nvidia.com/x"),)

    assert of(gpu(0, T4), gpu_names=names) == {GPU: ["GPU-0"]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["GPU-0", "GPU-1", "GPU-2"]),
        (("1",), ["GPU-0", "GPU-2"]),
        (("GPU-0", "7"), ["GPU-1", "GPU-2"]),
        (("*T4",), ["GPU-0", "GPU-1"]),
        (("T4",), ["GPU-0", "GPU-1", "GPU-2"]),
        (("*A100*", "2"), []),
    ],
)
def test_excluded_gpus_are_not_there(words: tuple[str, ...], expected: list[str]) -> None:
    found = of(gpu(0), gpu(1), gpu(2, T4), excluded=words)

    assert found == ({GPU: expected} if expected else {})


def test_devices_in_the_order_of_the_machine_not_of_text() -> None:
    assert of(*(gpu(n) for n in range(12)))[GPU][-3:] == ["GPU-9", "GPU-10", "GPU-11"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}),
        ({"devices": 1}, {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1"]}),
        ({"devices": ("1",)}, {GPU: ["GPU-0", "GPU-1::0", "GPU-1::1"]}),
        ({"devices": ("GPU-0", "0")}, {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1"]}),
        ({"devices": ("0",), "rename": f"{GPU}.shared"},
         {GPU: ["GPU-1"], f"{GPU}.shared": ["GPU-0::0", "GPU-0::1"]}),
        ({"name": "nvidia.com/x"}, {GPU: ["GPU-0", "GPU-1"]}),
    ],
)  # fmt: skip
def test_all_or_some_devices_are_shared(
    rule: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    rules = (Replicas(**{"name": GPU, "replicas": 2, **rule}),)

    assert of(gpu(0), gpu(1), sharing=Sharing(replicas=rules)) == expected


BIG = Replicas(name=GPU, replicas=4, rename=f"{GPU}.big", devices=("1",))


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ((Replicas(name=GPU, replicas=2, devices=13),), "13"),
        ((Replicas(name=GPU, replicas=2, devices=("17",)),), "17"),
        ((Replicas(name=GPU, replicas=2, devices=("0", "1")), BIG),
         f"two rules of sharing apply to device 1 of {GPU}"),
        ((Replicas(name=GPU, replicas=10000),),
         "would have 40000 devices, but the kubelet reads at most 32768"),
    ],
)  # fmt: skip
def test_sharing_that_cannot_be_is_refused(rules: tuple[Replicas, ...], sentence: str) -> None:
    with pytest.raises(HostError, match=sentence):
        of(*map(gpu, range(4)), sharing=Sharing(replicas=rules))


def test_a_part_of_a_gpu_instance_is_left_out_with_a_warning() -> None:
    """NVIDIA's plugin ends: no pattern of its own matches such a profile."""
    inventory = Inventory(gpus=(gpu(0, A100, "1c.3g.40gb", "3g.40gb"),))

    found, warnings = resources(inventory, Settings(mig_strategy="mixed"))

    assert ids(found) == {"nvidia.com/mig-3g.40gb": ["MIG-0-1"]}
    (warning,) = warnings
    assert "MIG device 0:0 of profile 1c.3g.40gb is left out" in warning


@pytest.mark.parametrize(("mode", "device"), [("csv", "tegra"), ("wsl", "all")])
def test_machines_without_nvmls_gpus_have_one_device(
    mode: Literal["csv", "wsl"], device: str
) -> None:
    found, _ = resources(Inventory(mode=mode), Settings(mig_strategy="mixed"))

    assert ids(found) == {GPU: [device]}


def test_without_devices_there_is_no_resource() -> None:
    assert of() == {}
    assert of(gpu(0, mig_enabled=True), mig_strategy="mixed") == {}


# Devices of GPUs whose MIG devices change are unhealthy; those that stay are not.


def device(id_: str, gpu: str, instance: tuple[int, int] | None = None) -> Device:
    return Device(id=id_, uuid=id_.partition("::")[0], index="0", gpu=gpu, instance=instance)


DEVICES = (
    device("GPU-1", "GPU-1"),
    device("MIG-stays", "GPU-2", (9, 0)),
    device("MIG-stays::1", "GPU-2", (9, 0)),
    device("MIG-goes", "GPU-2", (9, 1)),
    device("GPU-3", "GPU-3"),
)
RESOURCE = Resource(name="nvidia.com/gpu", devices={each.id: each for each in DEVICES})


async def test_devices_are_unhealthy_while_a_change_is_announced_and_until_a_look_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_changes, "LOOK_S", 0.01)
    seen: list[list[str]] = []

    changes = mig_changes.MigChanges(
        lambda: seen.append(list(changes.unhealthy(RESOURCE))), str(tmp_path)
    )
    task = asyncio.create_task(changes.watch())
    with pause.announce(str(tmp_path), {"GPU-2": {(9, 0)}, "GPU-3": ()}):
        await until(lambda: len(seen) == 1)
    before = changes.ended
    await until(lambda: len(seen) == 2)
    changes.looked(before)  # that look began before the end
    assert list(changes.unhealthy(RESOURCE)) == ["MIG-goes", "GPU-3"]
    changes.looked(changes.ended)
    assert not changes.unhealthy(RESOURCE)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen == [["MIG-goes", "GPU-3"]] * 2
