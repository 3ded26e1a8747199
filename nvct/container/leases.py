# SPDX-License-Identifier: Apache-2.0
"""Leases of GPUs: which devices containers hold that asked for any free one (free:N).

Hot; loaded only for that word. A lease is an empty file in a sticky folder in which every user can
make files: DEVICE.PID.START.NONCE, the device's UUID, a process and its start time in clock ticks
since boot (field 22 of proc_pid_stat(5)). It counts while a thread of that process lives, if the
process belongs to the owner of the file; root's files are believed. So a lease ends with its
process, nobody can remove or rename that of another user, and none can be made for another's
process. Nobody can make a name in the way: the nonce is random.

There is no lock, which a user could keep. Whoever wants a device makes the file, then looks: if
another lease of the device counts, he removes his own and goes on to the next device. So two never
keep one device; if they meet, both may give way, and both try again after a random time.

In a user namespace owners outside of it have no number. Such a lease counts while its process
lives. Without a view of a process (hidepid of proc(5)) a lease counts while its number is in use.
"""

from __future__ import annotations

import posix
import sys
import time

from nvct import paths
from nvct.errors import HostError, UnsafePathError
from nvct.linux.walk import names_in
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import stat_result

    from nvct.container.request.model import Want
    from nvct.oci.bundle import Bundle

PROC = "/proc"
NAMES = 4096
CLEANED = 16 * NAMES
MODE = 0o1777
S_IFMT, S_IFREG = 0o170000, 0o100000
ALL_IDS = 1 << 32
NOBODY = 65534
"""The owner of what has no owner in a user namespace."""
NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704
RETRY_S = 1.0
PAUSE_S = 0.05
ENDED = (b"Z", b"X")
HOOK = "keep-leases"
HINT = "nvct ps --free shows them"


class Lease:
    """A file of the folder.

    Attributes:
        device: UUID of a GPU or MIG device.
        pid: of the process that keeps it.
        counts: whether that process lives and belongs to the owner of the file.
        uid: of the file's owner.
    """

    __slots__ = ("counts", "device", "name", "pid", "uid")

    def __init__(self, name: str, device: str, pid: int, uid: int, *, counts: bool) -> None:
        self.name = name
        self.device = device
        self.pid = pid
        self.uid = uid
        self.counts = counts


def folder_of(env: Mapping[str, str]) -> str:
    """Return the path of the folder: the host's, or one beside the run directory of a test."""
    run_dir = env.get(paths.RUN_DIR_ENV)
    return f"{run_dir}-leases" if run_dir else paths.LEASE_DIR


def open_folder(path: str, *, create: bool = True) -> int:
    """Return a descriptor of the folder; with `create`, root makes it if it is missing.

    Raises:
        HostError: it is missing.
        UnsafePathError: others could remove or rename files of other users there.
    """
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        fd = posix.open(path, flags)
    except FileNotFoundError as error:
        if not create:
            raise HostError(
                f"{path}, where leases of free GPUs are, is missing",
                hint=f"as root: install -d -m 1777 {path}",
            ) from error
        fd = _made(path, flags)
    except OSError as error:
        raise UnsafePathError(f"{path} is no folder: {error.strerror}") from error
    status = posix.fstat(fd)
    if create and status.st_uid == posix.geteuid() == 0 and not status.st_mode & 0o022:
        posix.fchmod(fd, MODE)  # what systemd leaves where it has unmounted the folder
        status = posix.fstat(fd)
    if status.st_mode & MODE != MODE or not _is_roots(status):
        posix.close(fd)
        raise UnsafePathError(
            f"{path} belongs to uid {status.st_uid} with mode {status.st_mode & 0o7777:o}",
            hint=f"as root: rm -r {path}; install -d -m 1777 {path}",
        )
    return fd


def _made(path: str, flags: int) -> int:
    """Make the folder and open it; another process may be faster."""
    try:
        try:
            posix.mkdir(path, 0o700)
        except FileExistsError:
            pass
        fd = posix.open(path, flags)
        if posix.fstat(fd).st_uid == posix.geteuid():
            posix.fchmod(fd, MODE)
        return fd
    except OSError as error:
        raise HostError(
            f"{path}, where leases of free GPUs are, cannot be made: {error.strerror}",
            hint=f"as root: install -d -m 1777 {path}",
        ) from error


def _is_roots(status: stat_result) -> bool:
    """Report whether a folder belongs to root, to this user, or to nobody of this namespace."""
    return status.st_uid in (0, posix.geteuid()) or _ids("self") != [[0, 0, ALL_IDS - 1]]


def all_in(fd: int) -> list[Lease]:
    """Return all leases of a folder, also those that do not count.

    It looks twice: a hook may rename a lease during the first look, once in its life.

    Raises:
        UnsafePathError: it has more than NAMES files.
    """
    inside = _ids("self") != [[0, 0, ALL_IDS - 1]]
    leases: dict[str, Lease] = {}
    for _ in range(2):
        names = names_in(fd, NAMES)
        if names is None and posix.geteuid() == 0:
            _clean(fd, inside=inside)
            names = names_in(fd, NAMES)
        if names is None:
            raise UnsafePathError(
                f"the folder of leases has more than {NAMES} files",
                hint=f"as root: ls -l {paths.LEASE_DIR} shows whose; remove them",
            )
        for name in names:
            lease = _lease(fd, name, inside=inside)
            if lease is not None:
                leases.setdefault(name, lease)
    return list(leases.values())


def _clean(fd: int, *, inside: bool) -> None:
    """Remove what is no lease that counts, after somebody has filled the folder."""
    for name in names_in(fd, CLEANED) or ():
        lease = _lease(fd, name, inside=inside)
        if lease is None or not lease.counts:
            _remove(fd, name)


