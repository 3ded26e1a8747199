# SPDX-License-Identifier: Apache-2.0
"""Hook disable-device-node-modification: covers the driver's params, so that it makes no nodes.

The driver's user space creates and changes /dev/nvidia* unless /proc/driver/nvidia/params contains
`ModifyDeviceFiles: 0`. The hook mounts a copy with this line over the file. The copy is a file in
the container that is unlinked after mounting, so no file is left and nobody can write to it. The
mount is read-only before it is attached. (The mount of the incumbent is writable: a bind mount
ignores MS_RDONLY until it is remounted.)
"""

from __future__ import annotations

import posix

from nvct.container.cdi_hook.context import Context
from nvct.errors import HostError, UnsafePathError
from nvct.linux import constants as c
from nvct.linux.files import read_bytes, temporary_name
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root

PARAMS = "/driver/nvidia/params"
TARGET = "/proc/driver/nvidia/params"
ON = "ModifyDeviceFiles: 1"
OFF = "ModifyDeviceFiles: 0"
LIMIT = 1 << 20
FOLDERS = ("/dev", "/run", "/tmp", "/")  # noqa: S108  in the container; O_EXCL, unlinked at once


def run(context: Context) -> None:
    """Mask the params file if the host's allows changes and the container has one.

    Raises HostError if mounting fails, UnsafePathError if the container has no regular file there.
    """
    try:
        data = read_bytes(context.proc_root + PARAMS, LIMIT)
    except FileNotFoundError:
        return
    masked = mask(data)
    if masked is None:
        return
    root = context.mounts()
    target = root.path_fd(TARGET, write=True)
    if target is None:
        return
    try:
        if posix.fstat(target).st_mode & c.S_IFMT != c.S_IFREG:
            raise UnsafePathError(f"{TARGET} in the container is not a regular file")
        if root.read_file(TARGET, LIMIT) != masked:
            _cover(context.kernel, root, target, masked)
    finally:
        posix.close(target)


def mask(data: bytes) -> bytes | None:
    """Return the params with modification of device files disabled; None if it already is."""
    on, off = ON.encode(), OFF.encode()
    lines = data.split(b"\n")
    if on not in lines:
        return None
    return b"\n".join(off if line == on else line for line in lines)


def _cover(kernel: Kernel, root: Root, target: int, data: bytes) -> None:
    folder, name, source = _make_file(kernel, root)
    try:
        kernel.fchmod(source, 0o444)
        while data:
            data = data[kernel.write(source, data) :]
        status = posix.fstat(source)
        from nvct.container.cdi_hook import mount_over

        try:
            mount_over.attach(kernel, root, source, target, TARGET, no_exec=True)
        except OSError as error:
            raise HostError(
                f"cannot mount over {TARGET} in the container: {error.strerror}",
                hint="remove disable-device-node-modification from the spec to go without it",
            ) from error
    finally:
        kernel.close(source)
        kernel.unlink(name, dir_fd=folder)
        kernel.close(folder)
    _check(root, status.st_dev, status.st_ino)


def _make_file(kernel: Kernel, root: Root) -> tuple[int, str, int]:
    """Make a file in the container; return its folder, its name and a writable descriptor."""
    refused: OSError | None = None
    for path in FOLDERS:
        try:
            folder = root.dir_fd(path)
        except UnsafePathError:  # a link into a volume
            continue
        except OSError as error:
            refused = error
            continue
        name = temporary_name()
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW
        try:
            fd = kernel.open(name, flags, 0o600, dir_fd=folder)
        except OSError as error:  # read-only, or a folder of another user
            kernel.close(folder)
            refused = error
            continue
        return folder, name, fd
    reason = refused.strerror if refused else "no folder"
    raise HostError(f"no file can be made in the container to mount over {TARGET}: {reason}")


def _check(root: Root, device: int, inode: int) -> None:
    """Verify that the container sees our file, mounted read-only."""
    fd = root.path_fd(TARGET)
    if fd is None:
        raise UnsafePathError(f"{TARGET} in the container vanished")
    try:
        status = posix.fstat(fd)
        if (status.st_dev, status.st_ino) != (device, inode):
            raise UnsafePathError(f"{TARGET} in the container changed while it was mounted over")
        if not posix.fstatvfs(fd).f_flag & c.ST_RDONLY:
            raise HostError(f"the mount over {TARGET} in the container is not read-only")
    finally:
        posix.close(fd)
