# SPDX-License-Identifier: Apache-2.0
"""Makes a simulated node look real to the processes of one private mount namespace.

Nothing on the host changes. All mounts are in the private namespace and disappear with its last
process, like all files written to its /etc, /run and /dev. These paths are covered:

- /proc/driver, /proc/devices, /proc/modules, PCI devices and drivers, IOMMU groups and modules in
  /sys: the node's entries beside the host's;
- /dev: a private one with the usual nodes, the host's terminals and the node's devices;
- /run: a private one with the host's entries, so that sockets keep working, except those of the
  host's engines, whose containers would not see the node;
- /etc: the host's with the node's on top, with private writes; config.toml is the node's own;
- the driver: at /run/nvidia/driver, where an upgrade is visible, or on top of / itself, where a
  process keeps the version that it started with.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvct import paths
from nvct.errors import HostError, OSErrorsAs, UsageError
from nvct.linux import constants as c
from nvct.linux import ldcache, mountinfo
from nvct.linux.kernel import KERNEL
from nvct_sim import kernelfs, package, run_folder, sysfs, tree
from nvct_sim.process import spawn
from nvct_sim.tree import Node

DRIVER_ROOT = "/run/nvidia/driver"
DEV_ENTRIES = (
    "null", "zero", "full", "random", "urandom", "tty", "ptmx", "kmsg", "fuse", "net/tun",
    "fd", "stdin", "stdout", "stderr", "core",
)  # fmt: skip
DEV_MOUNTS = ("pts", "shm", "mqueue", "hugepages")
OWN_RUN = ("nvct", "cdi", "nvidia", run_folder.NAME)
"""Entries of the host's /run that are hidden: they belong to another node."""
ENGINES_RUN = ("containerd", "crio", "docker", "docker.pid", "docker.sock")
"""Same, of engines: an engine started on the node would take these for its own."""
CONFIG = "# Of a simulated node.\n[nvct]\nfarm-dir = {farm}\n"
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
OVERLAID_SYS = ("bus/pci/devices", "bus/pci/drivers", "kernel/iommu_groups", "module")


def farm_dir(driver_root: str = DRIVER_ROOT) -> str:
    """Return the folder inside the node for views of the node's driver.

    The folder is beside the driver's files, so that views can hard-link them and disappear with
    the node. A node never uses the host's own farm.
    """
    return f"{driver_root}/var/lib/nvct/farm" if driver_root != "/" else "/run/nvct-farm"


