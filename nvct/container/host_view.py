# SPDX-License-Identifier: Apache-2.0
"""What root in a container can reach of the host: control groups to move to, processes to enter.

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
    from collections.abc import Iterator, Mapping

    from nvct.linux.mountinfo import Mount
    from nvct.oci.bundle import Bundle

PROC = "/proc"
LIMIT = 16 << 20
CGROUP_TYPES = ("cgroup", "cgroup2")
UNIFIED = "/sys/fs/cgroup"
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""By number, without "CAP_" (linux/capability.h)."""


def leaves_cgroup(bundle: Bundle) -> bool:
    """Report whether root in a container can leave the control group that refuses devices.

    Root can with CAP_SYS_ADMIN, with a writable mount of control groups besides its own, with one
    of the host's /proc (sys/kernel/core_pattern names a program that the kernel starts), and by
    /proc/PID/root of a host process that it may trace.
    """
    if CAP_SYS_ADMIN in bundle.bounding:
        return True
    try:
        mounts = _mounts("self")
        if _has_hierarchy(bundle, mounts):
            return True
        sees_processes = _shares(bundle, "pid")
        for source, options, covered in _sources(bundle):
            for mount in mounts:
                is_below = _holds(source, mount.target) and source != mount.target
                if not is_below and not _holds(mount.target, source):
                    continue
                if any(_holds(source + target, mount.target) for target in covered):
                    continue
                sees_processes |= mount.fstype == "proc"  # its links lead out of a read-only mount
                is_held = "rro" in options or (_is_read_only(options) and not is_below)
                if "rw" in mount.options and not is_held:
                    return True
        return sees_processes and not bundle.has_user_namespace() and _may_trace(bundle.bounding)
    except (OSError, ValueError, DocumentError):
        return True


def _mounts(process: str) -> list[Mount]:
    """Return the mounts of processes and of control groups."""
    text = read_bytes(f"{PROC}/{process}/mountinfo", LIMIT).decode("utf-8", "surrogateescape")
    lines = [line for line in text.split("\n") if " - proc " in line or " - cgroup" in line]
    return parse("\n".join(lines))


def _has_hierarchy(bundle: Bundle, mounts: list[Mount]) -> bool:
    """Report whether a container's own mount of control groups is of all, and can be written.

    In version 1, runtimes mount only the container's own group.
    """
    if not any(mount.fstype == "cgroup2" and mount.target == UNIFIED for mount in mounts):
        return False
    own = [mount for mount in bundle.mounts if mount.get("type") in CGROUP_TYPES]
    return _shares(bundle, "cgroup") and not all(_is_read_only(_options(mount)) for mount in own)


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


def _sources(bundle: Bundle) -> Iterator[tuple[str, list[object], list[str]]]:
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


def _may_trace(bounding: list[str]) -> bool:
    """Report whether root with these capabilities may enter a process that can leave its group.

    Without CAP_SYS_PTRACE, the kernel allows it for root's processes that have no other
    capabilities (ptrace(2), access mode checking).
    """
    if "CAP_SYS_PTRACE" in bounding:
        return True
    own = sum(1 << n for n, name in enumerate(CAPABILITIES) if f"CAP_{name}" in bounding)
    return any(_is_weaker(name, own) for name in posix.listdir(PROC) if name.isdigit())


def _is_weaker(process: str, capabilities: int) -> bool:
    try:
        status = read_bytes(f"{PROC}/{process}/status", LIMIT).decode("ascii", "replace")
        fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
        if fields["Uid"].split() != ["0"] * 4 or int(fields["CapPrm"], 16) & ~capabilities:
            return False
        groups = [m for m in _mounts(process) if m.fstype in CGROUP_TYPES and m.root == "/"]
        return any("rw" in mount.options for mount in groups)
    except (OSError, KeyError):  # it has ended
        return False
