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
"""Kinds of mounts that show the host, and have no device nodes."""
UNIFIED = "/sys/fs/cgroup"
FOLDERS = 256
"""So many are searched for nodes below each mount."""


def leaves_cgroup(bundle: Bundle) -> bool:
    """Report whether root in a container can leave the control group that refuses devices.

    Root can with CAP_SYS_ADMIN; with a writable mount of control groups besides its own, and of
    version 2 with a read-only one, too (clone3 with CLONE_INTO_CGROUP asks for no write access);
    with files that name a program for the kernel to start (sys/kernel/core_pattern in /proc,
    kernel/uevent_helper in /sys, binfmt_misc) or bind drivers to devices (the rest of /sys); and
    by the host's processes. All these files are of the host's root.
    """
    if bundle.has_user_namespace() and not _maps_root(bundle):
        return False
    if CAP_SYS_ADMIN in bundle.capabilities:
        return True
    try:
        mounts = _mounts()
        if _has_hierarchy(bundle, mounts) or _writes_settings(bundle):
            return True
        return gives_settings(_sources(bundle), mounts) or sees_processes(bundle)
    except (OSError, ValueError, DocumentError):
        return True


def gives_settings(sources: Iterable[Source], mounts: list[Mount]) -> bool:
    """Report whether sources have control groups or settings of the kernel that can be written."""
    for _, options, mount, is_below in shared(sources, mounts):
        if mount.fstype in SHOWN_TYPES:
            is_held = "rro" in options or (_is_read_only(options) and not is_below)
            if mount.fstype == "cgroup2" or ("rw" in mount.options and not is_held):
                return True
    return False


def sees_processes(bundle: Bundle) -> bool:
    """Report whether a container sees processes of the host, so that it may enter their files.

    /proc/PID/root leads out of a read-only mount, too: for processes of its own user or, after a
    change of fsuid or with CAP_SYS_PTRACE, of any other; but none of another user namespace.
    """
    namespaces = bundle.objects(("linux", "namespaces"))
    has_own_users = any(n.get("type") == "user" and not n.get("path") for n in namespaces)
    try:
        is_mounted = "proc" in [
            mount.fstype for _, _, mount, _ in shared(_sources(bundle), _mounts())
        ]
        return (is_mounted or _shares(bundle, "pid")) and not has_own_users
    except (OSError, ValueError, DocumentError):
        return True


def seen_nodes(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield the special files of the host that a container sees, each after its mount's source.

    They are in the sources of its mounts, in its root, and in what is mounted below them.
    """
    try:
        folders = [(source, source, covered) for source, _, covered in _sources(bundle)]
        for source, _, mount, is_below in shared(_sources(bundle), _mounts()):
            has_nodes = "nodev" not in mount.options and mount.fstype not in SHOWN_TYPES
            if is_below and has_nodes:
                folders.append((source, mount.target, []))
    except (OSError, ValueError, DocumentError):
        return  # the same counts in sees_processes
    for source, folder, covered in folders:
        for path in _special_files(folder):
            if not any(_holds(source + target, path) for target in covered):
                yield source, path


def _special_files(top: str) -> list[str]:
    """Return the paths below a folder that are neither files nor folders, or a file itself.

    The caller's own folders are not entered, nor other file systems: a rootless engine makes no
    nodes, and mounts are looked at one by one. Folders called "dev" come first, with theirs.
    """
    special: list[str] = []
    waiting, entered = [top], 0
    while waiting and entered < FOLDERS:
        folder = waiting.pop(0)
        entered += 1
        try:
            with posix.scandir(folder or "/") as entries:
                others = [
                    e for e in entries if not (e.is_file(follow_symlinks=False) or e.is_symlink())
                ]
            device = posix.stat(folder or "/").st_dev
            for entry in others:
                status = entry.stat(follow_symlinks=False)
                if not entry.is_dir(follow_symlinks=False):
                    special.append(entry.path)
                elif status.st_uid != posix.geteuid() and status.st_dev == device:
                    is_of_dev = "/dev/" in f"{entry.path[len(top) :]}/"
                    waiting.insert(0 if is_of_dev else len(waiting), entry.path)
        except NotADirectoryError:
            special.append(folder)
        except (OSError, ValueError):
            continue  # what the caller may not read, its containers may not either
    return special


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
        if mount.get("type") == "sysfs" and not _is_read_only(_options(mount)):
            return True
        if mount.get("type") == "proc" and (
            mount_target(str(mount.get("destination"))) != "/proc"
            or not (is_held or _is_read_only(_options(mount)))
        ):
            return True
    return False


def _mounts() -> list[Mount]:
    mounts = parse(read_bytes(f"{PROC}/self/mountinfo", LIMIT).decode("utf-8", "surrogateescape"))
    for mount in mounts:
        mount.target = mount.target.rstrip("/")
    return mounts


def shared(
    sources: Iterable[Source], mounts: list[Mount]
) -> Iterator[tuple[str, list[object], Mount, bool]]:
    """Yield mounts that sources have a part of: by which source, with which options of it.

    The last value says whether the mount is below the source.
    """
    for source, options, covered in sources:
        for mount in _holders(source, mounts):
            yield source, options, mount, False
        for mount in mounts:
            is_covered = any(_holds(source + target, mount.target) for target in covered)
            if _holds(source, mount.target) and source != mount.target and not is_covered:
                yield source, options, mount, True


def _holders(path: str, mounts: list[Mount]) -> list[Mount]:
    """Return the mount in which a path is, and later ones above it, which may cover it."""
    holders: list[Mount] = []
    for mount in mounts:
        if _holds(mount.target, path):
            is_outer = bool(holders) and len(mount.target) < len(holders[0].target)
            holders = [*holders, mount] if is_outer else [mount]
    return holders


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
