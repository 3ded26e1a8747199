# SPDX-License-Identifier: Apache-2.0
"""Hosts with one thing that is wrong, as files below a folder; and the same hosts in order.

Each builder takes `broken`: without it, the check finds no fault.
"""

import base64
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

from nvct.cdi.read import registry
from nvct.cdi.read.registry import Registry
from nvct.config.model import Config
from nvct.doctor import (
    gpu_health,
    hardware,
    incumbent,
    inside,
    kubelet,
    parts,
    security,
    user_namespaces,
)
from nvct.doctor.model import Part
from nvct.doctor.node import Log, Node
from nvct.engine.command import Completed
from nvct.engine.model import Engine, State
from nvct.engine.status import Status
from nvct.errors import HostError
from nvct.host.model import DeviceNode, Gpu, Inventory
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.host.nvml.sample_model import GpuCondition, GpuReadiness, NvmlConditions
from nvct.host.roots import Roots
from nvct.kernel.kmsg import Message
from tests.support.kubelet_records import CONTAINER, UID, Given

Builder: TypeAlias = Callable[[Path, bool], Part]

BUS = "0000:18:00.0"
UUID = "GPU-00000000-1111-5222-8333-000000000000"
OTHER = "GPU-00000000-1111-5222-8333-000000000001"
RELEASE = "6.8.0-50-generic"
ID = "ab" * 32


def roots_of(home: Path) -> Roots:
    parts = {name: str(home / name) for name in ("proc", "sys", "etc", "run")}
    return Roots(driver_root=str(home / "driver"), dev_root=str(home), **parts)


def node_of(home: Path, **given: object) -> Node:
    """Return a node whose files are below a folder; what of it is not given is absent."""
    node = Node(settings=Config(), env={}, host=str(home))
    parts: dict[str, object] = {
        "roots": roots_of(home), "discovery": HostError("x"), "session": None, "nvml": None,
        "readiness": (), "log": Log(), "statuses": [], "registry": Registry(),
        "ask": lambda *_: None,
    }  # fmt: skip
    vars(node).update({**parts, **given})
    return node


def write(home: Path, path: str, text: str = "") -> Path:
    target = home / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def listening(home: Path, path: str, *, alive: bool) -> list[socket.socket]:
    """Bind a socket; it is closed, and its file left, unless it is alive."""
    target = home / path
    target.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    here = os.open(target.parent, os.O_PATH)
    server.bind(f"/proc/self/fd/{here}/{target.name}")  # a socket's path has at most 107 bytes
    os.close(here)
    if alive:
        server.listen()
        return [server]
    server.close()
    return []


def said(text: str, *, age_s: float = 60) -> Log:
    time_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age_s) * 1e6)
    return Log([Message(level=3, facility=0, sequence=1, time_us=time_us, text=text)])


def xid(number: int) -> str:
    return f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1234, words"


def gpu_on_the_bus(home: Path) -> None:
    write(home, f"sys/bus/pci/devices/{BUS}/vendor", "0x10de\n")
    write(home, f"sys/bus/pci/devices/{BUS}/class", "0x030200\n")


def nvml_gpu(**more: object) -> MigState:
    values: dict[str, object] = {
        "bus_id": BUS, "minor": 0, "device": 0, "subsystem": 0, "capable": False, "index": 0,
        "pending": False, "uuid": UUID, "name": "H100",
    }  # fmt: skip
    return MigState(gpus=(MigGpu(**{**values, **more}),))  # type: ignore[arg-type]


def health(home: Path, log: Log | None = None, *, listed: bool = True, **values: float) -> Part:
    write(home, f"proc/driver/nvidia/gpus/{BUS}/information")
    condition = GpuCondition(uuid=UUID, values=values)
    state = nvml_gpu() if listed else MigState(gpus=())
    reported = NvmlConditions(gpus=(condition,))
    return gpu_health.check(node_of(home, nvml=state, ask=lambda *_: reported, log=log or Log()))


def a_gpu_off_the_bus(home: Path, broken: bool) -> Part:
    return health(home, said(xid(79)) if broken else said(xid(14)))


