# SPDX-License-Identifier: Apache-2.0
"""Facts that a spec stands on: each change of the machine that matters breaks one."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.compile import refresh
from nvct.compile.refresh import driver_fingerprints
from nvct.container.plan import fingerprints
from nvct.errors import HostError
from nvct.host.discover import discover
from nvct.host.model import Inventory
from tests.support.host_tree import LIB, VERSION, FakeNvml, HostTree, elf_bytes, nvml_gpu


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    host = HostTree(tmp_path).module().user_space().gpu(0).gpu(1)
    return host.instance(1, 7, 0, (66, 67)).instance(1, 7, 1, (66, 68))


def look(host: HostTree) -> Inventory:
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0), (7, 1)))))
    return discover(host.roots, host.options(nvml))


def replace_libcuda(host: HostTree) -> object:
    library = host.driver / LIB / f"libcuda.so.{VERSION}"
    library.unlink()
    return library.write_bytes(elf_bytes("libcuda.so.1") + b"other")


CHANGES: dict[str, Callable[[HostTree], object]] = {
    "driver reloaded": lambda h: h.write("proc/driver/nvidia/version", "NVRM version: other"),
    "boot": lambda h: h.write("proc/sys/kernel/random/boot_id", "other"),
    "majors": lambda h: h.write(
        "proc/devices", "Character devices:\n195 nvidia\n509 nvidia-uvm\n"
    ),
    "new GPU": lambda h: h.gpu(2),
    "new GPU instance": lambda h: h.instance(0, 1, 0, (12, 13)),
    "new compute instance": lambda h: h.instance(1, 7, 2, (66, 69)),
    "libcuda replaced": replace_libcuda,
}


@pytest.mark.parametrize("age_s", [0, 60], ids=["young", "old"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_change_of_the_machine_breaks_a_fact(
    host: HostTree, change: Callable[[HostTree], object], age_s: int
) -> None:
    now = time.time_ns() + age_s * 1_000_000_000
    taken = driver_fingerprints(host.roots, look(host), now_ns=now)
    assert fingerprints.broken(taken) is None

    change(host)

    assert fingerprints.broken(taken) is not None


def test_node_that_appears_breaks_a_fact(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root: makes a device node")
    host = HostTree(tmp_path).module().user_space().gpu(0)
    (tmp_path / "dev/nvidia-uvm").unlink()
    taken = driver_fingerprints(host.roots, look(host))

    try:
        os.mknod(tmp_path / "dev/nvidia-uvm", 0o020666, os.makedev(508, 0))
    except PermissionError:
        pytest.skip("needs CAP_MKNOD")

    broken = fingerprints.broken(taken)
    assert broken is not None
    assert broken[1] == f"{tmp_path}/dev/nvidia-uvm"


def test_discovery_is_repeated_while_the_machine_changes(host: HostTree) -> None:
    calls = []

    def find() -> Inventory:
        calls.append(1)
        if len(calls) == 1:
            host.instance(0, 1, 0, (12, 13))
        return look(host)

    inventory, taken = refresh.discover_with_fingerprints(host.roots, find)

    assert len(calls) == 2
    assert fingerprints.broken(taken) is None
    assert len(inventory.gpus) == 2


def test_machine_that_never_rests_is_an_error(host: HostTree) -> None:
    def find() -> Inventory:
        host.write("proc/sys/kernel/random/boot_id", str(time.perf_counter_ns()))
        return look(host)

    with pytest.raises(HostError, match="changed 3 times while they were listed"):
        refresh.discover_with_fingerprints(host.roots, find)
