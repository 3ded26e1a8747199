# SPDX-License-Identifier: Apache-2.0
"""The namespaces and the root of a live container, and how to enter them.

The hook enters them before the container's own process starts. The mount namespace exists, the
root is still a folder in it (the runtime pivots later), and /proc is the host's. The hook also
joins the container's user namespace: new files then belong to the container's root user, and the
hook has no host privileges any more.
"""

from __future__ import annotations

import posix

from nvct.errors import BundleError, DocumentError, HostError
from nvct.linux import constants as c
from nvct.linux.files import read_all
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root
from nvct.oci.bundle import Bundle

PROC = "/proc"
LIMIT = 64 << 20
ENDED = "has the container's process ended?"
HOST = "1"  # The process with the mounts of the host, or of the container that the engine runs in


class Process:
    """A process that is opened by its PID (or "self") once.

    The kernel reuses the PID of an ended process. /proc/PID is opened once, and its files by that
    descriptor: their content belongs to that process, or the kernel returns ESRCH. HostError if
    /proc/PID cannot be opened.
    """

    __slots__ = ("_fd", "_pidfd", "pid")

    def __init__(self, pid: int | str, proc: str = PROC) -> None:
        self.pid = pid
        self._pidfd = -1
        try:
            self._fd = posix.open(f"{proc}/{pid}", posix.O_PATH | posix.O_DIRECTORY)
        except OSError as error:
            raise HostError(
                f"{proc}/{pid} cannot be opened: {error.strerror}", hint=ENDED
            ) from error

    def hold(self) -> None:
        """Check that the process has this PID in our PID namespace, and hold a pidfd.

        The fdinfo of a pidfd has the PID of the process in the PID namespace of the procfs (since
        Linux 5.3). Without pidfd_open (old kernel, seccomp filter) there is no check. Raises
        HostError if the process has ended, or /proc belongs to another PID namespace.
        """
        open_pidfd = getattr(posix, "pidfd_open", None)
        if open_pidfd is None or not isinstance(self.pid, int):
            return
        try:
            self._pidfd = open_pidfd(self.pid)
        except ProcessLookupError as error:
            raise HostError(f"there is no process {self.pid}", hint=ENDED) from error
        except OSError:  # ENOSYS before Linux 5.3, EPERM from a seccomp filter
            return
        with_fd = f"self/fdinfo/{self._pidfd}"
        self._check_number(_read(posix.open(f"{PROC}/{with_fd}", posix.O_RDONLY)))
        self.read("stat")  # both are alive with the same PID, so they are one process

    def _check_number(self, fdinfo: bytes) -> None:
        shown = fdinfo.partition(b"\nPid:")[2].split(None, 1)[:1]
        if shown == [b"-1"]:
            raise HostError(f"process {self.pid} has ended", hint=ENDED)
        if shown and shown != [str(self.pid).encode()]:
            raise HostError(
                f"{PROC} does not show process {self.pid}: it belongs to another PID namespace",
                hint="mount -t proc proc /proc where the container runtime runs",
            )

    def open(self, name: str) -> int:
        """Open one of the process's files; OSError, ESRCH if the process has ended."""
        return posix.open(name, posix.O_RDONLY, dir_fd=self._fd)

    def read(self, name: str) -> bytes:
        """Read one of the process's files. Raises HostError if the file cannot be read."""
        try:
            return _read(self.open(name))
        except OSError as error:
            raise HostError(
                f"{name} of process {self.pid} cannot be read: {error.strerror}", hint=ENDED
            ) from error

    def close(self) -> None:
        """Close the descriptors of the process."""
        for fd in (self._fd, self._pidfd):
            if fd >= 0:
                posix.close(fd)
        self._fd = self._pidfd = -1


def _read(fd: int) -> bytes:
    try:
        data = read_all(fd, 0, LIMIT)
    finally:
        posix.close(fd)
    if data is None:
        raise DocumentError(f"a file of procfs is larger than {LIMIT} bytes")
    return data


