# SPDX-License-Identifier: Apache-2.0
"""All system calls that change something.

One method per system call, with its name and without logic. Every OSError has the path, or both
paths. `tests/support/recording_kernel.py` has a subclass that also records the calls.

Descriptors are close-on-exec throughout. Paths are str as Python decodes file names.
"""

from __future__ import annotations

import posix

from nvct.linux import constants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.syscall import Argument


class Kernel:
    """Makes the system calls. It has no state; use the instance `KERNEL`."""

    __slots__ = ()

    # Files. posix adds O_CLOEXEC to every open (PEP 446).

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file; relative paths start at `dir_fd`."""
        return posix.open(path, flags, mode, dir_fd=dir_fd)

    def reopen(self, fd: int, flags: int) -> int:
        """Open the file of a descriptor, for example an O_PATH one, again by its magic link.

        No name is resolved again, so there is no race. Where /proc is possibly not a procfs, the
        caller must compare device and inode, as `Root` does.
        """
        return posix.open(f"/proc/self/fd/{fd}", flags)

    def mount_id(self, fd: int) -> bytes:
        """Return the mount id of a descriptor, from fdinfo: statx has it only since Linux 5.8."""
        info = posix.open(f"/proc/self/fdinfo/{fd}", posix.O_RDONLY)
        try:
            return posix.read(info, 4096).partition(b"mnt_id:")[2].partition(b"\n")[0]
        finally:
            posix.close(info)

    def read(self, fd: int, length: int) -> bytes:
        """Read up to `length` bytes."""
        return posix.read(fd, length)

    def write(self, fd: int, data: bytes) -> int:
        """Write data, possibly only its first bytes; return the number of bytes written."""
        return posix.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Wait until a file or folder is on the disk."""
        posix.fsync(fd)

    def clone_file(self, source_fd: int, target_fd: int) -> None:
        """Share all data of another file, copy on write (FICLONE)."""
        from fcntl import ioctl  # only to build a farm view

        ioctl(target_fd, constants.FICLONE, source_fd)

    def fchmod(self, fd: int, mode: int) -> None:
        """Set the mode of an open file; the kernel refuses an O_PATH descriptor."""
        posix.fchmod(fd, mode)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        """Set owner and group of an open file; -1 leaves the owner or the group as it is."""
        posix.fchown(fd, uid, gid)

    def chmod(self, path: str, mode: int, *, dir_fd: int | None = None) -> None:
        """Set the mode of a path, links followed."""
        posix.chmod(path, mode, dir_fd=dir_fd)

    def lchown(self, path: str, uid: int, gid: int, *, dir_fd: int | None = None) -> None:
        """Set owner and group of a path, links not followed; -1 as in `fchown`."""
        posix.chown(path, uid, gid, dir_fd=dir_fd, follow_symlinks=False)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        posix.close(fd)

    # Names.

    def rename(
        self,
        source: str,
        target: str,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        """Rename a file; an existing target is replaced."""
        posix.rename(source, target, src_dir_fd=source_dir_fd, dst_dir_fd=target_dir_fd)

    def link(
        self,
        source: str,
        target: str,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        """Make a hard link; a symbolic link at `source` is not followed."""
        posix.link(
            source,
            target,
            src_dir_fd=source_dir_fd,
            dst_dir_fd=target_dir_fd,
            follow_symlinks=False,
        )

    def link_open_file(self, fd: int, target: str, *, dir_fd: int | None = None) -> None:
        """Link an open file without a name (O_TMPFILE)."""
        posix.link(f"/proc/self/fd/{fd}", target, dst_dir_fd=dir_fd, follow_symlinks=True)

    def symlink(self, target: str, path: str, *, dir_fd: int | None = None) -> None:
        """Make a symbolic link at `path` with the text `target`."""
        posix.symlink(target, path, dir_fd=dir_fd)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """Remove a name; the kernel refuses a directory."""
        posix.unlink(path, dir_fd=dir_fd)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Make a directory; the umask applies to the mode."""
        posix.mkdir(path, mode, dir_fd=dir_fd)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        """Remove an empty directory."""
        posix.rmdir(path, dir_fd=dir_fd)

    def mknod(self, path: str, mode: int, device: int = 0, *, dir_fd: int | None = None) -> None:
        """Make a device node, FIFO or socket; `device` is posix.makedev(major, minor)."""
        posix.mknod(path, mode, device, dir_fd=dir_fd)

    # Mounts and namespaces.

    def mount(
        self,
        source: str | None,
        target: str,
        fstype: str | None = None,
        flags: int = 0,
        data: str | None = None,
    ) -> None:
        """Attach a file system, bind a tree, or change a mount."""
        call("mount", source, target, fstype, flags, data, about=target, other=source)

    def umount2(self, target: str, flags: int = 0) -> None:
        """Detach a file system."""
        call("umount2", target, flags, about=target)

    def open_tree(self, dir_fd: int, path: str, flags: int) -> int:
        """Open a mount, or with OPEN_TREE_CLONE a detached copy. Linux 5.2."""
        return call("open_tree", dir_fd, path, flags | constants.OPEN_TREE_CLOEXEC, about=path)

    def move_mount(
        self, from_dir_fd: int, from_path: str, to_dir_fd: int, to_path: str, flags: int
    ) -> None:
        """Attach a detached mount, or move a mount; empty paths need MOVE_MOUNT_*_EMPTY_PATH."""
        source, target = (from_dir_fd, from_path), (to_dir_fd, to_path)
        call("move_mount", *source, *target, flags, about=to_path, other=from_path or None)

    def mount_setattr(
        self,
        dir_fd: int,
        path: str,
        flags: int,
        *,
        attr_set: int = 0,
        propagation: int = 0,
        userns_fd: int = 0,
    ) -> None:
        """Change the attributes of a mount; with AT_RECURSIVE, of a whole tree. Linux 5.12."""
        attr = _pack("QQQQ", attr_set, 0, propagation, userns_fd)
        call("mount_setattr", dir_fd, path, flags, attr, len(attr), about=path)

    def setns(self, fd: int, nstype: int) -> None:
        """Enter a namespace."""
        call("setns", fd, nstype, about=f"/proc/self/fd/{fd}")

    def unshare(self, flags: int) -> None:
        """Move this process into new namespaces, selected by CLONE_* flags."""
        call("unshare", flags)

    def set_effective_ids(self, uid: int, gid: int) -> None:
        """Set effective uid and gid, also back to root; supplementary groups stay."""
        if posix.geteuid() == 0:
            posix.setegid(gid)
            posix.seteuid(uid)
        else:
            posix.seteuid(uid)
            posix.setegid(gid)

    def set_dumpable(self) -> None:
        """Restore access to this process's own /proc files, which a change of ids removes."""
        call("prctl", constants.PR_SET_DUMPABLE, 1, 0, 0, 0)

    def fchdir(self, fd: int) -> None:
        """Make an open directory the working directory."""
        posix.fchdir(fd)


def call(
    name: str, *args: str | Argument, about: str | None = None, other: str | None = None
) -> int:
    """Make a system call that `posix` lacks; OSError has the paths `about` and `other`."""
    from nvct.linux import syscall  # 0.1 ms; only for mounts

    encoded = [_encode(arg) if isinstance(arg, str) else arg for arg in args]
    try:
        return syscall.syscall(syscall.number(name), *encoded)
    except OSError as error:
        code, text = error.errno or 0, error.strerror or ""
    raise OSError(code, text, about, None, other)


def _encode(path: str) -> bytes:
    """Return a path as bytes, as `os.fsencode` does."""
    if "\0" in path:
        raise ValueError("embedded null byte")  # as posix does; never truncate a path
    import sys

    return path.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


def _pack(layout: str, *values: int) -> bytes:
    from _struct import pack  # up to 0.1 ms; only for mounts

    return pack(layout, *values)


KERNEL = Kernel()