def a_gpu_that_asks_for_a_reset(home: Path, broken: bool) -> Part:
    return health(home, recovery_action=1.0 if broken else 0.0)


def a_gpu_that_nvml_does_not_list(home: Path, broken: bool) -> Part:
    return health(home, listed=not broken)


def a_gpu_without_its_node(home: Path, broken: bool) -> Part:
    write(home, f"proc/driver/nvidia/gpus/{BUS}/information", "Device Minor: \t 0\n")
    if not broken:
        write(home, "dev/nvidia0")
    conditions = NvmlConditions(gpus=(GpuCondition(uuid=UUID, values={}),))
    state = MigState(gpus=()) if broken else nvml_gpu()
    return gpu_health.check(node_of(home, nvml=state, ask=lambda *_: conditions))


AVC = (
    "audit: type=1400 audit(1684465329.146:35): avc:  denied  { map } for  pid=3"
    ' comm="python" path="/dev/nvidia0" scontext=system_u:system_r:container_t:s0'
    " tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0"
)


def a_node_that_selinux_denies(home: Path, broken: bool) -> Part:
    write(home, "sys/fs/selinux/enforce", "1")
    write(home, "sys/fs/selinux/booleans/container_use_devices", "1 1")
    text = AVC if broken else AVC.replace("nvidia0", "sda").replace("xserver_misc", "disk")
    return security.selinux(node_of(home, log=said(text)))


def a_module_of_another_kernel(home: Path, broken: bool) -> Part:
    gpu_on_the_bus(home)
    if broken:
        dep = "updates/dkms/nvidia-modeset.ko.zst: x\nupdates/dkms/nvidia.ko.zst:\n"
        write(home, "lib/modules/6.8.0-48-generic/modules.dep", dep)
        write(home, f"lib/modules/{RELEASE}/modules.dep", "kernel/x/nvidiafb.ko:\n")
    else:
        write(home, "sys/module/nvidia/version", "580.159.04\n")
    return hardware.check_kernel_module(node_of(home), RELEASE)


def a_module_that_is_not_signed(home: Path, broken: bool) -> Part:
    gpu_on_the_bus(home)
    if not broken:
        write(home, "sys/module/nvidia/version", "580.159.04\n")
    log = said("Loading of module with unavailable key is rejected")
    return hardware.check_kernel_module(node_of(home, log=log), RELEASE)


def with_specs(home: Path, folder: Path, **given: object) -> Node:
    """Return a node whose CDI specifications are in a folder."""
    settings = Config(spec_dirs=[str(folder)])
    return node_of(home, settings=settings, registry=registry.scan([str(folder)]), **given)


def an_old_engine(home: Path, broken: bool) -> Part:
    gpu: dict[str, object] = {"containerEdits": {"additionalGids": [44], "env": ["A=1"]}}
    document = {
        "cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", **gpu}],
    }  # fmt: skip
    folder = write(home, "cdi/nvidia.json", json.dumps(document)).parent
    engine = Engine(engine="docker", version="25.0.3" if broken else "28.5.2")
    state = State(handlers={}, spec_dirs=(str(folder),))
    status = Status(engine=engine, state=state)
    return parts.versions_of(with_specs(home, folder, statuses=[status]))


def an_old_toolkit(home: Path, broken: bool) -> Part:
    version = "1.17.4" if broken else "1.17.8"
    write(home, f"usr/lib/x86_64-linux-gnu/libnvidia-container.so.{version}")
    package = "Package: nvidia-container-toolkit\nStatus: install ok installed\nPriority: x\n"
    write(home, "var/lib/dpkg/status", f"{package}Version: {version}-1\n\nPackage: z\n")
    return incumbent.check(node_of(home))


def a_hook_of_a_toolkit_that_is_gone(home: Path, broken: bool) -> Part:
    program = "/usr/bin/nvidia-container-runtime-hook"
    hook = json.dumps({"version": "1.0.0", "hook": {"path": program}})
    write(home, "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", hook)
    if not broken:
        write(home, program[1:])
    return incumbent.check(node_of(home))


