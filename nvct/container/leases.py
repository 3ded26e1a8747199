# SPDX-License-Identifier: Apache-2.0
"""Leases of GPUs: the devices that containers hold which asked for any free one (free:N).

Hot; loaded only for such a request. A lease is an empty file in a sticky folder in which every
user can make files: DEVICE.PID.START.NONCE, the device's UUID, a process and its start time in
clock ticks since boot (field 22 of proc_pid_stat(5)). It counts while a thread of that process
lives, if the process belongs to the owner of the file, or root owns the file. So a lease ends with
its process, nobody can remove or rename the lease of another user, or make one for another user's
process. Nobody can take a name in advance, because the nonce is random. DEVICE of a MIG device is
the GPU's UUID, a colon and the device's number on the GPU: a lease of the GPU is one of its MIG
devices, and the reverse.

There is no lock, because a user could keep it. A create that wants a device makes the file, then
looks: if another lease of the device counts, it removes its file and tries the next device. So two
creates never keep one device; if they meet, both can give way, and both try again after a
random time.

Inside a user namespace, owners outside of it have no uid: their leases count while the process
lives. If a process is hidden (hidepid of proc(5)), a lease counts while its PID is in use. PIDs
and start times are valid in one PID and time namespace: a folder is for those of the host, or of
the container where it was made. Processes of other namespaces are refused.
"""

from __future__ import annotations

import posix
import sys
import time

from nvct import paths
from nvct.errors import HostError, UnsafePathError
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.linux.files import has_every_id, read_bytes
from nvct.linux.walk import names_in
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.container.request.model import Want
    from nvct.oci.bundle import Bundle

PROC = "/proc"
NAMES = 4096
MODE = 0o1777
FIRST = {"pid": 0xEFFFFFFC, "time": 0xEFFFFFFA}  # inodes: include/uapi/linux/nsfs.h
NOBODY = 65534  # stands for all owners that a user namespace does not map
NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704
RETRY_S = 1.0
PAUSE_S = 0.05
HINT = "nvct ps --free shows who uses which GPU"
ROLE = "the folder of GPU leases"
FULL = f"as root: ls -lR {paths.LEASE_DIR} shows whose files fill it; remove them"


class Lease:
    """A file of the folder, its owner, the process that holds it, and whether it counts."""

    __slots__ = ("counts", "device", "name", "pid", "uid")

    def __init__(self, name: str, device: str, pid: int, uid: int, *, counts: bool) -> None:
        self.name = name
        self.device = device
        self.pid = pid
        self.uid = uid
        self.counts = counts


def folder_of(env: Mapping[str, str]) -> str:
    """Return the path of the host's folder, or of one beside the run directory of a test."""
    run_dir = env.get(paths.RUN_DIR_ENV)
    return f"{run_dir}-leases" if run_dir else paths.LEASE_DIR


def open_folder(path: str, *, create: bool = True) -> int:
    """Return a descriptor of the folder; with `create`, make a missing one, which only root can.

    Raises HostError if it is missing, and UnsafePathError if others could remove files there or
    it is for other namespaces.
    """
    if create and (_has_every_id("self") or _namespaces()):  # not in /run of rootless Docker
        _make(path)
    repair = f"as root: rm -r {path}; {_commands(path)}"
    try:  # rootless Docker has a link to the host's folder there
        fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except FileNotFoundError as error:
        raise HostError(
            f"{path}, {ROLE}, is missing", hint=f"as root: {_commands(path)}"
        ) from error
    except OSError as error:
        raise UnsafePathError(f"{path} is not a folder: {error.strerror}", hint=repair) from error
    status = posix.fstat(fd)
    if create and status.st_uid == posix.geteuid() == 0 and not status.st_mode & 0o022:
        posix.fchmod(fd, MODE)  # systemd leaves it like this after an unmount
        status = posix.fstat(fd)
    is_roots = status.st_uid in (0, posix.geteuid()) or _is_unknown(status.st_uid)
    if status.st_mode & MODE != MODE or not is_roots:
        problem = f"belongs to uid {status.st_uid} with mode {status.st_mode & 0o7777:o}"
    elif not _is_for_us(fd, status.st_uid):
        problem = "is for another PID or time namespace, where PIDs mean other processes"
        repair = "start it outside of the container, or give the container its own /run"
    else:
        return fd
    posix.close(fd)
    raise UnsafePathError(f"{path} {problem}", hint=repair)


