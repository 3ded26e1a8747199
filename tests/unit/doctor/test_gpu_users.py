# SPDX-License-Identifier: Apache-2.0
"""Who uses a GPU: processes by what they have open, containers by their device nodes."""

import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cli.ps import text
from nvct.doctor import gpu_users
from nvct.doctor.gpu_users import Device, Use
from nvct.host import procfs
from nvct.host.gpu_record import Holding
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.host.nvml.sample_model import GpuSample, NvmlSamples, ProcessSample
from tests.support.host_tree import HostTree

ID = "ab" * 32
GPU = MigGpu(
    index=0, uuid="GPU-0", name="H100", bus_id="0000:18:00.0", minor=3, device=0, subsystem=0
)


def host(path: Path) -> HostTree:
    tree = HostTree(path)
    # /dev/null is 1:3, so the memory device takes the part of the driver here.
    tree.write("proc/devices", "Character devices:\n  1 nvidia\n236 nvidia-caps\n")
    return tree


def process(tree: HostTree, pid: int, *, cgroup: str = "0::/\n", opens: bool = True) -> None:
    tree.write(f"proc/{pid}/comm", "python3\n")
    tree.write(f"proc/{pid}/cgroup", cgroup)
    (tree.base / f"proc/{pid}/fd").mkdir()
    if opens:
        os.symlink("/dev/null", tree.base / f"proc/{pid}/fd/7")


def users(tree: HostTree, samples: NvmlSamples | None = None) -> list[Use]:
    return gpu_users.users(tree.roots, MigState(gpus=(GPU,)), samples, host=str(tree.base))


def test_a_process_uses_what_it_has_open(tmp_path: Path) -> None:
    tree = host(tmp_path)
    process(tree, 41, cgroup="0::/system.slice/train.service\n")
    process(tree, 42, opens=False)
    sample = GpuSample(
        index=0, minor=3, uuid="GPU-0", bus_id="", name="",
        processes=(ProcessSample(pid=41, memory=5 << 20),),
    )  # fmt: skip

    processes = (ProcessSample(pid=41, memory=3 << 20),)
    other = replace(sample, index=1, uuid="GPU-1", processes=processes)
    (use,) = users(tree, NvmlSamples(gpus=(sample, other)))

    assert use == Use(
        device=Device(0, ""), pid=41, command="python3", memory=5 << 20, unit="train.service"
    )


def test_the_memory_of_a_mig_device_is_its_own() -> None:
    processes = (
        ProcessSample(pid=41, memory=5, gi=7, ci=0), ProcessSample(pid=41, memory=3, gi=8, ci=0),
        ProcessSample(pid=41, memory=None, gi=9, ci=0), ProcessSample(pid=42, memory=1),
    )  # fmt: skip
    sample = GpuSample(index=0, minor=3, uuid="", bus_id="", name="", processes=processes)

    assert gpu_users._memory(NvmlSamples(gpus=(sample,))) == {
        (Device(0, "7/0"), 41): 5, (Device(0, "8/0"), 41): 3, (Device(0, ""), 42): 1,
    }  # fmt: skip


def test_the_container_of_a_process_is_named_as_its_engine_names_it(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write(f"var/lib/docker/containers/{ID}/config.v2.json", '{"Name": "/trainer"}')
    process(tree, 41, cgroup=f"0::/system.slice/docker-{ID}.scope\n")

    (use,) = users(tree)

    assert use.labels == {"container": "trainer"}


def test_what_the_nri_plugin_has_recorded_says_since_when(tmp_path: Path) -> None:
    tree = host(tmp_path)
    process(tree, 41, cgroup=f"0::/kubepods/pod1/{ID}\n")
    pod = Holding(
        id=ID, namespace="team", pod="train-0", container="main", since=7.0, devices=("GPU-0",),
        numbers=((1, 3), (9, 9)),
    )  # fmt: skip
    idle = replace(pod, id="cd" * 32, pod="idle", since=8.0)

    recorded = gpu_users.users(
        tree.roots, MigState(gpus=(GPU,)), host=str(tree.base), recorded=(pod, idle)
    )

    found = [(use.pid, use.labels["pod"], use.since) for use in recorded]
    assert found == [(0, "idle", 8.0), (41, "train-0", 7.0)]
    head, first, second = text(recorded)
    assert head.split()[-1] == "SINCE"
    assert "team/idle/main" in first
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(7)) in second


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    tree = host(tmp_path)
    (tree.base / "proc/43").mkdir(parents=True)

    assert users(tree) == []


