# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-container-cli configure: GPUs for a container that has not started yet.

With --pid it enters the namespaces of that process, with the code of the prestart hook. Without
--pid, or if those namespaces are its own, it changes ROOTFS in its own mount namespace: enroot
and Apptainer call it so. It uses the shim's plans. Contract: it changes nothing in the mount
namespace of the host.
"""

from __future__ import annotations

import fnmatch
import os
import posix
from collections.abc import Callable, Mapping
from contextlib import closing

from nvct.cli.container.arguments import Option, Parsed, bus_id
from nvct.cli.container.list_files import FABRICMANAGER, PERSISTENCED
from nvct.cli.container.process import Process
from nvct.config.model import DRIVER_CAPABILITIES, Config
from nvct.container.decide import decide
from nvct.container.host import Host
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.prestart import device_filter, rules
from nvct.container.prestart.container import Container, is_rootless
from nvct.container.prestart.container import Process as Opened
from nvct.container.prestart.deliver import deliver
from nvct.container.request import visible_devices
from nvct.container.request.free import want_of
from nvct.container.request.model import Request
from nvct.errors import HostError, OSErrorsAs, RequestError, UsageError
from nvct.host import procfs
from nvct.host.roots import Roots
from nvct.launcher import cold
from nvct.linux import mountinfo
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root
from nvct.oci.bundle import Bundle

Warn = Callable[[str], None]

ARGUMENTS = " ROOTFS"
TEXT = (
    "Give a container that is created, but not started, what it needs of the driver. ROOTFS is "
    "the path of its root in the mount namespace of PID or of this program."
)
OPTIONS = (
    Option("pid", "p", "PID", "The container's process (default: this program's parent)"),
    Option("device", "d", "ID", "GPUs: all, indexes, UUIDs, PCI bus ids, G:M, free:N"),
    Option("require", "r", "EXPR", "Condition on driver and GPUs, e.g. cuda>=12.4"),
    Option("ldconfig", "l", "PATH", "No effect: nvct writes the linker's cache itself"),
    Option("compute", "c", "", "Capability compute: CUDA and OpenCL"),
    Option("utility", "u", "", "Capability utility: nvidia-smi and NVML"),
    Option("video", "v", "", "Capability video: encoder and decoder"),
    Option("graphics", "g", "", "Capability graphics: OpenGL and Vulkan"),
    Option("display", "D", "", "Capability display: graphics with a screen"),
    Option("ngx", "", "", "Capability ngx"),
    Option("compat32", "", "", "32-bit libraries of these"),
    Option("mig-config", "", "ID", "Files for configuring MIG (ID: all)"),
    Option("mig-monitor", "", "ID", "Files for monitoring MIG (ID: all)"),
    Option("imex-channel", "", "CHANNEL", "IMEX channels"),
    Option("no-cgroups", "", "", "No device rules"),
    Option("no-devbind", "", "", "No device nodes"),
    Option("no-cntlibs", "", "", "No CUDA compatibility libraries of the image"),
    Option("no-persistenced", "", "", "No socket of nvidia-persistenced"),
    Option("no-fabricmanager", "", "", "No socket of nv-fabricmanager"),
    Option("no-gsp-firmware", "", "", "No firmware"),
    Option("cuda-compat-mode", "", "MODE", "The image's CUDA compatibility libraries: disabled, "
           "or ldconfig to use those newer than the driver (mount means the same)"),
)  # fmt: skip
COMPAT_MODES = ("disabled", "ldconfig", "mount")
DEVICES = "device error: --device"
EXCLUDED = {
    "no-persistenced": f"*/{PERSISTENCED}",
    "no-fabricmanager": f"*/{FABRICMANAGER}",
    "no-gsp-firmware": "*/gsp*.bin",
}
"""Options, and patterns of the container paths that each leaves out."""


class LocalContainer(Container):
    """A container in the mount namespace of this process."""

    __slots__ = ()

    def __init__(self, pid: int, rootfs: str) -> None:
        self.pid = pid
        self.rootfs = rootfs
        self.process = Opened("self")
        self._mount_fd = self._user_fd = -1
        # Bind nodes, as in a user namespace, because /dev may be mounted nodev.
        self.userns = True

    def enter(self, kernel: Kernel) -> Root:
        """Return the container's root; HostError if the root does not exist."""
        del kernel
        root = Root.open(self.rootfs)
        root.label = "the container"
        return root