class _Attachment:
    """Attaches a node in steps, which leave their mounts in place for the next step."""

    __slots__ = ("_driver_root", "_node", "_stage", "_state", "_user_space")

    def __init__(self, node: Node, driver_root: str) -> None:
        self._node = node
        self._driver_root = driver_root
        self._stage = node.tree / "mnt"
        self._state = node.state()
        # An overlay shows only part of the changes in its layers, so this layer must not change.
        self._user_space = tree.frozen(node) if driver_root == "/" else node.driver_root

    def run(self, *, host_run: bool) -> None:
        self._tmpfs(self._stage)
        self._proc()
        self._sys()
        self._etc()
        if self._driver_root == "/":
            self._lay_over("/usr", [str(self._user_space / "usr")])
        self._run(host_run=host_run)
        self._dev()
        self._driver()
        # Mounts made from the stage stay; only the stage itself is detached.
        KERNEL.umount2(str(self._stage), c.MNT_DETACH)

    def _tmpfs(self, target: Path) -> None:
        target.mkdir(exist_ok=True)
        KERNEL.mount("nvct-sim", str(target), "tmpfs", 0, "mode=755")

    def _bind(self, source: str | Path, target: str | Path) -> None:
        KERNEL.mount(str(source), str(target), None, c.MS_BIND | c.MS_REC)

    def _overlay(self, target: str, lower: Sequence[str], upper: Path | None = None) -> None:
        if any(set(path) & set(":,\\") for path in lower):
            raise UsageError(
                f"cannot attach a node in {self._node.tree}", hint="use a path without : , and \\"
            )
        options = f"lowerdir={':'.join(lower)}"
        if upper is not None:
            work = upper.with_name(upper.name + ".work")
            upper.mkdir()
            work.mkdir()
            options += f",upperdir={upper},workdir={work}"
        KERNEL.mount("nvct-sim", target, "overlay", 0, options)

    def _proc(self) -> None:
        if "/proc/devices" in _mounts_below("/proc"):
            raise HostError(
                "this process is on a simulated node already", hint="leave that node first"
            )
        host = Path("/proc/devices").read_text()
        majors = self._state.find("major")[0].fields
        names = kernelfs.host_majors(host)
        for name, major in majors.items():
            if int(major) in names:
                raise HostError(
                    f"major {major} of {name} now belongs to {names[int(major)]} on this host",
                    hint="destroy the node and create it again",
                )
        text = kernelfs.devices(host, {name: int(major) for name, major in majors.items()})
        self._bind_text("/proc/devices", text)
        modules = Path("/proc/modules")
        if modules.exists():  # a kernel without modules has no such file, and none can be created
            self._bind_text(str(modules), sysfs.proc_modules(modules.read_text(), self._state))
        self._bind(self._node.proc / "driver", "/proc/driver")

    def _bind_text(self, path: str, text: str) -> None:
        source = self._stage / Path(path).name
        source.write_text(text)
        source.chmod(0o444)
        self._bind(source, path)

    def _sys(self) -> None:
        for name in OVERLAID_SYS:
            if not Path("/sys", name).is_dir():  # a kernel without an IOMMU has no groups
                continue
            self._overlay(f"/sys/{name}", [str(self._node.sys / name), f"/sys/{name}"])
        for module in (self._node.sys / "module").iterdir():  # an upgrade changes these
            target = f"/sys/module/{module.name}"
            self._bind(module, target)
            KERNEL.mount(None, target, None, c.MS_BIND | c.MS_REMOUNT | c.MS_RDONLY)

    def _etc(self) -> None:
        lower = [str(self._node.etc)]
        if self._driver_root == "/":
            lower.append(str(self._driver_etc()))
        self._lay_over("/etc", lower, self._stage / "etc")
        Path("/etc/cdi").mkdir(exist_ok=True)
        self._tmpfs(Path("/etc/cdi"))
        config = Path(paths.CONFIG_FILE)
        config.parent.mkdir(exist_ok=True)
        config.write_text(CONFIG.format(farm=json.dumps(farm_dir(self._driver_root))))

    def _lay_over(self, folder: str, layers: Sequence[str], upper: Path | None = None) -> None:
        """Overlay layers on a folder of the host; the host's mounts inside the folder stay."""
        mount_points = _mounts_below(folder)  # such as /etc/resolv.conf in a container
        host = self._stage / f"host-{Path(folder).name}"
        host.mkdir()
        self._bind(folder, host)
        self._overlay(folder, [*layers, folder], upper)
        for path in mount_points:
            self._bind(host / path.removeprefix(f"{folder}/"), path)

    def _driver_etc(self) -> Path:
        """Return a folder with the driver's additions to /etc and the extended ld.so.cache."""
        folder = self._stage / "driver-etc"
        # A copy, because an overlay does not show mounts inside its layers.
        shutil.copytree(self._user_space / "etc", folder)
        host = Path("/etc/ld.so.cache")
        merged = ldcache.merge(
            host.read_bytes() if host.exists() else None,
            package.cache_entries(self._user_space, self._node.machine),
            machine=self._node.machine,
        )
        (folder / host.name).write_bytes(merged)
        return folder

    def _run(self, *, host_run: bool) -> None:
        private = self._stage / "run"
        self._tmpfs(private)
        for entry in sorted(Path("/run").iterdir()) if host_run else []:
            if entry.name not in (*OWN_RUN, *ENGINES_RUN):
                run_folder.mirror(entry, private / entry.name, self._bind)
        for name in (*OWN_RUN, "lock"):
            (private / name).mkdir(exist_ok=True)
        run_folder.fill(private / run_folder.NAME, KERNEL)
        modules = sysfs.proc_modules("", self._state)
        (private / run_folder.NAME / "modules").write_text(modules)
        (private / "nvct").chmod(0o700)
        KERNEL.mount(str(private), "/run", None, c.MS_MOVE)
        if not Path("/var/run").is_symlink():
            self._bind("/run", "/var/run")

    def _dev(self) -> None:
        private = self._stage / "dev"
        self._tmpfs(private)
        for name in DEV_ENTRIES:
            run_folder.copy_node(Path("/dev") / name, private / name, KERNEL)
        for name in DEV_MOUNTS:
            if Path("/dev", name).is_dir():
                (private / name).mkdir()
                self._bind(f"/dev/{name}", private / name)
        kernelfs.write_dev(private, self._state, tree.groups(), real=True)
        caps = self._node.dev / "nvidia-caps"
        if self._node.real_nodes and not os.statvfs(caps).f_flag & os.ST_NODEV:
            # A bind mount: MIG devices that are created later appear here too.
            self._bind(caps, private / "nvidia-caps")
        KERNEL.mount(str(private), "/dev", None, c.MS_MOVE)

    def _driver(self) -> None:
        if self._driver_root != "/":
            target = Path(self._driver_root)
            target.mkdir(parents=True, exist_ok=True)
            self._bind(self._user_space, target)
            self._bind("/dev", target / "dev")
            return
        for source in sorted((self._user_space / "run").iterdir()):
            service = Path("/run", source.name)
            if not service.exists():
                service.mkdir()
                self._bind(source, service)