def an_open_capability(home: Path, broken: bool) -> Part:
    write(home, "proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n")
    node = write(home, "dev/nvidia-caps/nvidia-cap1")
    node.chmod(0o444 if broken else 0o400)
    return security.management(node_of(home))


def with_images(home: Path, settings: Config | None = None, *, is_default: bool = True) -> Node:
    """Return a node with an engine whose default runtime may be NVIDIA's."""
    state = State(handlers={}, default="nvidia" if is_default else "runc")
    status = Status(engine=Engine(engine="docker"), state=state, registered=("nvidia",))
    return node_of(home, settings=settings or Config(), statuses=[status])


def an_image_that_asks_for_all(home: Path, broken: bool) -> Part:
    config = json.dumps({"config": {"Env": ["PATH=/bin", security.ASKS]}})
    folder = "var/lib/docker/image/overlay2"
    write(home, f"{folder}/imagedb/content/sha256/{ID}", config)
    tags = {"Repositories": {"nvidia/cuda": {"nvidia/cuda:12.4-base": f"sha256:{ID}"}}}
    write(home, f"{folder}/repositories.json", json.dumps(tags))
    settings = Config(accept_envvar_when_unprivileged=broken)
    return security.images_ask_for_all(with_images(home, settings))


def an_image_of_podman(home: Path, broken: bool) -> Part:
    folder = "var/lib/containers/storage/overlay-images"
    listed = [{"id": ID, "names": ["quay.io/me/train:1"]}]
    write(home, f"{folder}/images.json", json.dumps(listed))
    key = base64.b64encode(f"sha256:{ID}".encode()).decode()
    write(home, f"{folder}/{ID}/={key}", json.dumps({"config": {"Env": [security.ASKS]}}))
    return security.images_ask_for_all(with_images(home, is_default=broken))


def a_scope_without_the_gpu(home: Path, broken: bool) -> Part:
    scope = f"docker-{ID}.scope"
    allowed = "" if broken else "DeviceAllow=/dev/char/195:0 rw\n"
    unit = f"[Scope]\nDevicePolicy=strict\nDeviceAllow=\nDeviceAllow=/dev/null rwm\n{allowed}"
    write(home, f"run/systemd/transient/{scope}", unit)
    write(home, "proc/4117/cgroup", f"0::/system.slice/{scope}\n")
    write(home, "proc/4117/root/dev/nvidia0")
    return inside.systemd_reload(node_of(home))


def node_of_kubernetes(home: Path, registered: list[str]) -> list[Status]:
    write(home, "proc/77/comm", "kubelet\n")
    data = {
        "Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": registered}}
    }
    write(home, f"{kubelet.FOLDERS[0]}/{kubelet.CHECKPOINT}", json.dumps(data))
    return [Status(engine=Engine(engine="containerd"), registered=("nvidia",))]


def of_kubernetes(home: Path, gpus: int, statuses: list[Status], **given: object) -> Node:
    """Return a node with as many GPUs."""
    state = MigState(gpus=nvml_gpu().gpus * gpus)
    return node_of(home, nvml=state, statuses=statuses, **given)


def a_plugin_that_is_not_registered(home: Path, broken: bool) -> Part:
    statuses = node_of_kubernetes(home, [] if broken else [UUID])
    path = f"{kubelet.FOLDERS[0]}/device-plugins/nvidia-gpu.sock"
    opened = listening(home, path, alive=not broken)
    part = kubelet.check(of_kubernetes(home, 1, statuses))
    for server in opened:
        server.close()
    return part


def a_gpu_that_the_kubelet_lacks(home: Path, broken: bool) -> Part:
    statuses = node_of_kubernetes(home, [UUID])
    return kubelet.check(of_kubernetes(home, 2 if broken else 1, statuses))


def gpu_of(minor: int, uuid: str) -> Gpu:
    node = DeviceNode(
        path=f"/dev/nvidia{minor}", host_path=f"/dev/nvidia{minor}", major=195, minor=minor,
        mode=0o666, uid=0, gid=0, reason="",
    )  # fmt: skip
    return Gpu(index=minor, minor=minor, uuid=uuid, bus_id="", model="", node=node)