def test_a_gpu_that_is_only_the_way_to_its_mig_device_is_not_listed() -> None:
    mig = Use(device=Device(0, "7/0"), pid=41)
    whole = Use(device=Device(0, ""), pid=41)
    other = Use(device=Device(0, ""), pid=42)

    assert gpu_users.without_ways([mig, whole, other]) == [mig, other]


def test_the_table_shows_pods_containers_and_processes() -> None:
    labels = {"container": "main", "namespace": "team", "pod": "train-0"}
    lines = text(
        [
            Use(device=Device(0, ""), pid=41, command="python3", memory=5 << 20, labels=labels),
            Use(device=Device(1, "7/0"), labels={"container": "abcdef"}),
            Use(device=Device(2, ""), pid=9, command="nvidia-persiste", unit="nvidia.service"),
        ]
    )

    assert [line.split() for line in lines] == [
        ["GPU", "MIG", "PID", "MEMORY", "COMMAND", "CONTAINER"],
        ["0", "-", "41", "5", "MiB", "python3", "team/train-0/main"],
        ["1", "7/0", "-", "-", "-", "abcdef"],
        ["2", "-", "9", "-", "nvidia-persiste", "nvidia.service"],
    ]
    assert text([]) == ["no process or container uses a GPU"]


def container(tree: HostTree, program: str, root: Path) -> None:
    """Make a container of the process 41 whose /dev has the GPU's node."""
    process(tree, 41, cgroup=f"0::/docker/{ID}\n", opens=False)
    os.symlink(program, tree.base / "proc/41/exe")
    os.symlink("/", tree.base / "proc/41/cwd")
    os.symlink(root, tree.base / "proc/41/root")
    (root / "dev").mkdir(parents=True)
    os.mknod(root / "dev/nvidia3", 0o600 | stat.S_IFCHR, os.makedev(1, 3))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for device nodes")
@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("/usr/bin/crun", 0),
        ("/runc", 0),
        ("/memfd:runc_cloned:/proc/self/exe (deleted)", 0),
        ("/usr/bin/sleep", 1),
        ("/opt/runcible", 1),
    ],
)
def test_who_has_the_hosts_root_uses_its_gpus_but_a_runtime_that_makes_a_container(
    program: str, count: int, tmp_path: Path
) -> None:
    """Its /dev has all devices until its own root is mounted; test_free.py has the real case."""
    tree = host(tmp_path)
    container(tree, program, tmp_path / "root")
    assert [use.device for use in users(tree)] == [Device(0, "")]

    (tree.base / "proc/1").mkdir()
    os.symlink(tmp_path / "root", tree.base / "proc/1/root")
    assert [use.device for use in users(tree)] == [Device(0, "")] * count


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for device nodes")
def test_files_of_other_names_in_a_containers_dev_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, listed = host(tmp_path), list[str]()
    container(tree, "/usr/bin/sleep", tmp_path / "root")
    real = procfs.list_directory

    def list_directory(path: str) -> list[str]:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(procfs, "list_directory", list_directory)

    assert [use.device for use in users(tree)] == [Device(0, "")]
    assert listed
    assert not any("/root" in path for path in listed)


@pytest.mark.parametrize("engine", ["libpod", "crio"])
def test_conmon_is_not_in_its_container(engine: str, tmp_path: Path) -> None:
    tree = host(tmp_path)
    process(tree, 41, cgroup=f"0::/machine.slice/{engine}-conmon-{ID}.scope\n")
    process(tree, 42, cgroup=f"0::/machine.slice/{engine}-{ID}.scope\n")

    assert [use.labels for use in users(tree)] == [{}, {"container": ID[:12]}]


def test_a_process_whose_first_thread_has_ended_is_seen_by_another() -> None:
    code = (
        "import ctypes, threading, time; open('/dev/null');"
        "f = open('/dev/null'); threading.Thread(target=time.sleep, args=(60,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    ended = subprocess.Popen([sys.executable, "-c", code])
    try:
        folder = Path(f"/proc/{ended.pid}")
        until = time.monotonic() + 10
        while " Z " not in (folder / "stat").read_text() and time.monotonic() < until:
            time.sleep(0.01)

        live = procfs.folder_of_live_thread("/proc", ended.pid)

        assert live.startswith(f"/proc/{ended.pid}/task/")
        assert os.path.samefile(f"{live}/root", "/")
    finally:
        ended.kill()
        ended.wait()
