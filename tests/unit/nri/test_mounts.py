# SPDX-License-Identifier: Apache-2.0
"""What mounts show of the host: by their paths, and by the mounts that the plugin sees."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from nvct.container import host_view
from nvct.nri import mounts as judging
from nvct.nri import nri_pb2 as api
from nvct.nri.mounts import Node
from tests.support.kubelet_records import CONTAINER, UID, Given, write
from tests.support.policy_lab import nodes
from tests.unit.nri.fake_engine import RefusedError
from tests.unit.nri.test_plugin import (
    CGROUP,
    DENY,
    GPU,
    ID,
    POD,
    Case,
    case,
    configure,
    device,
    lab,
)

__all__ = ["case", "lab"]  # fixtures

CHECKED = DENY.replace("deny", "allow")
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


@contextmanager
def node_of(mountinfo: str) -> Iterator[Node]:
    """Yield a node whose mounts are seen as a file of mountinfo has them."""
    with NamedTemporaryFile("w") as file, pytest.MonkeyPatch.context() as patch:
        file.write(mountinfo)
        file.flush()
        patch.setattr(judging, "MOUNTS", file.name)
        yield Node(KUBELET, ["/var/run/nri"])


def source_of(path: str, mountinfo: str) -> str:
    with node_of(mountinfo) as node:
        return node.source(path, node.view([path]))


BOTH = pytest.mark.parametrize("mounts", [ON_HOST, IN_POD], ids=["on the host", "in a pod"])
VOLUME = f"{KUBELET}/pods/1/volumes/kubernetes.io~local-volume/v"
KERNEL = """\
122 120 0:40 / /sys ro - sysfs sysfs rw
191 124 0:40 / {volume} rw - sysfs sysfs rw
192 124 0:41 /x {volume}2 rw - cgroup cgroup rw
193 124 0:42 / {volume}3 rw - proc proc rw
"""


@BOTH
@pytest.mark.parametrize("path", [SUBPATH, VOLUME], ids=["subpath", "local volume"])
@pytest.mark.parametrize(
    ("mounted", "source"),
    [
        ("0:5 /", "/dev"), ("0:5 /nvidia0", "/dev/nvidia0"), ("0:25 /", "/run"),
        ("0:25 /containerd", "/run/containerd"),
        ("0:25 /containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("0:25 /k3s/containerd", "/run/k3s/containerd"), ("0:25 /cdi/own", "/run/cdi/own"),
        ("8:1 /etc", "/etc"), ("8:1 /etc/kubernetes", "/etc/kubernetes"),
        ("8:1 /var/lib/kubelet/pods", f"{KUBELET}/pods"), ("8:1 /", "/"),
        ("8:1 /var/lib/kubelet/device-plugins", f"{KUBELET}/device-plugins"),
        ("8:1 /var/lib/kubelet/pods/1/volumes/e/x", ""), ("8:1 /etc/cdi.d", ""),
        ("0:25 /user/1", ""), ("0:77 /", ""), ("8:1 /data", ""), ("8:16 /", ""),
    ],
)  # fmt: skip
def test_what_is_mounted_is_known_by_its_file_system(
    mounted: str, source: str, path: str, mounts: str
) -> None:
    seen = mounts.format(mounted).replace(SUBPATH, path)
    assert source_of(path, seen) == (source or path)
    assert source_of(f"{path}2", seen) == "/", "its mount is not seen: it could be everything"
    assert source_of(path, "") == "/"


@BOTH
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
        return bool(Node(KUBELET).judge(api.PodSandbox(), each)[1])

    held = ("/sys/class", "bind", "rbind,ro")
    assert not is_wide(held, ("proc", "proc", "nosuid"), ("tmpfs", "tmpfs", "mode=755"))
    assert is_wide(held, ("/sys/class", "bind", "rbind,ro,rrw"))
    for relative in (("proc", "proc", "rbind"), ("../x", "none", "ro"), ("", "bind", "rbind")):
        assert is_wide(held, relative), relative


def judge(case: Case, *, is_refused: bool, **asks: Any) -> str:
    """Create a container with the rule on; return why it is refused."""
    case.enforce()
    if not is_refused:
        case.create(**asks)
        return ""
    with pytest.raises(RefusedError, match="pods have what the kubelet gives") as refused:
        case.create(**asks)
    return str(refused.value)


def mount_of(source: str, destination: str = "/x", **more: Any) -> api.Mount:
    return api.Mount(source=source, destination=destination, type="bind", **more)


SANDBOXES, OTHER = "io.containerd.grpc.v1.cri/sandboxes", "a" * 64


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("/run/nvct-nri", True), ("/var/run/nvct-agent", True), ("/etc/nvidia-container-runtime", True),
        ("KUBELET/../nri", True), ("KUBELET/../config.toml", True),  # of this plugin
        ("/run/systemd", True), ("/run/dbus/system_bus_socket", True), ("/run/systemd/journal", False),
        ("/run/buildkit/buildkitd.sock", True), ("/var/lib/incus/unix.socket", True),
        ("/run/nvidia", True), ("/run/nvidia/driver", True), ("/run/nvidia/driver/dev", True),
        ("/run/nvidia/driver/proc", True), ("/run/nvidia/driver/sys", True),
        ("/var/run/nvidia/driver/var/run/containerd", True),
        ("/run/nvidia/driver/run/nvidia/driver/dev", True), ("DRIVER", True), ("DRIVER/dev", True),
        ("DRIVER/usr/lib", False), ("/run/nvidia/driver/usr/lib", False), ("/run/nvidia/x", False),
        ("/" + "x/" * 2500, True),
        ("/", True), ("/dev", True), ("//dev/./", True), ("/run", True), ("/var", True),
        ("/var/run/nri/nri.sock", True), ("/run/containerd", True), ("/var/run/cdi", True),
        ("KUBELET", True), ("KUBELET/device-plugins", True), ("KUBELET/dra_manager_state", True),
        ("KUBELET/pods/1/volumes/t/x", False), (f"KUBELET/pods/{UID}/etc-hosts", False), ("/dev/mqueue", False), ("/dev/termination-log", False),
        ("/var/log", False), ("/devices", False), ("/sys/class", True), ("/process", False),
        ("/sys/fs/cgroup", True), ("/sys/fs/cgroup/devices", True), ("/sys", True),
        ("/proc", True), ("/proc/sys/kernel", True), ("/sys/kernel/debug", True),
        ("/run/containerd/s/1", True), ("/run/containerd/containerd.sock.ttrpc", True),
        ("/run/containerd/io.containerd.runtime.v2.task/k8s.io/1", True),
        (f"/run/containerd/{SANDBOXES}/{ID}/shm", False),
        (f"/run/k3s/containerd/{SANDBOXES}/{ID}/shm", False),
        (f"/run/containerd/{SANDBOXES}/{ID}", True), (f"/run/containerd/{SANDBOXES}/x/shm", True),
        (f"/run/containerd/{SANDBOXES}/{ID}/sock", True), (f"/run/containerd/{SANDBOXES}/{ID}/shm/x", True),
        (f"KUBELET/plugins_registry/{SANDBOXES}/x/y", True),
        (f"/run/containerd/{SANDBOXES}/{OTHER}/shm", True), (f"/etc/cdi/{SANDBOXES}/{OTHER}/shm", True),
        (f"/var/lib/containerd/{SANDBOXES}/{ID}/hosts", False),
        (f"/run/containers/storage/overlay-containers/{ID}/userdata/shm", False),
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
    case.options = {"sockets": "/opt/nri"}
    for name in ("kubelet", "driver"):
        source = source.replace(name.upper(), str(case.lab.home / name))
    reason = judge(case, is_refused=is_refused, mounts=[mount_of(source)])
    if is_refused:
        assert ", given by the mount of " in reason
        case.create(mounts=[mount_of(source)], namespace="kube-system")


@pytest.mark.parametrize(
    ("source", "options", "is_refused"),
    [
        ("/sys/kernel/config", ["ro"], False), ("/sys/class", ["ro"], False), ("/sys/kernel", ["rw"], True), ("/proc/sys", ["ro"], True),
        ("/sys/kernel", ["ro"], True), ("/sys/kernel/debug", ["ro"], True),  # what is below stays writable
        ("/sys/kernel", ["ro", "rro"], False), ("/sys/kernel/debug", ["rro"], False),
        ("/sys/kernel/tracing", ["ro"], False), ("/sys/kernel/tracing", [], True),
        ("/sys", ["ro"], True),  # its control groups are of version 2, or below it and writable
    ],
)  # fmt: skip
def test_the_kernel_s_files_are_judged_as_the_runtime_does(
    source: str, options: list[str], case: Case, *, is_refused: bool
) -> None:
    judge(case, is_refused=is_refused, mounts=[mount_of(source, options=options)])


def namespaces(*kinds: str, path: str = "") -> list[api.LinuxNamespace]:
    return [api.LinuxNamespace(type=kind, path=path) for kind in kinds]


OWN = namespaces("mount", "pid")
OF_SANDBOX = namespaces("pid", path="/proc/1234/ns/pid")


@pytest.mark.parametrize(
    ("asks", "is_refused"),
    [
        ({"linux": {"namespaces": OWN}}, False),
        ({"linux": {"namespaces": namespaces("mount")}}, True),
        ({"linux": {"namespaces": OF_SANDBOX}, "sandbox": namespaces("ipc", "mount")}, True),
        ({"linux": {"namespaces": OF_SANDBOX}, "sandbox": namespaces("ipc", "pid")}, False),
        ({"linux": {"namespaces": OF_SANDBOX}}, True),  # it is not known
        ({"linux": {"namespaces": OWN}, "others": OF_SANDBOX, "sandbox": namespaces("pid")}, True),
        ({"linux": {"namespaces": OWN}, "others": namespaces("-pid")}, True),
        ({"linux": {"namespaces": OF_SANDBOX}, "others": namespaces("pid")}, False),
    ],
)
def test_the_host_s_processes_count_as_every_device(
    asks: dict[str, Any], case: Case, *, is_refused: bool
) -> None:
    """containerd gives the path of the sandbox's namespace, which is the host's with hostPID."""
    asks = dict(asks)
    changed = api.LinuxContainerAdjustment(namespaces=asks.pop("others", ()))
    judge(case, is_refused=is_refused, others=api.ContainerAdjustment(linux=changed), **asks)


def own(kind: str, *options: str, destination: str = "/x", source: str = "") -> api.Mount:
    return api.Mount(type=kind, source=source or kind, destination=destination, options=options)


@pytest.mark.parametrize("by_other", [False, True])
@pytest.mark.parametrize(
    ("mount", "is_refused"),
    [
        (own("proc", "nosuid", destination="/proc"), False),
        (own("proc", "rw"), True),
        (own("sysfs", "nosuid", "ro", destination="/sys"), False),
        (own("sysfs", "nosuid", "rw", destination="/sys"), True),  # privileged
        (own("debugfs", "ro"), True),
        (own("tmpfs", "rw"), False),
        (own("bind", "rbind", source="../../../../dev"), True),
        (own("none", "rbind", source="run/containerd"), True),
        (own("proc", "rbind", source="/run/containerd"), True),
        (own("overlay", "lowerdir=/run/containerd:/etc"), True),
        (own("ext4", "rw", source="/dev/sda1"), True),
        (own("tmpfs", "remount", "rw", destination="/sys"), True),
        (own("bind", "rbind", "remount", source="/usr"), True),
        (own("bind", "rbind", source="/usr"), False),
    ],
)
def test_mounts_that_the_runtime_makes_are_judged(
    mount: api.Mount, case: Case, *, is_refused: bool, by_other: bool
) -> None:
    """Those of the engine, for a privileged container without the host's devices, and others'."""
    asks = {"others": api.ContainerAdjustment(mounts=[mount])} if by_other else {"mounts": [mount]}
    judge(case, is_refused=is_refused, **asks)


def test_a_mount_that_a_plugin_removes_gives_nothing(case: Case) -> None:
    removed = api.Mount(destination="-/x")
    judge(case, is_refused=False, others=api.ContainerAdjustment(mounts=[removed]))


@pytest.mark.parametrize("by_other", [False, True])
@pytest.mark.parametrize(
    ("edits", "is_refused"),
    [
        ({"mounts": [{"hostPath": "/run/containerd", "containerPath": "/x"}]}, True),
        ({"mounts": [{"hostPath": "/dev", "containerPath": "/x"}]}, True),
        ({"mounts": [{"hostPath": "/usr", "containerPath": "/x"}]}, False),
        ({"env": ["A=b"]}, False),
    ],
)
def test_mounts_of_cdi_devices_are_judged(
    edits: dict[str, Any], case: Case, *, is_refused: bool, by_other: bool
) -> None:
    case.lab.spec("other.json", kind="evil.com/card", devices={"a": edits})
    name = "evil.com/card=a"
    if by_other:
        others = api.ContainerAdjustment(CDI_devices=[api.CDIDevice(name=name)])
        judge(case, is_refused=is_refused, others=others)
    else:
        judge(case, is_refused=is_refused, annotations={POD: name})


@BOTH
@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("/data/kubelet/device-plugins", True), ("/data/kubelet", True), ("/data", True),
        ("/data/kubelet/pods/1/volumes/t/x", False), ("/data/x", False),
    ],
)  # fmt: skip
def test_a_kubelet_s_folder_that_is_a_link_has_two_names(
    folder: str, mounts: str, *, source: bool
) -> None:
    seen = mounts.replace("8:1 /var/lib/kubelet", "8:1 /data/kubelet").format("8:1 /")
    if mounts == ON_HOST:
        seen += f"91 20 8:1 /data/kubelet {KUBELET} rw - ext4 /dev/sda1 rw\n"
    with node_of(seen) as node:
        assert node.gives(node.source(folder, node.view([folder]))) == source


def test_a_bind_mount_of_a_closed_place_is_one() -> None:
    seen = (
        ON_HOST.format("8:1 /")
        + """\