def a_pod_without_its_gpu(home: Path, broken: bool) -> Part:
    return pod_with(home, [] if broken else ["nvidia0"])


def pod_with(home: Path, nodes: Sequence[str], capabilities: str = "0") -> Part:
    """Check a node of two GPUs, where a pod was given the first one, and has some nodes."""
    statuses = node_of_kubernetes(home, [UUID, OTHER])
    given = Given(devices=[f"{UUID}::3"]).entry()
    path = home / kubelet.FOLDERS[0] / kubelet.CHECKPOINT
    document = json.loads(path.read_text())
    document["Data"]["PodDeviceEntries"] = [given]
    path.write_text(json.dumps(document))
    write(home, f"var/log/containers/train_ml_{CONTAINER}-{ID}.log")
    for pid in (4117, 4118):
        write(home, f"proc/{pid}/cgroup", f"1:devices:/kubepods/pod{UID}/{ID}\n0::/\n")
        write(home, f"proc/{pid}/status", f"Name:\tx\nCapEff:\t{capabilities}\n")
        write(home, f"proc/{pid}/root/dev/null")
        for name in nodes:
            write(home, f"proc/{pid}/root/dev/{name}")
    gpus = tuple(gpu_of(minor, uuid) for minor, uuid in enumerate((UUID, OTHER)))
    inventory = Inventory(driver_version="1", gpus=gpus)
    return kubelet.check(of_kubernetes(home, 2, statuses, discovery=inventory))


def a_kubelet_that_has_ended(home: Path, broken: bool) -> Part:
    statuses = node_of_kubernetes(home, [UUID])
    if broken:
        write(home, "proc/77/comm", "systemd\n")
    return kubelet.check(of_kubernetes(home, 1, statuses))


def pods_in_init(home: Path, broken: bool) -> Part:
    statuses = node_of_kubernetes(home, [UUID])
    write(home, f"{kubelet.VALIDATIONS}/driver-ready")
    if not broken:
        write(home, f"{kubelet.VALIDATIONS}/toolkit-ready")
    return kubelet.check(of_kubernetes(home, 1, statuses))


def a_container_without_a_gpu(home: Path, broken: bool) -> Part:
    write(home, ".dockerenv")
    (home / "dev").mkdir()
    if not broken:
        write(home, "dev/nvidia0")
        write(home, "usr/lib64/libcuda.so.1")
    return inside.check(node_of(home, env={"NVIDIA_VISIBLE_DEVICES": "all"}))


def completed(text: str, status: int = 0) -> Completed:
    return Completed(status=status, out=text)


def switches(home: Path, *, manager: bool = True, **given: object) -> Node:
    write(home, "proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information")
    write(home, "proc/1/comm", "systemd\n")
    write(home, "sys/module/nvidia/version", "580.159.04\n")
    if manager:
        write(home, "proc/900/comm", "nv-fabricmanage\n")
    return node_of(home, **given)


def readiness(**values: object) -> tuple[GpuReadiness, ...]:
    return (GpuReadiness(bus_id="00000000:18:00.0", **values),)  # type: ignore[arg-type]


def switches_without_a_manager(home: Path, broken: bool) -> Part:
    return hardware.fabric(switches(home, manager=not broken))


def a_manager_of_another_release(home: Path, broken: bool) -> Part:
    node = switches(home)
    program = write(home, "bin/nv-fabricmanager")
    program.chmod(0o755)
    (home / "proc/900/root").symlink_to("/")
    release = "570.1.1" if broken else "580.159.04"
    return hardware.fabric(
        node, lambda *_: completed(f"Fabric Manager version is : {release}\n"),
        (str(program.parent),),
    )  # fmt: skip


def a_gpu_that_waits_for_the_fabric(home: Path, broken: bool) -> Part:
    return hardware.fabric(
        switches(home, readiness=readiness(fabric=2 if broken else 3)), no_program, ()
    )


