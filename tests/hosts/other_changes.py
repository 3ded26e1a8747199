# SPDX-License-Identifier: Apache-2.0
"""Changes of a host with WSL, of a Tegra, and of a host whose every node is looked for."""

import os

from nvct.errors import NvmlError
from nvct.host import discovery_options
from tests.hosts.variants import STORE, WSL, Lab, management, on, store, tegra, windows
from tests.support.host_tree import FakeNvml, elf_bytes, nvml_gpu
from tests.support.jetson import LIB, RTX, THOR

OTHER_STORE = "usr/lib/wsl/drivers/nvfrwi.inf_amd64_63d60f682af8cba2"


@on(windows)
def wsl_with_one_gpu(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml((nvml_gpu(0),))


@on(windows)
def wsl_with_two_gpus(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml((nvml_gpu(0), nvml_gpu(1)))


@on(windows)
def wsl_whose_nvml_fails(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml(error=NvmlError("nvmlInit of x failed: driver not loaded"))


@on(windows)
def wsl_with_another_driver(lab: Lab) -> None:
    store(lab.host, OTHER_STORE, version="2")
    os.utime(lab.host.driver / STORE / "libcuda.so.1.1", (1, 1))


@on(windows)
def wsl_with_another_driver_that_is_newer(lab: Lab) -> None:
    wsl_with_another_driver(lab)
    (lab.host.driver / WSL / "libcuda.so.1.1").unlink()


@on(windows)
def wsl_library_of_another_machine(lab: Lab) -> None:
    lab.host.write(f"driver/{STORE}/libnvidia-arm.so.1", elf_bytes("x", "aarch64"))


@on(windows)
def wsl_without_usual_files(lab: Lab) -> None:
    (lab.host.driver / STORE / "nvidia-smi").unlink()
    (lab.host.driver / WSL / "libdxcore.so").unlink()


@on(windows)
def wsl_without_a_gpu(lab: Lab) -> None:
    (lab.host.base / "dev/dxg").unlink()


@on(windows)
def wsl_without_nvidias_driver(lab: Lab) -> None:
    (lab.host.driver / STORE / "libcuda.so.1.1").unlink()


@on(tegra)
def orin_with_another_compat_folder(lab: Lab) -> None:
    lab.options["compat_container_root"] = "/opt/compat"


@on(tegra)
def thor_with_another_compat_folder(lab: Lab) -> None:
    lab.options |= {"compat_container_root": "/opt/compat", "nvml": FakeNvml((THOR,))}


@on(tegra)
def tegra_without_nvml(lab: Lab) -> None:
    lab.options["nvml"] = None


@on(tegra)
def tegra_whose_nvml_fails(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml(error=NvmlError("nvmlInit failed: driver not loaded"))


@on(tegra)
def thor_with_a_folder_of_dev(lab: Lab) -> None:
    """Nothing is made in a folder that a list mounts."""
    lab.options["nvml"] = FakeNvml((THOR, RTX))
    lab.board.node("dri/card1").devices += "dir, /dev/dri/by-path\ndev, /dev/fb0\n"
    (lab.host.base / "sys/bus/pci/devices/0000:03:00.0/drm/card1").mkdir(parents=True)
    lab.host.link("dev/dri/by-path/pci-0000:03:00.0-card", "../card1")


@on(tegra)
def thor_without_the_node_of_its_discrete_gpu(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml((THOR, RTX))
    (lab.host.base / "dev/nvidia1").unlink()


@on(tegra)
def thor_as_one_device(lab: Lab) -> None:
    flags = frozenset({discovery_options.ONE_CSV_DEVICE})
    lab.options |= {"nvml": FakeNvml((THOR, RTX)), "flags": flags}


@on(tegra)
def tegra_with_an_unknown_set_of_gpus(lab: Lab) -> None:
    lab.options["nvml"] = FakeNvml((RTX, THOR))


@on(tegra)
def tegra_without_libcuda(lab: Lab) -> None:
    lab.board.drivers = ""


@on(tegra)
def tegra_without_lists(lab: Lab) -> None:
    lab.board.devices = lab.board.drivers = ""


@on(tegra)
def tegra_without_listed_nodes(lab: Lab) -> None:
    lab.board.devices = "dev, /dev/nvidia7\n"


@on(tegra)
def tegra_link_below_a_linked_folder(lab: Lab) -> None:
    lab.board.link("/usr/lib/aarch64-linux-gnu/tegra", "nvidia")
    lab.host.link(f"driver{LIB}/libx.so", "libcuda.so.1.1")
    lab.board.drivers += "sym, /usr/lib/aarch64-linux-gnu/tegra/libx.so\n"


@on(tegra)
def tegra_links_that_lead_nowhere(lab: Lab) -> None:
    lab.board.link(f"{LIB}/a.so", "nowhere").link(f"{LIB}/loop.so", "loop.so")
    lab.board.link(f"{LIB}/out.so", "../../../../../../../../etc/passwd")


@on(tegra)
def tegra_link_that_a_library_would_make(lab: Lab) -> None:
    lab.board.library(f"{LIB}/libEGL_nvidia.so.0", "libEGL.so.1").library(f"{LIB}/libEGL.so.1")


@on(tegra)
def tegra_files_of_all_kinds(lab: Lab) -> None:
    for path, mode in (
        ("/usr/sbin/nvidia-smi", 0o755), ("/lib/firmware/tegra23x/desc_prod.bin", 0o644),
        (f"{LIB}/weston/drm-backend.so", 0o755), ("/var/nvidia/nvcam/settings/x.nito", 0o644),
    ):  # fmt: skip
        lab.host.write(f"driver{path}", mode=mode)
        lab.board.drivers += f"lib, {path}\n"
    lab.host.write("etc/nv_tegra_release", "# R36 (release), REVISION: 4.0\n")


@on(tegra)
def tegra_names_without_a_folder(lab: Lab) -> None:
    lab.options["search_paths"] = ("/opt/l4t",)
    lab.host.write("driver/opt/l4t/libx.so", elf_bytes("libx.so", "aarch64"))
    lab.board.drivers += "lib, libx.so\nlib, liby.so\n"


@on(tegra)
def tegra_paths_with_dots(lab: Lab) -> None:
    lab.host.write("secret", "x")
    lab.board.drivers += "lib, /../../secret\ndir, /../..\ndev, /../secret\n"


@on(management)
def nodes_of_all_kinds(lab: Lab) -> None:
    lab.host.gpu(1)
    for name in ("nvidia-fs0", "nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-caps/nvidia-cap1",
                 "nvidia-caps-imex-channels/channel0", "gdrdrv"):  # fmt: skip
        lab.host.write(f"dev/{name}", mode=0o400)


@on(management)
def management_without_graphics(lab: Lab) -> None:
    lab.host.write("driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}")
    lab.host.write("driver/usr/bin/nvidia-xconfig", mode=0o755)
    lab.options["nvml"] = FakeNvml(error=AssertionError("it is asked"))


@on(management)
def management_without_nodes(lab: Lab) -> None:
    for path in lab.host.base.glob("dev/nvidia*"):
        path.unlink()


@on(management)
def management_without_ipc(lab: Lab) -> None:
    (lab.host.driver / "tmp/nvidia-mps").mkdir(parents=True)
    lab.options["flags"] = frozenset({discovery_options.NO_IPC})