92 20 0:25 /containerd /mnt/a rw - tmpfs tmpfs rw
93 20 8:1 /etc/kubernetes /srv/b rw - ext4 /dev/sda1 rw
94 20 8:1 /srv /srv/c rw - ext4 /dev/sda1 rw
95 20 0:5 / /srv/d rw - devtmpfs udev rw
"""
    )
    sources = {
        "/mnt/a": "/run/containerd", "/mnt/a/x": "/run/containerd/x",
        "/srv/b": "/etc/kubernetes", "/srv/c": "/srv/c", "/srv/d/nvidia0": "/dev/nvidia0",
    }  # fmt: skip
    with node_of(seen) as node:
        assert {path: node.source(path, node.view([path])) for path in sources} == sources


def test_a_folder_of_the_kubelet_that_is_a_link_is_closed_by_both_names(case: Case) -> None:
    (case.lab.home / "real/device-plugins").mkdir(parents=True)
    (case.lab.home / "kubelet").symlink_to(case.lab.home / "real")
    for name in ("real", "kubelet"):
        folder = case.lab.home / name / "device-plugins"
        judge(case, is_refused=True, mounts=[mount_of(str(folder))])


def subpaths(case: Case, count: int) -> list[api.Mount]:
    folder = case.lab.home / f"kubelet/pods/{UID}/volume-subpaths/v/main"
    return [mount_of(f"{folder}/{number}", f"/{number}") for number in range(count)]


@pytest.mark.parametrize("rule", ["off", "enforce"])
def test_a_thousand_subpaths_cost_little(
    rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine ends a plugin that takes two seconds, and goes on without it."""
    case.options = {"rule": rule}
    (case.lab.home / "kubelet").mkdir()
    line = f"{{n}} 25 0:{{n}} / {{path}} rw,relatime shared:1 - overlay overlay rw,lowerdir={'x' * 600}"
    mounts = subpaths(case, 1000)
    paths = [*(f"/run/containerd/io/{n}/rootfs" for n in range(3000)), *(m.source for m in mounts)]
    mountinfo = "".join(f"{line.format(n=n, path=path)}\n" for n, path in enumerate(paths))
    path = case.lab.home / "mountinfo"
    path.write_text(f"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mountinfo}")  # more than 1 MiB
    monkeypatch.setattr(judging, "MOUNTS", str(path))
    case.create()
    began = time.process_time()
    case.create(mounts=mounts)
    assert time.process_time() - began < (0.2 if rule == "off" else 0.6)