def _mounts_below(folder: str) -> list[str]:
    """Return the mount points below a folder, outer ones first."""
    mounts = mountinfo.parse(Path("/proc/self/mountinfo").read_text())
    return sorted({m.target for m in mounts if m.target.startswith(f"{folder}/")})


def attach(node: Node, *, driver_root: str = DRIVER_ROOT, host_run: bool = True) -> None:
    """Make a node look real in the current mount namespace, which must be private.

    The driver root "/" overlays the driver's user space on the host's own files; with `host_run`
    the entries of the host's /run stay visible. Raises HostError if the namespace is not private
    or the kernel refuses a mount, and DocumentError if the node's state is damaged.
    """
    # After unshare() the namespace differs from the parent's; PID 1 of a namespace sees no parent.
    parent = os.getppid()
    if parent and os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{parent}/ns/mnt"):
        raise HostError(
            "a node is attached only in a private mount namespace", hint="use `nvct sim exec`"
        )
    try:
        _Attachment(node, driver_root).run(host_run=host_run)
    except OSError as error:
        raise HostError(
            f"cannot attach node {node.name}: {error}", hint=kernelfs.remedy()
        ) from error


def enter(node: Node, *, driver_root: str = DRIVER_ROOT, host_run: bool = True) -> None:
    """Move this process into a private mount namespace in which a node looks real."""
    make_private()
    attach(node, driver_root=driver_root, host_run=host_run)


def make_private() -> None:
    """Move this process into a private mount namespace; HostError if the kernel refuses it."""
    with OSErrorsAs(HostError, "cannot make a mount namespace", hint=kernelfs.remedy()):
        KERNEL.unshare(c.CLONE_NEWNS)
        KERNEL.mount("none", "/", None, c.MS_REC | c.MS_PRIVATE)


def exec_in(
    node: Node,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    driver_root: str = DRIVER_ROOT,
    cwd: str | None = None,
) -> int:
    """Run a program on a node and return its exit status, or 128 + N if signal N ends it.

    The program gets the signals that ask this process to end. Raises HostError if the node cannot
    be attached on this machine, and UsageError if the program does not exist or cannot be
    executed.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        started.append(spawn(argv, lambda: enter(node, driver_root=driver_root), env=env, cwd=cwd))
        for number in early:
            started[0].send_signal(number)
        return _wait(started[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:  # the terminal signals the program as well
            continue
        return status if status >= 0 else 128 - status