def _make(path: str) -> None:
    try:
        posix.mkdir(path, 0o700)
        fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        _record(fd)
        posix.fchmod(fd, MODE)
        posix.close(fd)
    except FileExistsError:
        pass
    except OSError as error:
        text = f"{path}, {ROLE}, cannot be made: {error.strerror}"
        raise HostError(text, hint=f"as root: {_commands(path)}") from error


def _commands(path: str) -> str:
    """Return the commands that make the folder as `_make` does."""
    name = _namespaces()
    return f"install -d -m 1777 {path}" + (f"; touch {path}/{name}" if name else "")


def _namespaces() -> str:
    """Return the file name that marks a folder of these namespaces; "" for the host's."""
    found = {}
    for kind, first in FIRST.items():
        try:
            found[kind] = posix.stat(f"{PROC}/self/ns/{kind}").st_ino
        except FileNotFoundError:
            found[kind] = first  # a kernel without time namespaces
    return "" if found == FIRST else f"namespaces.{found['pid']}.{found['time']}"


def _record(fd: int) -> None:
    """Mark a folder as one of this process's namespaces."""
    if name := _namespaces():
        _remove(fd, name)
        _create(fd, name)


def _create(fd: int, name: str) -> None:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    posix.close(posix.open(name, flags, 0o644, dir_fd=fd))


def _is_for_us(fd: int, owner: int) -> bool:
    """Report whether a folder is for this process's namespaces, by a mark of its owner."""
    name = _namespaces()
    try:
        return not name or posix.stat(name, dir_fd=fd, follow_symlinks=False).st_uid == owner
    except OSError:
        return False


def _is_unknown(uid: int) -> bool:
    """Report whether a uid stands for all owners that this user namespace does not map."""
    return uid == NOBODY and not _has_every_id("self")


def all_in(fd: int) -> list[Lease]:
    """Return all leases of a folder, also those that do not count.

    The folder is read twice, because a hook may rename a lease during the first time; it does so
    once. Raises UnsafePathError if the folder has more than NAMES files.
    """
    leases: dict[str, Lease] = {}
    for _ in range(2):
        names = names_in(fd, NAMES)
        if names is None and posix.geteuid() == 0:
            _clean(fd)
            names = names_in(fd, NAMES)
        if names is None:
            raise UnsafePathError(f"the folder of leases has more than {NAMES} files", hint=FULL)
        for name in names:
            if lease := _lease(fd, name):
                leases.setdefault(name, lease)
    return list(leases.values())


def _clean(fd: int) -> None:
    """Remove all files except leases that count, after somebody has filled the folder."""
    for name in names_in(fd, 16 * NAMES) or ():
        lease = _lease(fd, name)
        if lease is None or not lease.counts:
            _remove(fd, name)
    _record(fd)


def _lease(fd: int, name: str) -> Lease | None:
    parts = name.split(".")
    if len(parts) != 4 or not (parts[1].isdigit() and len(parts[1]) < 10 and parts[1].isascii()):
        return None
    device, pid, start = parts[0], int(parts[1]), parts[2]
    try:
        status = posix.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    if status.st_mode & S_IFMT != S_IFREG:
        return None
    uid = status.st_uid
    counts = pid > 0 and start_of(pid) in (start, None) and (_is_unknown(uid) or _owns(uid, pid))
    return Lease(name, device, pid, uid, counts=counts)


def start_of(pid: int) -> str | None:
    """Return a process's start, in ticks since boot; "" if it has ended, None if it is hidden."""
    try:
        fields = read_bytes(f"{PROC}/{pid}/stat", 1 << 16).rpartition(b")")[2].split()
    except OSError:
        try:
            posix.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return None
    if fields[0] in (b"Z", b"X") and fields[17] in (b"0", b"1"):
        return ""  # an ended main thread stays a zombie until the others end
    return fields[19].decode()


def _start_of_container(pid: int) -> str:
    start = start_of(pid)
    if not start:
        why = "is hidden by the options of /proc" if start is None else "has ended"
        raise HostError(f"process {pid} of the container {why}", hint="start the container again")
    return start


def _owns(uid: int, pid: int) -> bool:
    """Report whether a process has a user's uid, or is in a user namespace that the user made."""
    try:
        if uid in (0, posix.stat(f"{PROC}/{pid}").st_uid):
            return True
    except OSError:
        return True  # hidden
    return not _has_every_id(pid) and _made_namespace(uid, pid)