def test_mounts_of_one_pod_are_in_nobody_s_way(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's author can have the kubelet make thousands, with names of 16 KiB in mountinfo."""
    path = case.lab.home / "mountinfo"
    monkeypatch.setattr(judging, "MOUNTS", str(path))
    monkeypatch.setattr(host_view, "PROC", str(case.lab.home / "no procfs is read"))
    line = "{} 20 8:1 /{} /var/lib/kubelet/pods/2/volume-subpaths/v/c/{} rw - ext4 /dev/sda1 rw\n"
    few, many = r"\040" * 4000, "data"
    with path.open("w") as file:
        file.write("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
        file.writelines(line.format(n, few if n < 500 else many, n) for n in range(50_000))
    case.enforce()
    folder = f"{case.lab.home}/kubelet/pods/{UID}"
    own = [
        f"{folder}/volumes/kubernetes.io~projected/x", f"{folder}/etc-hosts",
        f"{folder}/containers/main/1", f"/run/containerd/{SANDBOXES}/{ID}/shm",
    ]  # fmt: skip
    plugin = case.plugin()
    plugin.prepare()

    def cpu_s(*sources: str) -> float:
        mounts = list(map(mount_of, sources))
        verdict = api.ValidateContainerAdjustmentRequest(
            pod=api.PodSandbox(id=ID, uid=UID, namespace="default"),
            container=api.Container(mounts=mounts),
        )
        began = time.process_time()
        answer = plugin.validate(verdict.SerializeToString())
        assert not api.ValidateContainerAdjustmentResponse.FromString(answer).reject
        return time.process_time() - began

    cpu_s(*own)
    monkeypatch.setattr(judging, "JUDGED_S", 60.0)  # other programs take time, too
    tracemalloc.start()
    cpu_s(*own, "/usr")
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    assert cpu_s(*own) < 0.02
    assert cpu_s(*own, "/usr") < 0.5


def reason_while_mounts_change(
    case: Case, monkeypatch: pytest.MonkeyPatch, container: api.Container
) -> str:
    """Return why a container is refused while nobody can read the table of mounts.

    The kernel lets nobody read it while it changes: with 100 pods at once for half a minute. An
    engine ends a plugin that takes two seconds, and goes on without it.
    """
    case.options = {"rule": "enforce"}
    kubelet = case.lab.home / "kubelet"
    kubelet.mkdir(exist_ok=True)
    write(kubelet, Given(cdi=GPU[:1], devices=["0"]))
    plugin = case.plugin()
    plugin.prepare()
    path = case.lab.home / "mountinfo"
    os.mkfifo(path)
    monkeypatch.setattr(judging, "MOUNTS", str(path))
    monkeypatch.setattr(host_view, "PROC", str(case.lab.home / "no procfs is read"))
    pod = api.PodSandbox(id=ID, uid=UID, namespace="default", name="pod")
    container.name, container.linux.cgroups_path = CONTAINER, CGROUP
    request = api.ValidateContainerAdjustmentRequest(pod=pod, container=container)
    began = time.monotonic()
    answer = plugin.validate(request.SerializeToString())
    assert time.monotonic() - began < 1.9
    return api.ValidateContainerAdjustmentResponse.FromString(answer).reason


def test_what_every_pod_with_a_gpu_has_needs_no_mounts(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the driver's files by CDI, and control groups, of version 1 without a namespace."""
    files = [{"hostPath": f"/usr/lib/{n}.so", "containerPath": f"/usr/lib/{n}.so"} for n in "ab"]
    case.lab.spec(devices={"0": {**nodes((195, 0), path="/dev/nvidia"), "mounts": files}})
    mounts = [
        own("cgroup", "ro", destination="/sys/fs/cgroup"),
        *(mount_of(f["hostPath"], f["hostPath"]) for f in files),
    ]
    container = api.Container(
        mounts=mounts, linux=api.LinuxContainer(namespaces=OWN, **device(0))
    )  # containerd 2.1 has resolved the kubelet's CDI names, and shows none
    assert reason_while_mounts_change(case, monkeypatch, container) == ""


def test_mounts_that_cannot_be_read_in_time_are_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = api.Container(mounts=[mount_of("/usr")])
    reason = reason_while_mounts_change(case, monkeypatch, container)
    assert "mounts that nvct cannot judge (it takes longer than" in reason


def test_what_takes_too_long_to_judge_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "JUDGED_S", 0.0)
    mounts = subpaths(case, 5)
    case.create(mounts=mounts)
    reason = judge(case, is_refused=True, mounts=mounts)
    assert "given by mounts that nvct cannot judge (it takes longer than" in reason
    case.create(mounts=mounts, namespace="kube-system")


@pytest.mark.parametrize(
    "large",
    [
        {"mounts": [api.Mount(source="/dev/null", destination=f"/{n}") for n in range(20_000)]},
        {"env": [f"E{n}=1" for n in range(150_000)]},
    ],
    ids=["mounts", "variables"],
)
def test_what_a_pod_has_many_of_costs_little(large: dict[str, Any], case: Case) -> None:
    case.options = {"rule": "audit"}
    plugin = case.plugin()
    container = api.Container(**large)
    verdict = api.ValidateContainerAdjustmentRequest(container=container)
    create = api.CreateContainerRequest(container=container)
    plugin.validate(api.ValidateContainerAdjustmentRequest().SerializeToString())
    began = time.process_time()
    plugin.create(create.SerializeToString())
    plugin.validate(verdict.SerializeToString())
    assert time.process_time() - began < 1.2


@pytest.mark.parametrize("policy", ["", CHECKED])
@pytest.mark.parametrize(
    "folder", ["/tmp/volume-subpaths", "/tmp/x", "/dev/dri", "/var/lib/kubelet/pods/u/volumes"]
)
def test_deep_paths_cost_little(folder: str, policy: str, case: Case) -> None:
    """A pod's author writes 1.5 MB of them; an engine ends a plugin that takes two seconds."""
    case.options = {"rule": "audit"}
    configure(case.lab, policy)
    mounts = [
        api.Mount(source=f"{folder}/{n}{'/a' * 2000}", destination=f"/{n}") for n in range(370)
    ]
    plugin = case.plugin()
    verdict = api.ValidateContainerAdjustmentRequest(container=api.Container(mounts=mounts))
    began = time.process_time()
    plugin.validate(verdict.SerializeToString())
    assert time.process_time() - began < 0.25


def test_thousands_of_mounts_that_need_no_look_have_the_same_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy node, 80,000 mounts took longer than an engine waits."""
    monkeypatch.setattr(judging, "JUDGED_S", -1.0)
    secret = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~secret/x"
    mounts = [mount_of(secret, f"/{n}") for n in range(300)]
    pod = api.PodSandbox(uid=UID)
    node = Node("/var/lib/kubelet")
    assert node.judge(pod, mounts[:5]) == ([], "")
    assert "cannot judge" in node.judge(pod, mounts)[1]