def _lease(fd: int, name: str, *, inside: bool) -> Lease | None:
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
    is_unknown = inside and status.st_uid == NOBODY
    counts = pid > 0 and _lives(pid, start) and (is_unknown or _owns(status.st_uid, pid))
    return Lease(name, device, pid, status.st_uid, counts=counts)


def _lives(pid: int, start: str) -> bool:
    since = start_of(pid)
    if since:
        return since == start
    try:
        posix.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    try:
        posix.stat(f"{PROC}/{pid}")
    except OSError:
        return True  # hidden
    return False  # it waits for its parent


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; "" if it is not seen."""
    from nvct.linux.files import read_bytes

    try:
        fields = read_bytes(f"{PROC}/{pid}/stat", 1 << 16).rpartition(b")")[2].split()
    except OSError:
        return ""
    if len(fields) < 20 or (fields[0] in ENDED and fields[17] in (b"0", b"1")):
        return ""  # a first thread that has ended waits for the others
    return fields[19].decode()


def _owns(uid: int, pid: int) -> bool:
    """Report whether a process belongs to a user: by its uid or by its user namespace."""
    if uid == 0:
        return True
    try:
        if posix.stat(f"{PROC}/{pid}").st_uid == uid:
            return True
    except OSError:
        return True  # hidden
    ids = _ids(pid)
    if any(first <= uid < first + count < ALL_IDS - 1 for _, first, count in ids):
        return True
    return ids != [[0, 0, ALL_IDS - 1]] and _made_namespace(uid, pid)


def _made_namespace(uid: int, pid: int) -> bool:
    """Report whether a user made the user namespace of a process, or one around it.

    Who may not look, as another user, believes it.
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
    except OSError:  # it is the outermost that we may see
        return False
    finally:
        posix.close(fd)


def _ids(process: int | str) -> list[list[int]]:
    """Return the uid map of a process's user namespace; [] if it is not known."""
    from nvct.linux.files import read_bytes

    try:
        lines = read_bytes(f"{PROC}/{process}/uid_map", 1 << 16).decode().splitlines()
        return [[int(word) for word in line.split()] for line in lines]
    except (OSError, ValueError):
        return []


def counted(fd: int) -> set[str]:
    """Return the devices with a lease that counts; remove leases of ended processes, if we may."""
    leases = all_in(fd)
    for lease in leases:
        if not lease.counts and posix.geteuid() in (0, lease.uid):
            _remove(fd, lease.name)
    return {lease.device for lease in leases if lease.counts}


def _remove(fd: int, name: str) -> None:
    for remove in (posix.unlink, posix.rmdir):
        try:
            remove(name, dir_fd=fd)
        except OSError:
            continue
        return


def _name(device: str, pid: int, start: str) -> str:
    return f"{device}.{pid}.{start}.{posix.urandom(8).hex()}"


def claim(folder: str, want: Want, devices: list[str], pid: int) -> list[str]:
    """Return as many of the devices as are wanted, each with a lease of the process.

    Args:
        devices: UUIDs of those that nobody uses, the best first.

    Raises:
        HostError: others have taken too many of them meanwhile, the process has ended, or no lease
            can be made.
        UnsafePathError: as `open_folder`, `all_in`.
    """
    start = start_of(pid)
    if not start:
        raise HostError(f"process {pid} of the container has ended", hint="start it again")
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
                raise HostError(
                    f"other containers have just got the GPUs that {want.word} would have got",
                    hint=HINT,
                )
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
        if device in taken:
            continue
        name = _name(device, pid, start)
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            posix.close(posix.open(name, flags, 0o644, dir_fd=fd))
        except OSError as error:
            raise HostError(
                f"no lease can be made in {paths.LEASE_DIR}: {error.strerror}",
                hint="as root: ls -lR shows whose files fill it; remove them",
            ) from error
        if any(o.counts and o.device == device and o.name != name for o in all_in(fd)):
            _remove(fd, name)
        else:
            held[device] = name
    return held


def release(folder: str, pid: int) -> None:
    """End the leases of a process.

    Raises:
        UnsafePathError: as `open_folder`, `all_in`.
    """
    fd = open_folder(folder)
    try:
        for lease in all_in(fd):
            if lease.pid == pid and lease.uid == posix.geteuid():
                _remove(fd, lease.name)
    finally:
        posix.close(fd)


def add_hook(bundle: Bundle, folder: str, program: str, devices: list[str]) -> None:
    """Add the hook that gives the leases of this process to the container's first one."""
    holder = f"{posix.getpid()}.{start_of(posix.getpid())}"
    args = [program.rpartition("/")[2], HOOK, f"--folder={folder}", f"--holder={holder}"]
    entry = {"path": program, "args": args + [f"--device={device}" for device in devices]}
    bundle.document.append(("hooks", "createRuntime"), [jsontext.dumps(entry)])


def hand_over(folder: str, devices: list[str], holder: str, pid: int) -> None:
    """Give leases of a process, PID.START, to the container's first process.

    Raises:
        HostError: a lease is gone, or the process has ended.
    """
    start = start_of(pid)
    if not start:
        raise HostError(f"process {pid} of the container has ended", hint="start it again")
    fd = open_folder(folder)
    try:
        own = {
            lease.device: lease.name
            for lease in all_in(fd)
            if lease.uid == posix.geteuid() and lease.name.startswith(f"{lease.device}.{holder}.")
        }
        for device in devices:
            if device not in own:
                raise HostError(f"the lease of {device} is gone", hint="start it again")
            name = _name(device, pid, start)
            posix.rename(own[device], name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        posix.close(fd)
