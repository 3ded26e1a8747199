# SPDX-License-Identifier: Apache-2.0
"""What mounts show of the host: by their paths, and by the mounts that the plugin sees."""

from __future__ import annotations

import time

import pytest

from nvct.nri import nri_pb2 as api
from nvct.nri.mounts import Node
from tests.support.kubelet_records import UID
from tests.unit.nri.fake_engine import RefusedError
from tests.unit.nri.test_plugin import Case, case, lab

__all__ = ["case", "lab"]  # fixtures

KUBELET = "/var/lib/kubelet"
SUBPATH = f"{KUBELET}/pods/1/volume-subpaths/v/main/0"
ON_HOST = f"""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:5 / /dev rw - devtmpfs udev rw
22 20 0:25 / /run rw - tmpfs tmpfs rw
23 21 0:26 / /dev/shm rw - tmpfs tmpfs rw
90 20 {{}} {SUBPATH} rw - x x rw
"""
IN_POD = f"""\
120 1 0:90 / / rw - overlay overlay rw
121 120 0:5 / /dev rw - devtmpfs udev rw
122 120 0:25 /nri /run/nri ro - tmpfs tmpfs rw
122 120 0:25 /nri /var/run/nri ro - tmpfs tmpfs rw
123 120 8:1 /etc/cdi /etc/cdi ro - ext4 /dev/sda1 rw
124 120 8:1 /var/lib/kubelet {KUBELET} ro - ext4 /dev/sda1 rw
190 124 {{}} {SUBPATH} ro - x x rw
"""


def source_of(path: str, mountinfo: str) -> str:
    node = Node(KUBELET, "/var/run/nri")
    return node.source(path, node.view(mountinfo))


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD], ids=["on the host", "in a pod"])
@pytest.mark.parametrize(
    ("mounted", "source"),
    [
        ("0:5 /", "/dev"),
        ("0:5 /nvidia0", "/dev/nvidia0"),
        ("0:25 /", "/run"),
        ("0:25 /containerd", "/run/containerd"),
        ("0:25 /containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("0:25 /cdi/own", "/run/cdi/own"),
        ("8:1 /etc", "/etc"),
        ("8:1 /var/lib/kubelet/device-plugins", f"{KUBELET}/device-plugins"),
        ("8:1 /", "/"),
        ("8:1 /var/lib/kubelet/pods/1/volumes/e/x", SUBPATH),
        ("8:1 /etc/cdi.d", SUBPATH),
        ("0:25 /user/1", SUBPATH),
        ("0:77 /", SUBPATH),
    ],
)
def test_a_subpath_is_known_by_its_file_system(mounted: str, source: str, mounts: str) -> None:
    assert source_of(SUBPATH, mounts.format(mounted)) == source


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD])
def test_a_subpath_whose_mount_is_not_seen_could_be_everything(mounts: str) -> None:
    seen = mounts.format("8:1 /data")
    assert source_of(f"{SUBPATH}1", seen) == "/"
    assert source_of(SUBPATH, "") == "/"


VOLUME = f"{KUBELET}/pods/1/volumes/kubernetes.io~local-volume/v"
KERNEL = """\
122 120 0:40 / /sys ro - sysfs sysfs rw
191 124 0:40 / {volume} rw - sysfs sysfs rw
192 124 0:41 /x {volume}2 rw - cgroup cgroup rw
193 124 0:42 / {volume}3 rw - proc proc rw
"""


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD], ids=["on the host", "in a pod"])
@pytest.mark.parametrize(
    ("mounted", "source"),
    [
        ("0:25 /", "/run"),
        ("0:25 /k3s/containerd", "/run/k3s/containerd"),
        ("8:1 /etc/kubernetes", "/etc/kubernetes"),
        ("8:1 /var/lib/kubelet/pods", f"{KUBELET}/pods"),
        ("8:1 /data", VOLUME),
        ("8:16 /", VOLUME),
    ],
)
def test_a_local_volume_is_known_by_its_file_system(
    mounted: str, source: str, mounts: str
) -> None:
    seen = mounts.format(mounted).replace(SUBPATH, VOLUME)
    assert source_of(VOLUME, seen) == source
    assert source_of(f"{VOLUME}2", seen) == "/"


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD], ids=["on the host", "in a pod"])
def test_a_volume_may_be_the_kernel_s(mounts: str) -> None:
    seen = mounts.format("8:1 /") + KERNEL.format(volume=VOLUME)
    assert source_of(VOLUME, seen) == "/sys"
    assert source_of(f"{VOLUME}2", seen) == "/sys/fs/cgroup/x"
    assert source_of(f"{VOLUME}3", seen) == "/proc"


