# SPDX-License-Identifier: Apache-2.0
"""vGPUs in PCI configuration spaces, also malformed ones; a whole one is in tests/peer."""

from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.host.gpu import pci
from nvct.host.gpu.pci import HostDriver
from nvct.host.roots import Roots

RECORD = b"\0\x16" + b"550.90.05\0" + b"r550_00\0\0\0"


def space(records: bytes, *, position: int = 0x40, following: int = 0, kind: int = 9) -> bytes:
    capability = bytes([kind, following, 5 + len(records)]) + b"VF" + records
    data = bytearray(256)
    data[0x34] = position
    data[position : position + len(capability)] = capability
    return bytes(data[:256])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (space(RECORD), HostDriver("550.90.05", "r550_00")),
        (space(b"\x01\x04ab" + RECORD), HostDriver("550.90.05", "r550_00")),
        (space(b"\x01\x00"), HostDriver("", "")),  # a record without a length
        (space(b"\x01\xff"), HostDriver("", "")),
        (space(RECORD[:5]), HostDriver("550", "")),
        (space(RECORD, kind=5), None),
        (space(RECORD, kind=5, following=0x40), None),  # a circle
        (space(RECORD, position=0), None),
        (bytes([0xFF]) * 256, None),
    ],
)
def test_the_hosts_driver_is_read_from_record_0(data: bytes, expected: HostDriver | None) -> None:
    assert pci.host_driver(data) == expected


def test_a_space_of_which_64_bytes_are_readable_is_an_error(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "config").write_bytes(bytes(64))
    with pytest.raises(HostError, match="only 64 bytes are readable"):
        pci.host_drivers(Roots(sys=str(tmp_path)))
    (device / "vendor").write_text("0x8086\n")
    assert pci.host_drivers(Roots(sys=str(tmp_path))) == []


# The PCIe root of a GPU, from the link that sysfs has for it.


BUS_ID = "0000:18:00.0"


@pytest.mark.parametrize(
    ("target", "root"),
    [
        (f"devices/pci0000:16/0000:16:01.0/0000:17:00.0/{BUS_ID}", "pci0000:16"),
        (f"devices/pci10000:00/{BUS_ID}", "pci10000:00"),
        (f"devices/platform/{BUS_ID}", ""),
    ],
)
def test_the_root_is_in_the_path_that_the_link_leads_to(
    target: str, root: str, tmp_path: Path
) -> None:
    (tmp_path / target).mkdir(parents=True)
    link = tmp_path / "bus/pci/devices" / BUS_ID
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / target)

    assert pci.pcie_root(Roots(sys=str(tmp_path)), BUS_ID) == root


def test_what_sysfs_does_not_tell_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices" / BUS_ID).mkdir(parents=True)  # no link
    roots = Roots(sys=str(tmp_path))

    assert pci.pcie_root(roots, BUS_ID) == ""
    assert pci.pcie_root(roots, "") == ""
    assert pci.pcie_root(roots, "0000:99:00.0") == ""
