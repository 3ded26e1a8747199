# SPDX-License-Identifier: Apache-2.0
"""Plans of what there is besides GPUs, and what NVML knows: what they hold, what breaks them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvct.compile import live_host, refresh
from nvct.compile import mode_plans as extras
from nvct.config import load
from nvct.container.plan import model
from nvct.container.plan.store import Store
from nvct.errors import HostError, UsageError
from nvct.host.model import DeviceNode, Gpu, Inventory, MigDevice, NamedDevice
from nvct.host.nvml.model import GpuProperties
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import LIB as LIBRARIES
from tests.support.host_tree import VERSION, HostTree, elf_bytes
from tests.support.shim_lab import Lab

MAJORS = "".join(
    f"{major} {name}\n"
    for major, name in (
        (240, "nvidia-fs"), (241, "gdrdrv"), (242, "nvidia-nvswitch"),
        (243, "nvidia-caps-imex-channels"), (231, "infiniband_verbs"),
    )
)  # fmt: skip
NODES = {
    "gds": "nvidia-fs0",
    "gdrcopy": "gdrdrv",
    "mofed": "infiniband/uverbs0",
    "nvswitch": "nvidia-nvswitch0",
    "imex": "nvidia-caps-imex-channels/channel0",
}
SECOND = {
    "gds": "nvidia-fs1",
    "mofed": "infiniband/rdma_cm",
    "nvswitch": "nvidia-nvswitchctl",
    "imex": "nvidia-caps-imex-channels/channel1",
}


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.host.write("proc/devices", f"Character devices:\n{MAJORS}\nBlock devices:\n  8 sd\n")
    return lab


def mode_plan(lab: Lab, mode: str) -> model.Plan:
    return extras.mode_plan(mode, str(lab.config_toml), str(lab.run_dir))


def own_plan(lab: Lab, which: str = refresh.OWN) -> model.Plan:
    return refresh.own_plan(str(lab.config_toml), str(lab.run_dir), which)


def nodes_of(plan: model.Plan, name: str) -> list[str]:
    return [node["path"] for edit in model.collect(plan, [name]) for node in edit["nodes"]]


@pytest.mark.parametrize("mode", ["gds", "gdrcopy", "mofed", "nvswitch"])
def test_a_mode_is_one_device_with_its_nodes(mode: str, lab: Lab) -> None:
    lab.host.write(f"dev/{NODES[mode]}", mode=0o666)

    plan = mode_plan(lab, mode)

    assert nodes_of(plan, f"nvidia.com/{mode}=all") == [f"/dev/{NODES[mode]}"]
    assert model.is_current(plan)
    store = Store(str(lab.run_dir))
    assert store.read_json(f"mode-{mode}.plan") == plan
    store.close()


def test_imex_channels_are_devices_of_their_own(lab: Lab) -> None:
    for number in (0, 3):
        lab.host.write(f"dev/nvidia-caps-imex-channels/channel{number}", mode=0o666)

    plan = mode_plan(lab, "imex")

    channels = nodes_of(plan, "nvidia.com/imex-channel=3")
    assert channels == ["/dev/nvidia-caps-imex-channels/channel3"]
    assert sorted(plan["devices"]) == [f"nvidia.com/imex-channel={n}" for n in (0, 3)]


@pytest.mark.parametrize("mode", sorted(NODES))
def test_a_node_that_comes_or_goes_or_a_module_loaded_again_breaks_the_plan(
    mode: str, lab: Lab
) -> None:
    lab.host.write(f"dev/{NODES[mode]}", mode=0o666)
    plan = mode_plan(lab, mode)
    lab.host.write("dev/something-else")
    assert model.is_current(plan)

    if mode == "gdrcopy":
        lab.host.write("proc/devices", "Character devices:\n 99 gdrdrv\n")
        assert not model.is_current(plan)
        return
    second = lab.host.write(f"dev/{SECOND[mode]}", mode=0o666)
    assert not model.is_current(plan)
    second.unlink()
    assert model.is_current(plan)
    (lab.home / "dev" / NODES[mode]).unlink()
    assert not model.is_current(plan)


def test_a_configuration_of_cufile_breaks_the_plan_and_is_mounted(lab: Lab) -> None:
    lab.host.write("dev/nvidia-fs0", mode=0o666)
    (lab.home / "driver").mkdir()
    plan = mode_plan(lab, "gds")
    lab.host.write("driver/etc/cufile.json", "{}")

    assert not model.is_current(plan)
    plan = mode_plan(lab, "gds")
    mounts = [m[0] for edit in model.collect(plan, ["nvidia.com/gds=all"]) for m in edit["mounts"]]
    assert "/etc/cufile.json" in mounts


def test_channels_without_a_node_are_known_by_their_major_number(lab: Lab) -> None:
    plan = mode_plan(lab, "imex")

    assert (plan["devices"], plan["host"]) == ({}, {"major": "243"})
    assert model.is_current(plan)
    lab.host.write("dev/nvidia-caps-imex-channels/channel1", mode=0o666)
    assert not model.is_current(plan)
    assert list(mode_plan(lab, "imex")["devices"]) == ["nvidia.com/imex-channel=1"]


@pytest.mark.parametrize("mode", sorted(set(NODES) - {"imex"}))
def test_a_mode_without_devices_is_an_error_and_no_plan_is_stored(mode: str, lab: Lab) -> None:
    with pytest.raises(HostError):
        mode_plan(lab, mode)

    assert list(lab.run_dir.iterdir()) == []


@pytest.mark.parametrize("mode", ["", "nvml", "management", "../x"])
def test_there_is_no_plan_of_other_modes(mode: str, lab: Lab) -> None:
    with pytest.raises(UsageError, match="no plan of mode"):
        mode_plan(lab, mode)


def driver(lab: Lab, gpus: int) -> HostTree:
    """Install a driver whose NVML can be loaded, but has no functions."""
    host = lab.driver(gpus)
    library = shared_object(os.uname().machine, soname="libnvidia-ml.so.1")
    host.write(f"driver/{LIBRARIES}/libnvidia-ml.so.{VERSION}", library)
    return host


def mig_host(lab: Lab) -> None:
    """GPU 1 is in MIG mode; NVML, which would know the UUIDs of its devices, does not run."""
    host = driver(lab, gpus=2)
    host.instance(1, 1, 0, (12, 13))
    majors = "195 nvidia\n236 nvidia-caps\n508 nvidia-uvm\n"
    host.write("proc/devices", f"Character devices:\n{majors}\nBlock devices:\n")
    for minor, mode in ((1, 0o400), (2, 0o444)):
        host.write(f"dev/nvidia-caps/nvidia-cap{minor}", mode=mode)


def test_mig_capabilities_are_devices(lab: Lab) -> None:
    mig_host(lab)

    plan = mode_plan(lab, "mig")

    assert nodes_of(plan, "nvidia.com/mig=config") == ["/dev/nvidia-caps/nvidia-cap1"]
    assert nodes_of(plan, "nvidia.com/mig=monitor") == ["/dev/nvidia-caps/nvidia-cap2"]
    assert "/dev/nvidia1" in nodes_of(plan, "nvidia.com/mig=1")
    assert "nvidia.com/mig=0" not in plan["devices"]
    assert plan["problems"] == []


def test_a_capability_without_node_is_a_problem(lab: Lab) -> None:
    mig_host(lab)
    (lab.home / "dev/nvidia-caps/nvidia-cap1").unlink()

    plan = mode_plan(lab, "mig")

    assert "nvidia.com/mig=config" not in plan["devices"]
    assert plan["problems"] == ["the host has no device node of the MIG capability config"]
    lab.host.write("dev/nvidia-caps/nvidia-cap1", mode=0o400)
    assert not model.is_current(plan)


def test_a_host_without_mig_has_neither(lab: Lab) -> None:
    lab.driver(gpus=1)

    plan = mode_plan(lab, "mig")

    assert plan["devices"] == {}
    assert len(plan["problems"]) == 2


def node(path: str) -> DeviceNode:
    return DeviceNode(
        path=path, host_path=path, major=195, minor=0, mode=0o666, uid=0, gid=0, reason=""
    )


def test_a_mig_device_is_as_its_gpu_and_a_boards_device_as_the_only_one() -> None:
    mig = MigDevice(index=0, uuid="MIG-a", gi=1, ci=0, cap_minors=(1, 2))
    gpu = Gpu(
        index=3, minor=1, uuid="GPU-a", bus_id="0000:3b:00.0", model="",
        node=node("/dev/nvidia1"), mig=(mig,),
    )  # fmt: skip
    tesla = GpuProperties(brand="Tesla", arch="9.0")
    board = Inventory(driver_version="", mode="csv", devices=(NamedDevice(name="0"),))

    properties = extras.by_name(
        Inventory(driver_version="1", gpus=(gpu,)),
        {"GPU-a": tesla, "GPU-b": GpuProperties(brand="Titan")},
    )

    names = ("3", "GPU-a", "0000:3b:00.0", "3:0", "MIG-a")
    assert properties == dict.fromkeys(names, tesla)
    assert extras.by_name(board, {"GPU-a": tesla}) == {"0": tesla}


def test_where_nvml_does_not_work_nothing_is_known_and_there_is_a_problem(lab: Lab) -> None:
    driver(lab, gpus=1)

    plan = extras.properties_plan(str(lab.config_toml), str(lab.run_dir))

    assert plan["gpus"] == {}  # type: ignore[typeddict-item]  # of this plan alone
    assert len(plan["problems"]) == 1
    assert model.is_current(plan)


CSV = "host-files"
LIB = "usr/lib/aarch64-linux-gnu/nvidia"


def jetson(lab: Lab, mode: str = "csv") -> None:
    lab.host.write("proc/devices", "Character devices:\n195 nvidia\n")
    lab.host.write(f"driver/{LIB}/libcuda.so.1.1", elf_bytes("libcuda.so.1", "aarch64"))
    lab.host.write(f"driver/{LIB}/libmore.so", elf_bytes("libmore.so", "aarch64"))
    for name in ("nvidiactl", "nvidia0"):
        lab.host.write(f"dev/{name}", mode=0o666)
    lab.host.write(f"{CSV}/devices.csv", "dev, /dev/nvidiactl\ndev, /dev/nvidia0\n")
    lab.host.write(f"{CSV}/drivers.csv", f"lib, /{LIB}/libcuda.so.1.1\n")
    lab.host.write(f"{CSV}/more.csv", f"lib, /{LIB}/libmore.so\n")
    lab.keys["nvidia-container-runtime.modes.csv"] = {"mount-spec-path": str(lab.home / CSV)}
    lab.configure(mode=mode)
    lab.age(*(lab.home / CSV).iterdir(), lab.home / CSV)


def mounts(plan: model.Plan, name: str = "nvidia.com/gpu=0") -> str:
    return " ".join(m[0] for edit in model.collect(plan, [name]) for m in edit["mounts"])


@pytest.mark.parametrize("mode", ["csv", "auto"])
def test_the_lists_of_a_board_are_read(mode: str, lab: Lab) -> None:
    jetson(lab, mode)
    lab.host.module()
    lab.host.write("sys/devices/soc0/family", "Tegra\n")

    plan = own_plan(lab)

    assert "/dev/nvidia0" in nodes_of(plan, "nvidia.com/gpu=0")
    assert f"/{LIB}/libcuda.so.1.1" in mounts(plan)
    assert "libmore.so" not in mounts(plan)
    assert plan["specs"][0]["refuse"] == ""  # a library of a board is no driver version
    assert model.is_current(plan)


@pytest.mark.parametrize("name", ["devices.csv", "new.csv"])
def test_an_image_may_ask_for_all_lists_and_one_that_changes_breaks_the_plan(
    name: str, lab: Lab
) -> None:
    jetson(lab)

    plan = own_plan(lab, refresh.OWN_CSV_ALL)

    assert f"/{LIB}/libmore.so" in mounts(plan)
    assert [path.name for path in lab.run_dir.iterdir()] == ["own-csv-all.plan"]
    assert model.is_current(plan)
    lab.host.write(f"{CSV}/{name}", "dev, /dev/nvidiactl\n")
    assert not model.is_current(plan)


def test_feature_flags_of_the_configuration_are_passed_on(lab: Lab) -> None:
    flag = "disable-ipc-discoverer"
    lab.keys["nvidia-container-runtime.modes.jit-cdi"] = {"nvcdi-feature-flags": [flag]}
    lab.configure()
    assert set(live_host.own_options(load.load(str(lab.config_toml))).flags) == {flag}


WSL = "usr/lib/wsl"


def windows(lab: Lab) -> None:
    lab.host.write("proc/devices", "Character devices:\n 10 misc\n")
    lab.host.write("dev/dxg", mode=0o666)
    for folder in ("lib", "drivers/nv.inf"):
        for name in ("libdxcore.so", "libcuda.so.1.1"):
            lab.host.write(f"driver/{WSL}/{folder}/{name}", elf_bytes(name))


def test_wsl_has_all_and_nothing_else(lab: Lab) -> None:
    windows(lab)

    plan = own_plan(lab)

    assert list(plan["devices"]) == ["nvidia.com/gpu=all"]
    with pytest.raises(Exception, match="no device '0'; it has all") as caught:
        model.collect(plan, ["nvidia.com/gpu=0"])
    assert "ask for all" in caught.value.hint  # type: ignore[attr-defined]  # an NvctError
    (lab.home / f"driver/{WSL}/drivers/other.inf").mkdir()
    assert not model.is_current(plan)


@pytest.mark.parametrize(("uuid", "names"), [("GPU-a", ["0", "all"]), ("", ["all"])])
def test_the_only_gpu_of_wsl_is_gpu_0(uuid: str, names: list[str], lab: Lab) -> None:
    windows(lab)
    plan = own_plan(lab)
    device = NamedDevice(name="all", uuid=uuid)

    refresh.name_the_only_gpu(plan, Inventory(driver_version="", mode="wsl", devices=(device,)))

    assert sorted(plan["devices"]) == [f"nvidia.com/gpu={name}" for name in names]


def test_a_host_without_a_gpu_to_give_still_has_a_driver(lab: Lab) -> None:
    lab.driver(gpus=1)
    (lab.home / "dev/nvidia0").unlink()
    with pytest.raises(HostError):
        own_plan(lab)

    plan = own_plan(lab, refresh.OWN_NONE)

    collected = model.common(plan, "nvidia.com/gpu")
    assert "/dev/nvidiactl" in [node["path"] for edit in collected for node in edit["nodes"]]
    assert list(plan["devices"]) == ["nvidia.com/gpu=none"]


def telling(path: Path) -> bytes:
    """Return a library that makes a file when it is loaded."""
    code = f'__attribute__((constructor)) static void f(void) {{ creat("{path}", 0600); }}'
    shim_lab = path.with_name("telling.so")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-include", "fcntl.h",
         "-x", "c", "-", "-o", str(shim_lab)],
        input=code, text=True, check=True, timeout=60,
    )  # fmt: skip
    return shim_lab.read_bytes()


def test_nvml_is_not_asked_for_containers_without_a_gpu(lab: Lab) -> None:
    mig_host(lab)  # where it would be asked
    asked = lab.home / "asked"
    lab.host.write(f"driver/{LIBRARIES}/libnvidia-ml.so.{VERSION}", telling(asked))
    own_plan(lab)
    assert asked.exists()
    asked.unlink()

    own_plan(lab, refresh.OWN_NONE)

    assert not asked.exists()