def test_a_root_in_a_subvolume_is_the_root() -> None:
    seen = f"""\
24 1 0:90 / / rw - overlay overlay rw
25 24 0:30 /@/var/lib/kubelet {KUBELET} ro - btrfs /dev/sda1 rw
26 25 0:30 /@/etc {VOLUME} ro - btrfs /dev/sda1 rw
27 25 0:30 / {VOLUME}2 ro - btrfs /dev/sda1 rw
28 25 0:30 /@/srv {VOLUME}3 ro - btrfs /dev/sda1 rw
"""
    assert source_of(VOLUME, seen) == "/etc"
    assert source_of(f"{VOLUME}2", seen) == "/"
    assert source_of(f"{VOLUME}3", seen) == f"{VOLUME}3"


def test_what_the_runtime_mounts_in_another_way_gives_every_device() -> None:
    def is_wide(*mounts: tuple[str, str, str]) -> bool:
        each = [api.Mount(source=s, type=t, options=o.split(",")) for s, t, o in mounts]
        return Node(KUBELET, "/var/run/nri").judge(each)[1]

    held = ("/sys/class", "bind", "rbind,ro")
    assert not is_wide(held, ("proc", "proc", "nosuid"), ("tmpfs", "tmpfs", "mode=755"))
    assert is_wide(held, ("/sys/class", "bind", "rbind,ro,rrw"))
    for relative in (("proc", "proc", "rbind"), ("../x", "none", "ro"), ("", "bind", "rbind")):
        assert is_wide(held, relative), relative


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("/", True), ("/dev", True), ("//dev/./", True), ("/run", True), ("/var", True),
        ("/var/run/nri/nri.sock", True), ("/run/containerd", True), ("/var/run/cdi", True),
        ("KUBELET", True), ("KUBELET/device-plugins", True), ("KUBELET/dra_manager_state", True),
        ("KUBELET/pods/1/volumes/t/x", False), ("/dev/mqueue", False), ("/dev/termination-log", False),
        ("/var/log", False), ("/devices", False), ("/sys/class", True), ("/process", False),
        ("/sys/fs/cgroup", True), ("/sys/fs/cgroup/devices", True), ("/sys", True),
        ("/proc", True), ("/proc/sys/kernel", True), ("/sys/kernel/debug", True),
        ("/run/containerd/s/1", True), ("/run/containerd/containerd.sock.ttrpc", True),
        ("/run/containerd/io.containerd.runtime.v2.task/k8s.io/1", True),
        ("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm", False),
        ("/run/containerd/io.containerd.grpc.v1.cri/sandboxes", True),
        ("/run/k3s/containerd/containerd.sock", True), ("/run/docker", True),
        ("/run/docker.sock", True), ("/var/run/crio/crio.sock", True), ("/opt/nri", True),
        ("/opt/nri/nri.sock", True), ("/opt/nri2", False), ("/etc/kubernetes/manifests", True),
        ("/etc/kubernetes/pki", False), ("KUBELET/plugins/x", True), ("KUBELET/pods", True),
        ("KUBELET/pods/1", True), ("KUBELET/pods/1/volumes/t", True),
        ("KUBELET/pods/1/etc-hosts", False), ("KUBELET/pods/1/containers/main/1", False),
        ("KUBELET/pods/1/volumes/kubernetes.io~local-volume/x", True),  # not seen here
    ],
)  # fmt: skip
def test_who_mounts_the_nodes_own_folders_could_give_himself_gpus(
    source: str, case: Case, *, is_refused: bool
) -> None:
    case.options = {"rule": "enforce", "sockets": "/opt/nri"}
    kubelet = case.lab.home / "kubelet"
    kubelet.mkdir()
    source = source.replace("KUBELET", str(kubelet))
    mount = api.Mount(source=source, destination="/x", type="bind")
    if is_refused:
        with pytest.raises(RefusedError, match="pods have what the kubelet gives"):
            case.create(mounts=[mount])
        case.create(mounts=[mount], namespace="kube-system")
    else:
        case.create(mounts=[mount])


