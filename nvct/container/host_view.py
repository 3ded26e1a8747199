# SPDX-License-Identifier: Apache-2.0
"""What root in a container can reach of the host: control groups, processes, kernel settings.

Hot; loaded only where config.toml has rules and says engine-devices = "checked". Links in mount
sources are followed, so that neither a link nor a volume hides what it shows. The launcher checks
the same more coarsely, to learn whether Python must decide (`sees_host` in
nvct/launcher/launcher.c). Contract: a way to the host is returned in the words of the refusal, ""
if there is none; a path that cannot be read, or that the runtime resolves differently, is a way.
"""

from __future__ import annotations

import posix
from errno import EINVAL, ELOOP
from fcntl import ioctl

from nvct.container.request.resolve import CAP_SYS_ADMIN
from nvct.errors import DocumentError
from nvct.linux.files import read_bytes
from nvct.linux.mountinfo import Mount, parse
from nvct.oci.bundle import Bundle, mount_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PROC = "/proc"
LIMIT = 16 << 20
CGROUP_TYPES = ("cgroup", "cgroup2")
KERNEL_TYPES = ("debugfs", "tracefs", "configfs", "binfmt_misc")
SHOWN_TYPES = (*CGROUP_TYPES, *KERNEL_TYPES, "proc", "sysfs")
"""File systems that show the host and have no device nodes."""
OWN_TYPES = (
    *CGROUP_TYPES, "proc", "sysfs", "tmpfs", "ramfs", "devpts", "mqueue", "overlay",
)  # fmt: skip
"""File systems that a runtime makes for a container; most of them show nothing of the host."""
ACCESS = ("ro", "rw", "rro", "rrw")
LATER = ("slave", "rslave", "shared", "rshared")
"""Options of a mount into which later mounts of the host propagate."""
PLUGINS = "/run/docker/plugins/"  # shared between Docker and its plugins; nobody mounts there
BIND_TYPES = ("bind", "none", "", None)
SHOWN_AS = {**dict.fromkeys(CGROUP_TYPES, "control groups"), "proc": "/proc", "sysfs": "/sys"}
UNIFIED = "/sys/fs/cgroup"
NS_GET_USERNS = 0xB701  # ioctl_ns(2)
LINKS = 40
"""As many as the kernel follows (MAXSYMLINKS)."""
FOLDERS = 256
"""At most as many are searched for device nodes below each mount."""


class Source:
    """A folder or file of the host that a container sees.

    Attributes:
        path: without links, and without a slash at its end.
        covered: paths below it that the container's mounts cover.
    """

    __slots__ = ("covered", "is_root", "name", "options", "path")

    def __init__(
        self, path: str, options: list[object], covered: Sequence[str] = (), *,
        name: str = "", is_root: bool = False,
    ) -> None:  # fmt: skip
        self.path = path
        self.options = options
        self.covered = covered
        self.name = name
        self.is_root = is_root

    def showing(self, mount: Mount) -> str:
        """Return, in words, which mount of the host this source shows."""
        what = SHOWN_AS.get(mount.fstype, f"settings of the kernel ({mount.fstype})")
        return f"{self.name}, which has the host's {what}"


def way_out(bundle: Bundle, *, is_rootless: bool = False) -> str:
    """Return how root in a container can leave the control group that refuses devices.

    The ways are CAP_SYS_ADMIN; a writable mount of other control groups, in version 2 a read-only
    one, too (clone3 with CLONE_INTO_CGROUP needs no write access); files that name a program for
    the kernel to start (sys/kernel/core_pattern in /proc, kernel/uevent_helper in /sys,
    binfmt_misc) or bind drivers to devices (the rest of /sys, bus in /proc); and processes of the
    host. All these files belong to the host's root. A mount of the container's own root shows its
    /proc once more, without masks. With a rootless engine only processes of the host count.
    """
    if not is_rootless:
        if bundle.has_user_namespace() and not _maps_root(bundle):
            return ""
        if CAP_SYS_ADMIN in bundle.capabilities:
            return CAP_SYS_ADMIN
    try:
        mounts = _mounts(bundle)
        sources = list(_sources(bundle, mounts))
        if is_rootless:
            return _way_by_processes(bundle, sources, mounts)
        return (
            _way_by_hierarchy(bundle)
            or _way_by_own_mounts(bundle)
            or way_to_settings(sources, mounts)
            or _way_by_processes(bundle, sources, mounts)
            or _way_by_root(sources, mounts)
        )
    except (OSError, ValueError, DocumentError) as error:
        return f"something that nvct cannot read ({error})"