def _made_namespace(uid: int, pid: int) -> bool:
    """Report whether a user made the user namespace of a process, or one around it.

    True if this process may not look. The ids that it maps prove nothing: root can map any.
    """
    import fcntl

    try:
        fd = posix.open(f"{PROC}/{pid}/ns/user", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return True
    try:
        while True:  # ioctl_ns(2)
            owner = fcntl.ioctl(fd, NS_GET_OWNER_UID, bytes(4))
            if int.from_bytes(owner, sys.byteorder) == uid:
                return True
            inner, fd = fd, fcntl.ioctl(fd, NS_GET_PARENT)
            posix.close(inner)
    except OSError:  # the outermost that this process may see
        return False
    finally:
        posix.close(fd)


def _has_every_id(process: int | str) -> bool:
    """Report whether a process is known to be in the initial user namespace."""
    try:
        return has_every_id(process, PROC)
    except OSError:
        return False


def counted(fd: int) -> set[str]:
    """Return the devices with a lease that counts; remove dead leases if this user may."""
    leases = all_in(fd)
    for lease in leases:
        if not lease.counts and posix.geteuid() in (0, lease.uid):
            _remove(fd, lease.name)
    return {lease.device for lease in leases if lease.counts}


def meet(one: str, other: str) -> bool:
    """Report whether devices are the same, or a GPU and a MIG device of it."""
    return one == other or one.startswith(f"{other}:") or other.startswith(f"{one}:")


def _remove(fd: int, name: str) -> None:
    for remove in (posix.unlink, posix.rmdir):
        try:
            remove(name, dir_fd=fd)
        except OSError:
            pass


def _name(device: str, pid: int, start: str) -> str:
    return f"{device}.{pid}.{start}.{posix.urandom(8).hex()}"


def claim(folder: str, want: Want, devices: list[str], pid: int) -> list[str]:
    """Lease as many of the devices as are wanted to a process, the first ones; return them.

    Raises HostError if others have just taken them, the process is hidden or has ended, or no
    lease can be made, and UnsafePathError as `open_folder`, `all_in`.
    """
    start = _start_of_container(pid)
    fd = open_folder(folder)
    deadline = time.monotonic() + RETRY_S
    try:
        while True:
            held = _try(fd, want.count, devices, pid, start)
            if len(held) == want.count:
                return list(held)
            for name in held.values():
                _remove(fd, name)
            if len(devices) < want.count or time.monotonic() > deadline:
                text = f"other containers have just taken the GPUs that were free for {want.word}"
                raise HostError(text, hint=HINT)
            time.sleep(PAUSE_S * posix.urandom(1)[0] / 255)
    finally:
        posix.close(fd)


def _try(fd: int, count: int, devices: list[str], pid: int, start: str) -> dict[str, str]:
    """Make leases until there are enough; return their names by device."""
    taken = counted(fd)
    held: dict[str, str] = {}
    for device in devices:
        if len(held) == count:
            break
        if any(meet(device, each) for each in taken):
            continue
        name = _name(device, pid, start)
        try:
            _create(fd, name)
        except OSError as error:
            text = f"no lease can be made in {paths.LEASE_DIR}: {error.strerror}"
            raise HostError(text, hint=FULL) from error
        if any(o.counts and meet(o.device, device) and o.name != name for o in all_in(fd)):
            _remove(fd, name)
        else:
            held[device] = name
    return held


def release(folder: str, pid: int) -> None:
    """End the leases of a process. Raises UnsafePathError as `open_folder`, `all_in`."""
    fd = open_folder(folder)
    try:
        for lease in all_in(fd):
            if lease.pid == pid and lease.uid == posix.geteuid():
                _remove(fd, lease.name)
    finally:
        posix.close(fd)


def add_hook(bundle: Bundle, folder: str, program: str, count: int) -> None:
    """Add the hook that gives the leases of this process to the container's first process."""
    holder = f"{posix.getpid()}.{start_of(posix.getpid())}"
    options = [f"--folder={folder}", f"--holder={holder}", f"--count={count}"]
    args = [program.rpartition("/")[2], "keep-leases", *options]
    entry = jsontext.dumps({"path": program, "args": args})
    bundle.document.append(("hooks", "createRuntime"), [entry])


def hand_over(folder: str, count: int, holder: str, pid: int) -> None:
    """Give all leases of a process, PID.START, to the container's first process.

    Raises HostError.
    """
    start = _start_of_container(pid)
    fd = open_folder(folder)
    try:
        own = [
            lease
            for lease in all_in(fd)
            if lease.uid == posix.geteuid() and lease.name.startswith(f"{lease.device}.{holder}.")
        ]
        if len(own) < count:
            text = f"{count - len(own)} of {count} leases in {folder} are gone"
            raise HostError(text, hint="start the container again")
        for lease in own:
            name = _name(lease.device, pid, start)
            posix.rename(lease.name, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        posix.close(fd)