def a_fabric_that_failed(home: Path, broken: bool) -> Part:
    state = readiness(fabric=3, fabric_status=999 if broken else 0)
    return hardware.fabric(node_of(home, readiness=state), no_program, ())


def no_program(*_words: object) -> Completed:
    return completed("", 127)


def started(home: Path, state: tuple[GpuReadiness, ...], first_s: float | None) -> Node:
    """Return a node whose NVML took some seconds for its first answer."""
    return node_of(home, readiness=state, session=SimpleNamespace(first_answer_s=first_s))


def gpus_that_are_started_by_each_user(home: Path, broken: bool) -> Part:
    write(home, "sys/module/nvidia/version", "580.159.04\n")
    return hardware.persistence(started(home, readiness(persistence=not broken), 3.4))


def a_node_that_apparmor_denies(home: Path, broken: bool) -> Part:
    write(home, "sys/module/apparmor/parameters/enabled", "Y\n")
    node = "/dev/nvidiactl" if broken else "/etc/shadow"
    return security.apparmor(node_of(home, log=said(apparmor_line(node))))


def apparmor_line(node: str, word: str = "DENIED") -> str:
    return (
        f'audit: type=1400 audit(1700000000.123:45): apparmor="{word}" operation="open" '
        f'class="file" profile="docker-default" name="{node}" pid=4117 comm="nvidia-smi" '
        'requested_mask="wr" denied_mask="wr" fsuid=0 ouid=0'
    )


def container_in_a_namespace(home: Path, mode: int, groups: str = "") -> None:
    """Make a process in a user namespace that has the node of a GPU."""
    for pid, namespace in (("self", "user:[1]"), ("4117", "user:[2]")):
        folder = home / "proc" / pid / "ns"
        folder.mkdir(parents=True)
        (folder / "user").symlink_to(namespace)
    write(home, "proc/self/uid_map", "0 0 4294967295\n")
    for name in ("uid_map", "gid_map"):
        write(home, f"proc/4117/{name}", "0 100000 65536\n")
    ids = "\t".join(["100000"] * 4)
    write(home, "proc/4117/status", f"Uid:\t{ids}\nGid:\t{ids}\nGroups:\t{groups} \n")
    write(home, "proc/4117/root/dev/nvidia0").chmod(mode)
    write(home, "dev/nvidiactl").chmod(0o666)


def with_container(home: Path, name: str, engine: str = "docker") -> Node:
    """Return a node all of whose processes are in a container."""
    containers = SimpleNamespace(name_of_process=lambda _pid: name)
    return node_of(home, containers=containers, engines=[Engine(engine=engine)])


def a_container_whose_user_may_not_open_its_gpu(home: Path, broken: bool) -> Part:
    container_in_a_namespace(home, 0o660 if broken else 0o666)
    return user_namespaces.check(with_container(home, "train"), None)


def a_user_without_subordinate_ids(home: Path, broken: bool) -> Part:
    name = "you" if broken else "me"
    for file in ("subuid", "subgid"):
        write(home, f"etc/{file}", f"{name}:100000:65536\n")
    write(home, "dev/nvidiactl").chmod(0o666)
    user = user_namespaces.User(uid=1000, name="me", runs_containers=True)
    return user_namespaces.check(with_container(home, "", "podman"), user)


def a_user_outside_of_the_nodes_group(home: Path, broken: bool) -> Part:
    node = write(home, "dev/nvidiactl")
    node.chmod(0o660)
    owner, group = node.stat().st_uid, node.stat().st_gid
    user = user_namespaces.User(uid=owner + 1000, groups=frozenset(() if broken else (group,)))
    return user_namespaces.check(with_container(home, ""), user)


def inotify_instances(home: Path, used: int, limit: int) -> None:
    write(home, "proc/sys/fs/inotify/max_user_instances", f"{limit}\n")
    write(home, "proc/sys/fs/inotify/max_user_watches", "100000\n")
    (home / "proc/7/fd").mkdir(parents=True)
    for number in range(used):
        (home / f"proc/7/fd/{number}").symlink_to("anon_inode:inotify")
    write(home, "proc/7/fdinfo/0", "pos:\t0\ninotify wd:1 ino:2\ninotify wd:2 ino:3\n")


