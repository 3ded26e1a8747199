# SPDX-License-Identifier: Apache-2.0
"""The node's /sys and /proc/modules, read as by other programs."""

import itertools
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct_sim import profile, sysfs, tree

GPU = "0000:41:00.0"  # in the profile mixed
VENDOR_SPECIFIC, EXPRESS = 0x09, 0x10


def devices(node: tree.Node) -> Path:
    return node.sys / "bus/pci/devices"


def capabilities(space: bytes) -> dict[int, int]:
    """Return the list of capabilities, read as by lspci and GPU Feature Discovery; fail on a loop."""
    assert space[6] & 0x10, "no list"
    offsets: dict[int, int] = {}
    at = space[0x34]
    while at:
        kind, following = space[at], space[at + 1]
        assert at >= 0x40
        assert kind not in (0, 0xFF)
        assert at not in offsets.values(), "the list does not end"
        offsets[kind] = at
        at = following
    return offsets


LENGTHS = {0x01: 8, 0x05: 14, EXPRESS: 60, 0x11: 12}
"""The lengths of capabilities without a length: power, MSI with 64 bits, PCI Express 2, MSI-X."""


def check_apart(space: bytes) -> None:
    """Check that capabilities do not overlap."""
    ranges = sorted(
        (at, LENGTHS.get(kind, space[at + 2])) for kind, at in capabilities(space).items()
    )
    ends = [at + length for at, length in ranges]
    assert all(end <= at for end, (at, _) in zip(ends, ranges[1:], strict=False)), ranges
    assert ends[-1] <= 256


def extended(space: bytes) -> list[int]:
    offsets: list[int] = []
    at = 0x100
    while at:
        (head,) = struct.unpack_from("<I", space, at)
        assert len(offsets) < 64
        offsets.append(head & 0xFFFF)
        at = head >> 20
    return offsets


def test_the_configuration_space_agrees_with_the_files(plain_node: tree.Node) -> None:
    folder = devices(plain_node) / GPU
    space = (folder / "config").read_bytes()

    numbers = struct.unpack_from("<HH", space), struct.unpack_from("<HH", space, 0x2C)
    names = ("vendor", "device"), ("subsystem_vendor", "subsystem_device")
    for pair, files in zip(numbers, names, strict=True):
        assert [f"0x{n:04x}\n" for n in pair] == [(folder / name).read_text() for name in files]
    assert int((folder / "class").read_text(), 16) == int.from_bytes(space[9:12], "little")
    assert len(space) == 4096
    assert space[8] == int((folder / "revision").read_text(), 16)


def test_a_gpu_of_bare_metal_has_no_signature_of_a_vgpu(plain_node: tree.Node) -> None:
    space = (devices(plain_node) / GPU / "config").read_bytes()

    by_id = capabilities(space)

    at = by_id[VENDOR_SPECIFIC]
    assert space[at + 2] > 4
    assert space[at + 3 : at + 5] != b"VF"
    check_apart(space)
    assert EXPRESS in by_id


@given(
    index=st.integers(0, 63), bar1=st.sampled_from([0, 256, 65536, 131072]),
    kind=st.sampled_from([0x030000, 0x030200, 0x068000]), generation=st.integers(1, 6),
)  # fmt: skip
def test_lists_of_capabilities_end_and_addresses_do_not_overlap(
    index: int, bar1: int, kind: int, generation: int
) -> None:
    def device(number: int) -> sysfs.Device:
        return sysfs.Device(
            device=0x20B2, subsystem_vendor=0x10DE, subsystem_device=1, kind=kind, driver="nvidia",
            number=number, irq=200, numa=0, bar1=bar1, generation=generation,
        )  # fmt: skip

    gpu, neighbor = device(index), device(index + 1)
    space = sysfs.config(gpu)

    assert capabilities(space)
    assert extended(space) == [1, 3]
    regions = [*gpu.regions().values(), *neighbor.regions().values()]
    spans = sorted((first, first + size) for first, size, flags in regions if flags != sysfs.IO)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    lines = sysfs.resource(gpu).splitlines()
    assert len(lines) == 13
    for line in lines:
        first, last, flags = (int(word, 16) for word in line.split(" "))
        assert (last > first) == bool(flags)


def test_driver_and_iommu_group_are_links_that_lead_somewhere(plain_node: tree.Node) -> None:
    folder = devices(plain_node) / GPU

    driver, group = ((folder / name).resolve(strict=True) for name in ("driver", "iommu_group"))

    assert driver == plain_node.sys / "bus/pci/drivers/nvidia"
    assert (driver / GPU).resolve(strict=True) == folder
    assert (driver / "module").resolve(strict=True) == plain_node.sys / "module/nvidia"
    assert group.parent == plain_node.sys / "kernel/iommu_groups"
    assert int(group.name) >= 0
    assert (group / "devices" / GPU).resolve(strict=True) == folder


