# SPDX-License-Identifier: Apache-2.0
"""The PCIe root of a GPU, from the link that sysfs has for it."""

from pathlib import Path

import pytest

from nvct.host.gpu import pci
from nvct.host.roots import Roots

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