@pytest.mark.parametrize(
    ("source", "options", "is_refused"),
    [
        ("/sys/kernel", ["ro"], False), ("/sys/class", ["ro"], False), ("/sys/kernel", ["rw"], True), ("/proc/sys", ["ro"], True),
        ("/sys", ["ro"], True),  # its control groups are of version 2, or below it and writable
    ],
)  # fmt: skip
def test_the_kernel_s_files_are_judged_as_the_runtime_does(
    source: str, options: list[str], case: Case, *, is_refused: bool
) -> None:
    case.options = {"rule": "enforce"}
    (case.lab.home / "kubelet").mkdir()
    mounts = [api.Mount(source=source, destination="/x", type="bind", options=options)]
    if is_refused:
        with pytest.raises(RefusedError, match="pods have what the kubelet gives"):
            case.create(mounts=mounts)
    else:
        case.create(mounts=mounts)


def test_the_host_s_processes_count_as_every_device(case: Case) -> None:
    case.options = {"rule": "enforce"}
    (case.lab.home / "kubelet").mkdir()
    own = {"namespaces": [api.LinuxNamespace(type="mount"), api.LinuxNamespace(type="pid")]}
    case.create(linux=own)
    with pytest.raises(RefusedError, match="pods have what the kubelet gives"):
        case.create(linux={"namespaces": own["namespaces"][:1]})


def subpaths(case: Case, count: int) -> list[api.Mount]:
    folder = case.lab.home / f"kubelet/pods/{UID}/volume-subpaths/v/main"
    return [
        api.Mount(source=f"{folder}/{number}", destination=f"/{number}", type="bind")
        for number in range(count)
    ]


@pytest.mark.parametrize("rule", ["off", "enforce"])
def test_a_thousand_subpaths_cost_little(
    rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine ends a plugin that takes two seconds, and goes on without it."""
    case.options = {"rule": rule}
    (case.lab.home / "kubelet").mkdir()
    line = f"{{n}} 25 0:{{n}} / {{path}} rw,relatime shared:1 - overlay overlay rw,lowerdir={'x' * 900}"
    mounts = subpaths(case, 1000)
    paths = [*(f"/run/containerd/io/{n}/rootfs" for n in range(3000)), *(m.source for m in mounts)]
    mountinfo = "".join(f"{line.format(n=n, path=path)}\n" for n, path in enumerate(paths))
    path = case.lab.home / "mountinfo"
    path.write_text(f"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mountinfo}")  # more than 1 MiB
    monkeypatch.setattr("nvct.nri.mounts.MOUNTS", str(path))
    case.create()
    began = time.process_time()
    case.create(mounts=mounts)
    assert time.process_time() - began < (0.2 if rule == "off" else 0.6)


def test_more_sources_than_can_be_judged_in_time_are_refused(case: Case) -> None:
    mounts = subpaths(case, 5000)
    case.create(mounts=mounts)
    case.options = {"rule": "enforce"}
    (case.lab.home / "kubelet").mkdir()
    began = time.process_time()
    with pytest.raises(RefusedError, match="mounts 5000 sources, and 4096 can be judged"):
        case.create(mounts=mounts)
    assert time.process_time() - began < 0.6


def test_thousands_of_mounts_cost_little(case: Case) -> None:
    """An engine ends a plugin that takes two seconds, and goes on without it."""
    case.options = {"rule": "enforce"}
    mounts = [api.Mount(source="/dev/", destination=f"/{n}") for n in range(9000)]
    began = time.process_time()
    with pytest.raises(RefusedError, match="pods have what the kubelet gives"):
        case.create(mounts=mounts)
    assert time.process_time() - began < 1.5
