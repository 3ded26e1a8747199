# SPDX-License-Identifier: Apache-2.0
"""Adds device rules to the cgroup of a live container.

If the container's cgroup is part of a systemd unit, systemd gets the rules first, because a
daemon-reload sets the unit's own rules again. Then devices.allow of cgroup v1 or the device
programs of cgroup v2 change. A rootless engine has no device rules, so there is nothing to do.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.prestart.device_filter import ANY, Rule
from nvct.errors import HostError, NvctError
from nvct.linux import mountinfo
from nvct.linux.files import read_bytes
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvct.container.prestart.container import Process

LIMIT = 16 << 20
UNITS = (".scope", ".service")
DEFAULTS = (
    ("c", ANY, ANY, "m"), ("b", ANY, ANY, "m"),
    ("c", 1, 3, "rwm"), ("c", 1, 5, "rwm"), ("c", 1, 7, "rwm"), ("c", 1, 8, "rwm"),
    ("c", 1, 9, "rwm"), ("c", 5, 0, "rwm"), ("c", 5, 1, "rwm"), ("c", 5, 2, "rwm"),
    ("c", 136, ANY, "rwm"),
)  # fmt: skip
"""Rules that runtimes add to config.json: mknod, null, zero, full, random, urandom, tty, console,
ptmx and pts (runc 1.3: libcontainer/specconv.AllowedDevices; crun 1.8: cgroup-resources.c)."""
RUNNING = "/run/systemd/system"  # sd_booted(3)
PROGRAM = "systemctl"
TIMEOUT_S = 10
OPEN = (b"DevicePolicy=auto", b"DeviceAllow=")
"""Output of systemctl show for a unit that may open every device."""


class Cgroup:
    """The cgroup with the device rules of a process."""

    __slots__ = ("folder", "path", "unified")

    def __init__(self, path: str, folder: str, *, unified: bool) -> None:
        # of the cgroup in the hierarchy with the device rules, "/" for the root cgroup
        self.path = path
        self.folder = folder
        self.unified = unified

    @property
    def unit(self) -> str:
        """The systemd unit that the cgroup belongs to, "" if there is none."""
        for name in reversed(self.path.split("/")):
            if name.endswith(UNITS):
                return name
        return ""

    def folders(self) -> list[str]:
        """Return the folders of the cgroup and of its ancestors up to the systemd unit."""
        folders = [self.folder]
        names = self.path.rstrip("/").split("/")
        if self.unit:
            while not names.pop().endswith(UNITS):
                folders.append(folders[-1].rpartition("/")[0])
        return folders


def find(pid: int, proc: str = "/proc", process: Process | None = None) -> Cgroup:
    """Return the cgroup with the device rules of a process, which may be open already.

    Raises HostError if no cgroup hierarchy with device rules is mounted.
    """
    paths = {}
    data = process.read("cgroup") if process else read_bytes(f"{proc}/{pid}/cgroup", LIMIT)
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    candidates = [(path, False) for names, path in paths.items() if "devices" in names.split(",")]
    candidates += [(path, True) for names, path in paths.items() if not names]
    mounts = mountinfo.parse(mountinfo.read(proc))
    for path, unified in candidates:
        for mount in mounts:
            if _has_rules(mount, unified=unified):
                folder = _below(mount, path)
                if _exists(folder):  # no other mount hides it
                    return Cgroup(path, folder, unified=unified)
    raise HostError(
        f"no cgroup with device rules of process {pid} is mounted",
        hint="set no-cgroups = true in config.toml where there are none",
    )


def _has_rules(mount: mountinfo.Mount, *, unified: bool) -> bool:
    if unified:
        return mount.fstype == "cgroup2"
    return mount.fstype == "cgroup" and "devices" in mount.super_options


def _exists(folder: str) -> bool:
    try:
        posix.stat(folder)
    except OSError:
        return False
    return True


def _below(mount: mountinfo.Mount, path: str) -> str:
    root = mount.root.rstrip("/")
    inside = path[len(root) :] if path == root or path.startswith(root + "/") else path
    return mount.target.rstrip("/") + inside.rstrip("/")


def allow(
    texts: list[str],
    pid: int,
    configured: list[dict[str, Any]] | None,
    *,
    env: dict[str, str],
    warn: Callable[[str], None],
    proc: str = "/proc",
    process: Process | None = None,
) -> None:
    """Add device rules, entries of linux.resources.devices, to a container.

    `configured` are those of its config.json; None if unknown: the existing rules of the cgroup
    then stay. Raises HostError if the kernel refuses a rule.
    """
    rules = _parsed(texts)
    if not rules:
        return
    cgroup = find(pid, proc, process)
    if cgroup.path == "/":
        return  # the root cgroup has no rules
    if cgroup.unit:
        allow_in_unit(cgroup.unit, rules, env=env, warn=warn)
    if cgroup.unified:
        from nvct.container.prestart import device_filter

        if configured is None:
            device_filter.extend(cgroup.folders(), rules)
        else:
            existing = [Rule.read(entry) for entry in configured]
            existing += [Rule(*rule, allow=True) for rule in DEFAULTS]
            device_filter.replace(cgroup.folders(), existing + rules)
    else:
        _write(cgroup.folder, rules)


def _parsed(texts: list[str]) -> list[Rule]:
    return [
        Rule.read(jsontext.parse(text, "a plan"))  # type: ignore[arg-type]  # our compiler's
        for text in dict.fromkeys(texts)
    ]


def _write(folder: str, rules: list[Rule]) -> None:
    path = f"{folder}/devices.allow"
    try:
        fd = posix.open(path, posix.O_WRONLY)
        try:
            for rule in rules:
                posix.write(fd, str(rule).encode())
        finally:
            posix.close(fd)
    except OSError as error:
        raise HostError(
            f"cannot allow a device in {path}: {error.strerror}",
            hint="set no-cgroups = true in config.toml if hooks must not change cgroups",
        ) from error


def allow_in_unit(
    unit: str,
    rules: list[Rule],
    *,
    env: dict[str, str],
    warn: Callable[[str], None],
    running: str = RUNNING,
    folders: tuple[str, ...] = paths.DEFAULT_PATH_DIRS,
) -> None:
    """Add device rules to a unit until the unit ends; do nothing on a host without systemd.

    The host's systemctl, which can reach the service manager, runs before the hook enters the
    namespaces of the container.

    A unit without rules is not changed either: that of a privileged container, or a service in
    which an engine keeps its containers. The first DeviceAllow= would deny such a unit all other
    devices (systemd.resource-control(5), DevicePolicy=auto).

    A failure is a warning, because the GPU works until the next daemon-reload.
    """
    try:
        posix.stat(running)
    except OSError:
        return
    paths = [f"{folder}/{PROGRAM}" for folder in folders]
    program = next((path for path in paths if posix.access(path, posix.X_OK)), "")
    if not program:
        return
    words = ["show", "--property=DevicePolicy", "--property=DeviceAllow", "--", unit]
    result = _systemctl([program, *words], env, warn)
    if result is None:
        return
    data, status = result
    if not status and OPEN[0] in data.split() and set(data.split()) <= set(OPEN):
        return
    kinds = {"b": "block"}
    words = [
        f"DeviceAllow=/dev/{kinds.get(r.kind, 'char')}/{r.major}:{r.minor} {r.access}"
        for r in rules
    ]
    if not status:
        result = _systemctl([program, "set-property", "--runtime", "--", unit, *words], env, warn)
        if result is None:
            return
        status = result[1]
    if status:
        warn(f"systemd did not take device rules for {unit}: a daemon-reload may undo them")


def _systemctl(
    argv: list[str], env: dict[str, str], warn: Callable[[str], None]
) -> tuple[bytes, int] | None:
    from nvct.container import cold_process

    try:
        return cold_process.spawn(argv, env, f"{PROGRAM} {argv[1]}", TIMEOUT_S)
    except NvctError as error:
        warn(error.message)
        return None