def test_each_gpu_has_an_iommu_group_and_an_interrupt_of_its_own(tmp_path: Path) -> None:
    node = tree.create("many", "a100-16", tmp_path, native=False, nodes="plain")
    folders = list(devices(node).iterdir())

    assert len(folders) == 16 + 12
    assert len({os.readlink(folder / "iommu_group") for folder in folders}) == 28
    assert len({(folder / "irq").read_text() for folder in folders}) == 28


def test_the_interrupt_is_that_of_proc(plain_node: tree.Node) -> None:
    for folder in devices(plain_node).iterdir():
        information = plain_node.proc / "driver/nvidia/gpus" / folder.name / "information"
        line = next(x for x in information.read_text().splitlines() if x.startswith("IRQ:"))
        assert line.split()[1] == (folder / "irq").read_text().strip()


def test_a_board_with_outputs_is_a_vga_controller(tmp_path: Path) -> None:
    node = tree.create("games", "gtx1080ti-9", tmp_path, native=False, nodes="plain")
    folder = devices(node) / "0000:04:00.0"

    assert (folder / "class").read_text() == "0x030000\n"
    assert (folder / "boot_vga").read_text() == "0\n"
    assert (folder / "device").read_text() == "0x1b06\n"
    assert len(list(devices(node).iterdir())) == 9


def test_a_vgpu_names_the_driver_of_its_host(tmp_path: Path) -> None:
    node = tree.create("guest", "vgpu", tmp_path, native=False, nodes="plain")
    space = (devices(node) / "0000:02:00.0/config").read_bytes()
    by_id = capabilities(space)

    at = by_id[VENDOR_SPECIFIC]
    capability = space[at : at + space[at + 2]]

    record = b"550.90.05".ljust(10, b"\0") + b"r550_00".ljust(10, b"\0")
    assert capability[3:] == b"VF" + bytes([0, 22]) + record
    check_apart(space)


@pytest.mark.parametrize(
    ("numa", "nodes", "processors", "expected", "mask"),
    [
        (0, 1, 8, "0-7", "000000ff"),
        (0, 2, 8, "0-3", "0000000f"),
        (1, 2, 8, "4-7", "000000f0"),
        (7, 8, 2, "1", "00000002"),
        (0, 8, 2, "0", "00000001"),
        (0, 1, 1, "0", "00000001"),
        (8, 9, 36, "32-35", "0000000f,00000000"),
    ],
)
def test_processors_are_divided_among_numa_nodes(
    numa: int, nodes: int, processors: int, expected: str, mask: str
) -> None:
    listed = sysfs.cpu_list(sysfs.near(numa, nodes, processors))

    assert (listed, sysfs.cpu_mask(listed)) == (expected, mask)


def test_modules_are_shown_as_lsmod_reads_them(plain_node: tree.Node) -> None:
    host = "nvidia 1 0 - Live 0x0\nloop 40960 2 - Live 0x0\n"

    lines = sysfs.proc_modules(host, plain_node.state()).splitlines()

    modules = {line.split()[0]: line.split() for line in lines}
    assert len(modules) == len(lines)
    assert {"nvidia", "nvidia_uvm", "nvidia_modeset", "loop"} <= set(modules)
    for name, words in modules.items():
        assert len(words) in (6, 7)
        assert words[4] == "Live"
        if name == "loop":
            continue
        folder = plain_node.sys / "module" / name
        assert (folder / "coresize").read_text() == f"{words[1]}\n"
        assert (folder / "refcnt").read_text() == f"{words[2]}\n"
        assert (folder / "initstate").read_text() == "live\n"
        users = set(words[3].removesuffix(",").split(",")) - {"-"}
        assert {path.name for path in (folder / "holders").iterdir()} == users
        assert all((folder / "holders" / user).is_dir() for user in users)
    assert modules["nvidia"][1] != "1"


def test_links_are_listed_at_both_ends_and_those_to_switches_stay_on_the_board() -> None:
    gpus = profile.load("v100-8").gpus
    for index, gpu in enumerate(gpus):
        assert len(gpu.links) == gpu.model["nvlinks"]
        for other in {int(peer) for peer in gpu.links}:
            assert gpu.links.count(str(other)) == gpus[other].links.count(str(index)) <= 2
    gpus = profile.load("a100-16").gpus
    assert {link for gpu in gpus[:8] for link in gpu.links} == {f"s{n}" for n in range(6)}
    assert {link for gpu in gpus[8:] for link in gpu.links} == {f"s{n}" for n in range(6, 12)}
    assert {len(gpu.links) for gpu in gpus} == {12}