def _refuse_shared(pid: str, rootfs: str, proc: str) -> None:
    """Raise HostError if the root has shared mounts, because new ones would propagate."""
    with open(f"{proc}/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = mountinfo.parse(file.read())
    containing = [m for m in mounts if f"{rootfs}/".startswith(m.target.rstrip("/") + "/")]
    top = max(reversed(containing), key=lambda m: len(m.target), default=None)
    for mount in mounts:
        is_inside = mount.target.startswith(f"{rootfs}/")
        if (is_inside or mount is top) and any(tag.startswith("shared:") for tag in mount.tags):
            raise HostError(
                f"{mount.target} is shared with other mount namespaces, which would be changed",
                hint="mount --make-rprivate / in this one",
            )


def _mount_namespace(proc: str, pid: str) -> tuple[int, int] | None:
    try:
        status = posix.stat(f"{proc}/{pid}/ns/mnt")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def run(
    options: Parsed, settings: Config, roots: Roots, env: Mapping[str, str], warn: Warn
) -> None:
    """Configure a container; NvctError if it cannot get the requested devices or files."""
    rootfs = _rootfs(options)
    pid = _pid(options)
    request = request_of(options, roots)
    settings = settings.replaced(cuda_compat_mode=compat_mode(options))
    standalone = not options.has("pid")
    bundle = Bundle("no config.json", "{}")
    with closing(Process(pid)) as process:
        if request.free is not None and not process.number:
            raise UsageError(f"{DEVICES} {request.free.word} needs the container's --pid")
        store = Store(run_dir(env), create=True)
        try:
            host = Host(store, dict(env), cold.interpreter())
            host.keeper = process.number
            decision = decide(bundle, settings, host, request=request)
        finally:
            store.close()
        if decision.error is not None:
            raise decision.error
        for note in request.notes:
            warn(note)
        container = container_of(process.number, rootfs, standalone=standalone)
        try:
            process.check()
            if not (options.has("no-cgroups") or settings.cli_no_cgroups):
                allow(decision.edits, container, dict(env), warn, standalone=standalone)
            delivery_settings = settings.replaced(cli_no_cgroups=True)
            edits = adapted(decision.edits, options)
            deliver(container, bundle, delivery_settings, dict(env), edits, warn=warn)
        finally:
            container.close()


def _rootfs(options: Parsed) -> str:
    if len(options.arguments) != 1:
        raise UsageError(
            f"configure takes one folder, not {len(options.arguments)}", hint="name ROOTFS"
        )
    rootfs = options.arguments[0]
    if not rootfs.startswith("/") or os.path.normpath(rootfs).strip("/") == "":
        raise UsageError(f"the root {rootfs!r} is not an absolute path below /")
    return rootfs


def _pid(options: Parsed) -> int:
    text = options.text("pid")
    if not options.has("pid"):
        return posix.getppid()
    if not (text.isascii() and text.isdigit() and 1 < int(text) < 1 << 31):
        raise UsageError(f"--pid {text!r} is not a container's process")
    return int(text)


def container_of(pid: int, rootfs: str, *, standalone: bool, proc: str = "/proc") -> Container:
    """Return the container that a process belongs to.

    HostError if the process has ended, or mounts would appear on the host. `pid` is the process's
    number in /proc, 0 for a parent outside this PID namespace. `standalone` means that the command
    line has no --pid: the process is the parent of this one.
    """
    container_namespace = _mount_namespace(proc, str(pid))
    own_namespace = _mount_namespace(proc, "self")
    is_local = container_namespace == own_namespace or (standalone and container_namespace is None)
    host = _mount_namespace(proc, "1")
    if host is not None and (own_namespace if is_local else container_namespace) == host:
        raise HostError(
            f"process {pid} has the host's mount namespace, which configure never changes",
            hint="run it in a shell of unshare --mount, or name a container with --pid",
        )
    if standalone and not is_rootless(proc):  # mounts of a user namespace never reach the host
        _refuse_shared("self" if is_local else str(pid), os.path.realpath(rootfs), proc)
    return LocalContainer(pid, rootfs) if is_local else Container(pid, rootfs, proc)


def request_of(options: Parsed, roots: Roots) -> Request:
    """Return the command line as a request.

    RequestError if a device or channel is not valid; UsageError if an option's value is not valid.
    """
    words = options.words("device")
    free = want_of(words, DEVICES)
    names = [] if free else [device_name(word, roots) for word in words]
    if "all" in names:
        names = ["all"]  # the other words are not read
    ids = visible_devices.evaluate(names, DEVICES) if names else []
    if ids is None:
        raise RequestError(f"{DEVICES} is void", hint="leave the option out for no device")
    request = Request([free.word] if free else ids, "--device")
    request.free = free
    if request.qualified:
        raise RequestError(f"{DEVICES}: {ids[0]} is a CDI device", hint="name a GPU")
    request.mode = "legacy"
    request.capabilities = [name for name in DRIVER_CAPABILITIES if options.has(name)]
    request.requirements = [("--require", text) for text in options.texts("require")]
    request.extras.imex = _channels(options)
    request.extras.mig_config = _is_all(options, "mig-config")
    request.extras.mig_monitor = _is_all(options, "mig-monitor")
    mode = options.text("cuda-compat-mode")
    if options.has("cuda-compat-mode") and mode not in COMPAT_MODES:
        raise UsageError(f"--cuda-compat-mode {mode!r} is none of {', '.join(COMPAT_MODES)}")
    return request


def device_name(word: str, roots: Roots) -> str:
    """Return a device's name in plans; names in any case and PCI bus ids are accepted."""
    if word.lower() == "all":
        return "all"
    kind, dash, uuid = word.partition("-")
    if dash and kind.upper() in ("GPU", "MIG"):
        return f"{kind.upper()}-{uuid.lower()}" if "GPU-" not in uuid.upper() else word
    bus = bus_id(word)
    for gpu in procfs.gpus(roots) if bus else ():
        if bus_id(gpu.bus_id) == bus and gpu.uuid:
            return gpu.uuid
    return word


def _channels(options: Parsed) -> list[int]:
    numbers = options.words("imex-channel")
    for word in numbers:
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise RequestError(f"--imex-channel: {word!r} is not a channel number")
    return list(dict.fromkeys(map(int, numbers)))


def _is_all(options: Parsed, name: str) -> bool:
    values = {word.lower() for word in options.words(name)}
    if values - {"all"}:
        raise RequestError(f"--{name} accepts only 'all'", hint=f"write --{name}=all")
    return bool(values)


def adapted(edits: list[model.Edits], options: Parsed) -> list[model.Edits]:
    """Return edits without the nodes and mounts that --no-* options exclude."""
    ends = [end for name, end in EXCLUDED.items() if options.has(name)]
    result = []
    for part in edits:
        changed: model.Edits = {**part}
        changed["mounts"] = [
            mount for mount in part["mounts"]
            if not any(fnmatch.fnmatchcase(mount[0], end) for end in ends)
        ]  # fmt: skip
        if options.has("no-devbind"):
            changed["nodes"] = []
        result.append(changed)
    return result


def compat_mode(options: Parsed) -> str:
    """Return this program's cuda-compat-mode; that of config.toml is for the hook."""
    return "disabled" if options.has("no-cntlibs") else options.text("cuda-compat-mode") or "mount"


def allow(
    edits: list[model.Edits],
    container: Container,
    env: dict[str, str],
    warn: Warn,
    *,
    standalone: bool,
) -> None:
    """Allow a container's devices in its cgroup, if the cgroup restricts devices.

    HostError if the cgroup restricts devices and no --pid was given, or the kernel refuses or does
    not show the rules.
    """
    texts = [node["rule"] for part in edits for node in part["nodes"] if node["rule"]]
    if not texts or is_rootless():
        return
    cgroup = rules.find(container.pid, process=container.process)
    if cgroup.path == "/" or not _is_restricted(cgroup):
        return
    if standalone:
        raise HostError(
            f"the devices of cgroup {cgroup.path} are restricted, which needs --pid",
            hint="add --no-cgroups, or use nvidia-container-runtime-hook",
        )
    rules.allow(texts, container.pid, None, env=env, warn=warn, process=container.process)


def _is_restricted(cgroup: rules.Cgroup) -> bool:
    with OSErrorsAs(
        HostError, f"the device rules of {cgroup.folder} cannot be read", hint="add --no-cgroups"
    ):
        if not cgroup.unified:
            with open(f"{cgroup.folder}/devices.list", encoding="ascii") as file:
                return not file.read(2).startswith("a")
        return any(_programs(folder) for folder in cgroup.folders())


def _programs(folder: str) -> list[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return device_filter.query(fd)[1]
    finally:
        os.close(fd)
