# SPDX-License-Identifier: Apache-2.0
"""What root in a container can reach of the host: control groups, processes, kernel settings.

Hot; loaded only where config.toml has rules and says engine-devices = "checked". Sources of mounts
are opened, so that neither a link nor a volume hides what they show. The launcher asks the same,
more coarsely, to learn whether Python has to look (`sees_host` in nvct/launcher/launcher.c).
Contract: what cannot be read counts as a way out.
"""

from __future__ import annotations

import posix

from nvct.container.request.resolve import CAP_SYS_ADMIN
from nvct.errors import DocumentError
from nvct.linux.files import read_bytes
from nvct.linux.mountinfo import parse
from nvct.oci.bundle import mount_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nvct.linux.mountinfo import Mount
    from nvct.oci.bundle import Bundle

    Source = tuple[str, list[object], list[str]]
    """A real path, the options of its mount, and what others cover below it."""

PROC = "/proc"
LIMIT = 16 << 20
CGROUP_TYPES = ("cgroup", "cgroup2")
KERNEL_TYPES = ("debugfs", "tracefs", "configfs", "binfmt_misc")
SHOWN_TYPES = (*CGROUP_TYPES, *KERNEL_TYPES, "proc", "sysfs")
UNIFIED = "/sys/fs/cgroup"


def leaves_cgroup(bundle: Bundle) -> bool:
    """Report whether root in a container can leave the control group that refuses devices.

    Root can with CAP_SYS_ADMIN; with a writable mount of control groups besides its own, and of
    version 2 with a read-only one, too (clone3 with CLONE_INTO_CGROUP asks for no write access);
    with files that name a program for the kernel to start (sys/kernel/core_pattern in /proc,
    kernel/uevent_helper in /sys, binfmt_misc); and by /proc/PID/root of a host process: of its own
    user or, after a change of fsuid, of any other. All these files are of the host's root.
    """
    if bundle.has_user_namespace() and not _maps_root(bundle):
        return False
    if CAP_SYS_ADMIN in bundle.capabilities:
        return True
    try:
        mounts = _mounts()
        if _has_hierarchy(bundle, mounts) or _writes_settings(bundle):
            return True
        leaves, sees_processes = shown(_sources(bundle), mounts)
        sees_processes |= _shares(bundle, "pid")
        return leaves or (sees_processes and not bundle.has_user_namespace())
    except (OSError, ValueError, DocumentError):
        return True


def shown(sources: Iterable[Source], mounts: list[Mount]) -> tuple[bool, bool]:
    """Return whether sources let root leave its control group, and whether they show processes.

    `mounts` are those of what the kernel shows.
    """
    sees_processes = False
    for source, options, covered in sources:
        for mount in mounts:
            is_below = _holds(source, mount.target) and source != mount.target
            if not is_below and not _holds(mount.target, source):
                continue
            if any(_holds(source + target, mount.target) for target in covered):
                continue
            sees_processes |= mount.fstype == "proc"  # its links lead out of a read-only mount
            is_held = "rro" in options or (_is_read_only(options) and not is_below)
            if mount.fstype == "cgroup2" or ("rw" in mount.options and not is_held):
                return True, sees_processes
    return False, sees_processes


def _maps_root(bundle: Bundle) -> bool:
    """Report whether a user of a container's namespace is the host's root, or may be."""
    namespaces = bundle.objects(("linux", "namespaces"))
    joins = any(n.get("type") == "user" and n.get("path") for n in namespaces)
    mappings = bundle.objects(("linux", "uidMappings"))
    return joins or not mappings or any(mapping.get("hostID") == 0 for mapping in mappings)


def _writes_settings(bundle: Bundle) -> bool:
    """Report whether a mount that the runtime makes has settings that it does not protect."""
    held = bundle.document.value(("linux", "readonlyPaths"))
    is_held = isinstance(held, list) and "/proc/sys" in held
    for mount in bundle.mounts:
        if mount.get("type") in KERNEL_TYPES:
            return True
        if mount.get("type") == "proc" and (
            mount_target(str(mount.get("destination"))) != "/proc"
            or not (is_held or _is_read_only(_options(mount)))
        ):
            return True
    return False


def _mounts() -> list[Mount]:
    """Return the mounts of what the kernel shows; of sysfs, the folder with its settings."""
    text = read_bytes(f"{PROC}/self/mountinfo", LIMIT).decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    mounts = parse(
        "\n".join([s for s in lines if s.partition(" - ")[2].split(" ")[0] in SHOWN_TYPES])
    )
    for mount in mounts:
        if mount.fstype == "sysfs" and mount.root == "/":
            mount.target += "/kernel"
    return mounts


def _has_hierarchy(bundle: Bundle, mounts: list[Mount]) -> bool:
    """Report whether a container's own mount of control groups is of all.

    In version 1, runtimes mount only the container's own group.
    """
    is_unified = any(m.fstype == "cgroup2" and m.target == UNIFIED for m in mounts)
    has_mount = any(mount.get("type") in CGROUP_TYPES for mount in bundle.mounts)
    return is_unified and has_mount and _shares(bundle, "cgroup")


def _options(mount: Mapping[str, object]) -> list[object]:
    options = mount.get("options")
    return options if isinstance(options, list) else []


def _is_read_only(options: list[object]) -> bool:
    return "ro" in options and "rw" not in options


def _shares(bundle: Bundle, kind: str) -> bool:
    """Report whether a container has the runtime's own namespace, by omission or by its path."""
    for namespace in bundle.objects(("linux", "namespaces")):
        if namespace.get("type") == kind:
            path = namespace.get("path")
            if not path:
                return False
            joined, own = posix.stat(str(path)), posix.stat(f"{PROC}/self/ns/{kind}")
            return (joined.st_dev, joined.st_ino) == (own.st_dev, own.st_ino)
    return True


def _sources(bundle: Bundle) -> Iterator[Source]:
    """Yield the real paths of what is mounted into a container, with options, and of its root.

    The third value is what other mounts of the container cover below the path.
    """
    targets = [mount_target(str(mount.get("destination"))) for mount in bundle.mounts]
    root = {"source": bundle.document.value(("root", "path"))}
    for mount in [*bundle.mounts, root]:
        source = mount.get("source")
        if not isinstance(source, str) or source[:1] != "/":
            continue
        try:
            fd = posix.open(source, posix.O_PATH | posix.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue  # the runtime reports it
        try:
            path = posix.readlink(f"{PROC}/self/fd/{fd}").rstrip("/")
        finally:
            posix.close(fd)
        yield path, _options(mount), targets if mount is root else []


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