def way_to_settings(sources: Iterable[Source], mounts: list[Mount]) -> str:
    """Return which source shows writable control groups or kernel settings, in words."""
    for source, mount, is_below in shared(sources, mounts):
        if mount.fstype in SHOWN_TYPES:
            is_held = _is_read_only(source.options, is_below=is_below)
            if mount.fstype == "cgroup2" or ("rw" in mount.options and not is_held):
                return source.showing(mount)
    return ""


def _way_by_processes(bundle: Bundle, sources: Iterable[Source], mounts: list[Mount]) -> str:
    """Return how a container sees processes of the host, through which it can reach their files.

    /proc/PID/root leads out of a read-only mount, too. It is open for processes of the same user
    or, after a change of fsuid or with CAP_SYS_PTRACE, of any user; but not for processes of
    another user namespace.
    """
    seen = shared(sources, mounts)
    ways = [source.showing(mount) for source, mount, _ in seen if mount.fstype == "proc"]
    ways += _foreign_processes(bundle)
    return ways[0] if ways and _namespace(bundle, "user") != "" else ""


def seen_nodes(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield the mount's source and the path of each special file of the host in a container.

    They are in the sources of its mounts, in its root, and in mounts below these.
    """
    try:
        mounts = _mounts(bundle)
        sources = list(_sources(bundle, mounts))
        folders = [(source, source.path, source.covered) for source in sources]
        for source, mount, is_below in shared(sources, mounts):
            has_nodes = "nodev" not in mount.options and mount.fstype not in SHOWN_TYPES
            if is_below and has_nodes:
                folders.append((source, mount.target, []))
    except (OSError, ValueError, DocumentError):
        return  # way_out returns this error as a way
    for source, folder, covered in folders:
        for path in _special_files(folder):
            if not any(_holds(source.path + target, path) for target in covered):
                yield source.path, path


def _special_files(top: str) -> list[str]:
    """Return the special files below a folder; the path itself if it is not a folder.

    Folders of this process's user are not entered, because a rootless engine makes no nodes, nor
    other file systems, because callers look at each mount. Folders called "dev" come first.
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
            continue  # a folder that this process cannot read, the container cannot read either
    return special


def _maps_root(bundle: Bundle) -> bool:
    """Report whether a container's user namespace maps, or could map, the host's root."""
    mappings = bundle.objects(("linux", "uidMappings"))
    joins = bool(_namespace(bundle, "user"))
    return joins or not mappings or any(mapping.get("hostID") == 0 for mapping in mappings)


def _way_by_own_mounts(bundle: Bundle) -> str:
    """Return a mount of config.json through which kernel settings can be changed, or "".

    Each runtime resolves a relative source differently, and runc never from the bundle.
    """
    held = bundle.document.value(("linux", "readonlyPaths"))
    is_held = isinstance(held, list) and "/proc/sys" in held and "/proc/bus" in held
    for mount in bundle.mounts:
        kind, options = mount.get("type"), _options(mount)
        target = mount_target(str(mount.get("destination")))
        is_writable = not _is_read_only(options)
        if is_bind(mount) and str(mount.get("source") or "")[:1] != "/":
            return f"the mount of the relative path {mount.get('source')} at {target}"
        if "remount" in options:
            return f"the remount of {target}"
        source = str(mount.get("source"))
        is_plugins = source.startswith(PLUGINS) and ".." not in source
        if any(option in LATER for option in options) and not is_plugins:
            return f"the mount of {source} at {target}, into which later mounts propagate"
        if kind not in OWN_TYPES and not is_bind(mount):
            return f"the mount of {kind} at {target}"
        if kind == "sysfs" and is_writable:
            return f"the writable /sys at {target}"
        if kind == "proc" and target != "/proc":
            return f"the second /proc at {target}"
        if kind == "proc" and is_writable and not is_held:
            return "a writable /proc/sys or /proc/bus (unmask, systempaths=unconfined)"
    return ""


def _mounts(bundle: Bundle) -> list[Mount]:
    """Return this process's mounts; none if the container has no folder of the host."""
    if not bundle.document.value(("root", "path")):  # a container that NRI describes has none
        binds = [m for m in bundle.mounts if is_bind(m) or str(m.get("source"))[:1] == "/"]
        if not binds:
            return []
    mounts = parse(read_bytes(f"{PROC}/self/mountinfo", LIMIT).decode("utf-8", "surrogateescape"))
    for mount in mounts:
        mount.target = mount.target.rstrip("/")
    return mounts


def shared(sources: Iterable[Source], mounts: list[Mount]) -> Iterator[tuple[Source, Mount, bool]]:
    """Yield each source with each mount that it shows a part of, and whether that is below it."""
    for source in sources:
        for mount in _holders(source.path, mounts):
            yield source, mount, False
        for mount in mounts:
            is_below = _holds(source.path, mount.target) and source.path != mount.target
            if is_below and not any(
                _holds(source.path + target, mount.target) for target in source.covered
            ):
                yield source, mount, True


def _holders(path: str, mounts: list[Mount]) -> list[Mount]:
    """Return the mount that holds a path, and later mounts above that one, which may cover it."""
    holders: list[Mount] = []
    for mount in mounts:
        if _holds(mount.target, path):
            is_outer = bool(holders) and len(mount.target) < len(holders[0].target)
            holders = [*holders, mount] if is_outer else [mount]
    return holders


def _way_by_hierarchy(bundle: Bundle) -> str:
    """Return how a container's own cgroup mount shows control groups of others."""
    path = _namespace(bundle, "cgroup")
    if path == "" or not any(mount.get("type") in CGROUP_TYPES for mount in bundle.mounts):
        return ""
    if path:
        return f"control groups of others ({path})"
    is_unified = posix.access(f"{UNIFIED}/cgroup.controllers", posix.F_OK)
    return "the host's control groups (--cgroupns=host)" if is_unified else ""


def _way_by_root(sources: list[Source], mounts: list[Mount]) -> str:
    """Return which source is, holds or lies in the container's root, under any name."""
    roots = [place for source in sources if source.is_root for place in _places(source, mounts)]
    for source in sources:
        if not source.is_root:
            for system, path in _places(source, mounts):
                if any(system == s and (_holds(path, p) or _holds(p, path)) for s, p in roots):
                    return f"{source.name}, which has the container's own root"
    return ""


def _places(source: Source, mounts: list[Mount]) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the device number of each file system that a source shows, and the path in it."""
    for _, mount, is_below in shared([source], mounts):
        rest = "" if is_below else source.path[len(mount.target) :]
        yield (mount.major, mount.minor), mount.root.rstrip("/") + rest


def _options(mount: Mapping[str, object]) -> list[object]:
    options = mount.get("options")
    return options if isinstance(options, list) else []


def _is_read_only(options: list[object], *, is_below: bool = False) -> bool:
    """Report whether a mount is read-only; with `is_below`, whether the mounts below it are.

    runc applies "rrw" after "ro", and of several options the last.
    """
    is_held = "rro" in options or ("ro" in options and not is_below)
    return is_held and "rw" not in options and "rrw" not in options


def is_bind(mount: Mapping[str, object]) -> bool:
    """Report whether a runtime binds the source of a mount, whatever its type."""
    options = _options(mount)
    return "bind" in options or "rbind" in options or mount.get("type") in BIND_TYPES


def _namespace(bundle: Bundle, kind: str) -> str | None:
    """Return the path of the namespace that a container joins; "" if it has a new one."""
    namespaces = bundle.objects(("linux", "namespaces"))
    paths = [str(n.get("path") or "") for n in namespaces if n.get("type") == kind]
    return max(paths, default=None)


def _foreign_processes(bundle: Bundle) -> list[str]:
    """Return how a container sees processes that may be the host's.

    A PID namespace that another user namespace than the container's owns may be that of a host
    user. With their uid, the container's root can reach the files of the processes there.
    """
    path = _namespace(bundle, "pid")
    if path is None:
        return ["the host's processes (--pid=host)"]
    users = _namespace(bundle, "user") or f"{PROC}/self/ns/user"
    if not path or (_inode(path, NS_GET_USERNS) == posix.stat(users).st_ino
                    and _inode(path) != posix.stat(f"{PROC}/self/ns/pid").st_ino):  # fmt: skip
        return []
    return [f"processes that may be the host's ({path})"]


def _inode(path: str, request: int = 0) -> int:
    """Return the inode of a namespace, or of the one that a request of ioctl_ns(2) opens."""
    fds = [posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)]
    try:
        if request:
            fds.append(ioctl(fds[0], request))
        return posix.fstat(fds[-1]).st_ino
    finally:
        for fd in fds:
            posix.close(fd)


def _sources(bundle: Bundle, mounts: list[Mount]) -> Iterator[Source]:
    """Yield the sources of a container's mounts, and its root, if they exist.

    A relative path counts as the host's root. A path through a procfs also counts as the procfs,
    because "self" there means another process to the runtime.
    """
    targets = [mount_target(str(mount.get("destination"))) for mount in bundle.mounts]
    for mount, target in zip(bundle.mounts, targets, strict=True):
        source, paths = mount.get("source"), []
        if isinstance(source, str) and source[:1] == "/":
            paths = _real(source, mounts)
        elif is_bind(mount):
            paths = [""]
        for path in paths:
            yield Source(path, _options(mount), name=f"the mount of {source} at {target}")
    root = bundle.document.value(("root", "path"))
    if isinstance(root, str) and root:
        folder = bundle.path.rpartition("/")[0] or "."
        parts = [root] if root[:1] == "/" else [posix.getcwd(), folder, root]
        if folder[:1] == "/":
            parts = parts[-2:]
        for path in _real("/".join(parts), mounts):
            yield Source(path, [], targets, name=f"the root {path}", is_root=True)


def _real(path: str, mounts: list[Mount]) -> list[str]:
    """Return a path without links if it exists, and before it its first step in a procfs."""
    procs = [mount.target for mount in mounts if mount.fstype == "proc"]
    real, waiting, links = "", path.split("/"), 0
    passed: list[str] = []
    while waiting:
        name = waiting.pop(0)
        if name in {"", "."}:
            continue
        if name == "..":
            real = real.rpartition("/")[0]
            continue
        step = f"{real}/{name}"
        if not passed and any(_holds(proc, step) for proc in procs):
            passed = [step]
        try:
            target = posix.readlink(step)
        except (FileNotFoundError, NotADirectoryError):
            return passed  # the runtime reports it
        except OSError as error:
            if error.errno != EINVAL:
                raise
            real = step
            continue
        links += 1
        if links > LINKS:
            raise OSError(ELOOP, "too many links", path)
        real = "" if target[:1] == "/" else real
        waiting = [*target.split("/"), *waiting]
    return list(dict.fromkeys([*passed, real]))


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