class Container:
    """A container that has not started yet.

    Raises HostError if the process is gone, or its mount namespace is the host's or ours.
    """

    __slots__ = ("_mount_fd", "_user_fd", "pid", "process", "rootfs", "userns")

    def __init__(
        self, pid: int, rootfs: str, proc: str = "/proc", *, process: Process | None = None
    ) -> None:
        self.pid = pid
        self.rootfs = rootfs  # absolute path of its root in its mount namespace, before the pivot
        self._user_fd = self._mount_fd = -1
        self.process: Process | None = process or Process(pid, proc)
        try:
            self._mount_fd = _namespace(self.process, "mnt")
            self._refuse_host_mounts(self.process, proc)
            self._user_fd = _namespace(self.process, "user")
        except BaseException:
            self.close()
            raise
        # whether its user namespace is not that of this process
        self.userns = not _is_of("self", self._user_fd, proc, "user")

    def _refuse_host_mounts(self, process: Process, proc: str) -> None:
        if self._has_host_mounts(process, proc):
            raise HostError(
                f"process {self.pid} has no mount namespace of its own",
                hint="a hook would change the host",
            )

    def _has_host_mounts(self, process: Process, proc: str) -> bool:
        """Report whether a process has the mount namespace of this process or of the host.

        The caller of the hook may itself have left the host's mount namespace (unshare -m, an
        engine's PrivateMounts=), which is that of process 1. Without CAP_SYS_PTRACE the namespace
        of process 1 is unreadable. But a runtime mounts something below a container's root before
        it calls a hook, and only the container's mount namespace shows that mount.
        """
        if _is_of("self", self._mount_fd, proc, "mnt"):
            return True
        try:
            return _is_of(HOST, self._mount_fd, proc, "mnt")
        except OSError:
            if is_rootless(proc):
                return False  # rootless: it cannot enter the host's mount namespace
        below = _resolved(self.rootfs, proc).rstrip("/") + "/"
        own_process = Process("self", proc)
        own_targets = _targets(own_process)
        own_process.close()
        return not any(
            target.startswith(below) and target not in own_targets for target in _targets(process)
        )

    def close(self) -> None:
        """Close the namespaces and the process."""
        if self.process is not None:
            self.process.close()
            self.process = None
        for fd in (self._mount_fd, self._user_fd):
            if fd >= 0:
                posix.close(fd)
        self._mount_fd = self._user_fd = -1

    def enter(self, kernel: Kernel) -> Root:
        """Enter the namespaces for good; return the root. HostError, UnsafePathError."""
        try:
            kernel.setns(self._mount_fd, c.CLONE_NEWNS)
        except OSError as error:
            raise HostError(
                f"the mount namespace of process {self.pid} cannot be entered: {error.strerror}",
                hint="a prestart hook needs CAP_SYS_ADMIN",
            ) from error
        # As the host's root user: other users may lack access to the parent folders.
        root = Root.of_container(self.rootfs)
        if self.userns:
            self._become_its_root(kernel)
        return root

    def _become_its_root(self, kernel: Kernel) -> None:
        try:
            kernel.setns(self._user_fd, c.CLONE_NEWUSER)
            posix.setresgid(0, 0, 0)
            posix.setresuid(0, 0, 0)
            kernel.set_dumpable()
        except OSError as error:
            raise HostError(
                f"the user namespace of process {self.pid} cannot be entered: {error.strerror}",
                hint="the namespace must map user 0",
            ) from error


def rootfs_of(bundle: Bundle, folder: str) -> str:
    """Return the path of a root, which may be relative to the bundle; BundleError without one."""
    path = bundle.document.value(("root", "path"))
    if not isinstance(path, str) or not path:
        raise BundleError(f"{bundle.path} has no root.path")
    return path if path.startswith("/") else f"{folder}/{path}"


def is_rootless(proc: str = "/proc") -> bool:
    """Report whether this user namespace lacks users of the host and so can change no cgroup."""
    from nvct.linux.files import has_every_id

    try:
        return not has_every_id(proc=proc)
    except FileNotFoundError:  # a kernel without user namespaces
        return False


def _namespace(process: Process, kind: str) -> int:
    try:
        return process.open(f"ns/{kind}")
    except OSError as error:
        raise HostError(
            f"the {kind} namespace of process {process.pid} cannot be opened: {error.strerror}",
            hint=ENDED,
        ) from error


def _is_of(pid: str, fd: int, proc: str, kind: str) -> bool:
    status, namespace = posix.fstat(fd), posix.stat(f"{proc}/{pid}/ns/{kind}")
    return (status.st_dev, status.st_ino) == (namespace.st_dev, namespace.st_ino)


def _resolved(path: str, proc: str) -> str:
    """Return a folder's path without symbolic links, as mountinfo shows it."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY)
    except OSError:
        return path
    try:
        return posix.readlink(f"{proc}/self/fd/{fd}")
    except OSError:
        return path
    finally:
        posix.close(fd)


def _targets(process: Process) -> set[str]:
    from nvct.linux import mountinfo

    text = process.read("mountinfo").decode("utf-8", "surrogateescape")
    return {mount.target for mount in mountinfo.parse(text)}