def inotify_that_is_used_up(home: Path, broken: bool) -> Part:
    inotify_instances(home, 125 if broken else 25, 128)
    return kubelet.watches(node_of(home), uid=os.geteuid())


BUILDERS: dict[str, tuple[str, Builder, str]] = {
    builder.__name__: (reason, builder, evidence)
    for reason, builder, evidence in (
        ("DeviceUnhealthy", a_gpu_off_the_bus, "GPU 0000:18:00: XID 79"),
        (
            "DeviceUnhealthy",
            a_gpu_that_asks_for_a_reset,
            f"GPU {BUS}: the driver asks for a reset",
        ),
        ("DeviceUnhealthy", a_gpu_that_nvml_does_not_list, f"the driver has GPU {BUS}, but NVML"),
        ("DeviceNodesMissing", a_gpu_without_its_node, "does not exist, and NVML does not list"),
        ("SelinuxDenies", a_node_that_selinux_denies, "denied  { map }"),
        ("DriverNotLoaded", a_module_of_another_kernel, "there is one for 6.8.0-48-generic"),
        ("DriverNotLoaded", a_module_that_is_not_signed, "unavailable key is rejected"),
        ("SpecificationTooNew", an_old_engine, "Docker 25.0.3 will refuse it: 0.7.0"),
        ("ToolkitVulnerable", an_old_toolkit, "1.17.4, which has CVE-2025-23266"),
        ("HookMissing", a_hook_of_a_toolkit_that_is_gone, "oci-nvidia-hook.json names /usr/bin/"),
        ("ManagementWithinReach", an_open_capability, "has mode 0444"),
        ("ImagesAskForAll", an_image_that_asks_for_all, "nvidia/cuda:12.4-base"),
        ("ImagesAskForAll", an_image_of_podman, "quay.io/me/train:1"),
        ("FabricManagerNotRunning", switches_without_a_manager, "1 NVSwitch, but no process"),
        ("FabricManagerOtherRelease", a_manager_of_another_release, "has release 570.1.1, but"),
        ("FabricNotReady", a_gpu_that_waits_for_the_fabric, f"GPU {BUS}: the fabric is In Prog"),
        ("FabricNotReady", a_fabric_that_failed, "the fabric is Completed with the error 999"),
        ("PersistenceOff", gpus_that_are_started_by_each_user, "first answer took 3.4 s"),
        (
            "AppArmorDenies",
            a_node_that_apparmor_denies,
            "profile docker-default of AppArmor denies /dev/nvidiactl to nvidia-smi",
        ),
        (
            "UserNamespaceDenies",
            a_container_whose_user_may_not_open_its_gpu,
            "container train runs in a user namespace, and cannot open /dev/nvidia0: mode 0660",
        ),
        ("SubordinateIdsMissing", a_user_without_subordinate_ids, "no line for user me (1000)"),
        ("DeviceNodesRestricted", a_user_outside_of_the_nodes_group, "00 cannot open "),
        ("InotifyExhausted", inotify_that_is_used_up, "have 125 of 128 inotify instances"),
        ("GpuLostAtReload", a_scope_without_the_gpu, f"container {ID[:12]} has a GPU"),
        ("ResourceNotListed", a_plugin_that_is_not_registered, "nothing listens on"),
        ("DeviceUnhealthy", a_gpu_that_the_kubelet_lacks, "1 device for 2 GPUs"),
        ("KubeletNotRunning", a_kubelet_that_has_ended, "no kubelet runs"),
        (
            "PodDevicesDiffer",
            a_pod_without_its_gpu,
            f"{UUID} to ml/train/main, which lacks nvidia0",
        ),
        ("PodsWaitInInit", pods_in_init, "has no toolkit-ready"),
        ("ContainerWithoutDriver", a_container_without_a_gpu, "is all, but /dev has no GPU"),
    )
}
