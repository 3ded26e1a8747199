# SPDX-License-Identifier: Apache-2.0
"""The choice of the mode for a machine, and modes by name."""

from pathlib import Path

import pytest

from nvct.errors import UsageError
from nvct.host import modes
from tests.support.host_tree import HostTree


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    (tmp_path / "driver").mkdir()
    return HostTree(tmp_path)


def test_machine_with_the_drivers_module_is_nvml(host: HostTree) -> None:
    assert modes.detect(host.module().gpu(0).roots) == "nvml"


def test_unknown_machine_is_nvml(host: HostTree) -> None:
    assert modes.detect(host.roots) == "nvml"


@pytest.mark.parametrize("path", ["dev/dxg", "driver/usr/lib/wsl/lib/libdxcore.so"])
def test_machine_with_windowss_gpus_is_wsl(host: HostTree, path: str) -> None:
    host.write(path)

    assert modes.detect(host.roots) == "wsl"


def test_guest_with_dxg_and_a_gpu_of_its_own_is_nvml(host: HostTree) -> None:
    host.module().gpu(0).write("dev/dxg")

    assert modes.detect(host.roots) == "nvml"


def test_machine_with_the_files_of_a_tegra_is_csv(host: HostTree) -> None:
    host.write("etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n")

    assert modes.detect(host.roots) == "csv"


def test_auto_notes_which_mode_it_is(host: HostTree) -> None:
    host.module().user_space().gpu(0)
    options = host.options()

    inventory = modes.discover("auto", host.roots, options)

    assert inventory.mode == "nvml"
    assert inventory.notes[0] == "mode auto is nvml: it is neither WSL nor a Tegra"
    assert modes.discover("nvml", host.roots, options).notes == inventory.notes[1:]


def test_an_unknown_mode_is_an_error_with_all_modes(host: HostTree) -> None:
    with pytest.raises(UsageError, match="mode 'cdi' is unknown") as caught:
        modes.discover("cdi", host.roots)
    assert caught.value.hint == (
        "it is one of auto, csv, gdrcopy, gds, imex, management, mofed, nvml, nvswitch, wsl"
    )
