# SPDX-License-Identifier: Apache-2.0
"""Names of devices and what --device-id selects."""

import pytest

from nvct.cdi.make import naming
from nvct.errors import HostError, UnknownDeviceError, UsageError
from nvct.host.model import DeviceNode, Gpu, Inventory, MigDevice

UUIDS = [f"GPU-{n:08d}-aaaa-bbbb-cccc-000000000000" for n in range(5)]


def node(path: str) -> DeviceNode:
    return DeviceNode(
        path=path, host_path=path, major=195, minor=0, mode=0o666, uid=0, gid=0, reason="test"
    )


def gpu(
    index: int, *, model: str = "NVIDIA H100", mig: int | None = None, has_node: bool = True
) -> Gpu:
    devices = tuple(
        MigDevice(index=n, uuid=f"MIG-{index}{n}", gi=7 + n, ci=0, cap_minors=(30, 31))
        for n in range(mig or 0)
    )
    return Gpu(
        index=index,
        minor=index,
        uuid=UUIDS[index],
        bus_id="",
        model=model,
        node=node(f"/dev/nvidia{index}") if has_node else None,
        mig_enabled=mig is not None,
        mig=devices,
    )


MACHINE = Inventory(
    driver_version="580.1",
    gpus=(
        gpu(0),
        gpu(1, mig=2),
        gpu(2, has_node=False),
        gpu(3, mig=0),
        gpu(4, model="DGX Display"),
    ),
)


def select(*ids: str) -> list[str]:
    return [naming.names(g, m, ["index"])[0] for g, m in naming.select(MACHINE, ids)]


def test_names_follow_the_strategies_in_order() -> None:
    parent = MACHINE.gpus[1]

    assert naming.names(parent, None, ["type-index", "index", "uuid"]) == ["gpu1", "1", UUIDS[1]]
    assert naming.names(parent, parent.mig[1], ["index", "uuid", "type-index"]) == [
        "1:1",
        "MIG-11",
        "mig1:1",
    ]


def test_all_is_what_can_be_delivered() -> None:
    assert select("all") == ["0", "1:0", "1:1"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (("0",), ["0"]),
        (("1:1", "0"), ["0", "1:1"]),
        ((UUIDS[0], "0", "0"), ["0"]),
        (("MIG-10",), ["1:0"]),
        ((f"MIG-{UUIDS[1]}/8/0",), ["1:1"]),
        (("0", "all"), ["0", "1:0", "1:1"]),
    ],
)
def test_ids_select_each_device_once_in_the_machines_order(
    ids: tuple[str, ...], expected: list[str]
) -> None:
    assert select(*ids) == expected


@pytest.mark.parametrize("word", [" 1", "", "gpu0", "1a:00.0", "gpu-0", "01", "0:", "-1", "٣"])
def test_word_that_is_no_id_is_refused_with_its_text(word: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        select(word)

    assert caught.value.message == f"device id {word!r} is not a UUID, index or PCI bus id"


@pytest.mark.parametrize("word", ["7", "0:0", "1:2", "GPU-ffffffff", "4", "0000:ff:00.0"])
def test_id_of_nothing_is_refused(word: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"no device {word} among the 5 GPUs|has no"):
        select(word)


def test_parent_in_mig_mode_names_its_devices() -> None:
    with pytest.raises(UnknownDeviceError, match="GPU 1 is in MIG mode") as caught:
        select("1")

    assert caught.value.hint == "name one of its MIG devices: 1:0, 1:1"


def test_gpu_without_node_is_an_error_when_it_is_named() -> None:
    with pytest.raises(HostError, match="GPU 2 has no device node /dev/nvidia2"):
        select("2")


def test_strategies_fold_and_unknown_ones_are_refused() -> None:
    assert naming.check_strategies(["index", "index", "uuid"]) == ("index", "uuid")
    with pytest.raises(UsageError, match="'bogus' is unknown"):
        naming.check_strategies(["bogus"])
    with pytest.raises(UsageError, match="no device name strategy"):
        naming.check_strategies([])
