# SPDX-License-Identifier: Apache-2.0
"""What is at a path, file, link or device node: to compare it, to record it, and to put it back.

Contract: `put` is atomic. A reader sees the old state or the new one, and a killed `put` leaves at
most one `.nvct-*` file beside the path.
"""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import asdict, dataclass

from nvct.engine import journal as journals
from nvct.errors import HostError
from nvct.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.linux.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """What is at a path.

    Attributes:
        mode: type and permissions as in st_mode; 0 if nothing is there.
        rdev: the numbers of a device node.
        data: the content of a file, the target of a link.
    """

    mode: int = 0
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    data: bytes = b""

    @property
    def is_node(self) -> bool:
        """Whether it is the node of a character device."""
        return stat.S_ISCHR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    def to_dict(self) -> dict[str, object]:
        """Return the state as JSON has it."""
        return {**asdict(self), "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> PathState:
        """Return the state that `to_dict` wrote.

        Raises:
            ValueError: it is none.
        """
        numbers = {
            name: journals.member(document, name, int) for name in ("mode", "uid", "gid", "rdev")
        }
        data = base64.b64decode(journals.member(document, "data", str), validate=True)
        return cls(data=data, **numbers)


ABSENT = PathState()


def state_of(path: str) -> PathState:
    """Return what is at a path; links are not followed.

    Raises:
        HostError: it cannot be read.
        DocumentError: it is a file of more than 64 MiB.
    """
    data = b""
    try:
        status = files.lstat_or_none(path, None)
        if status is None:
            return ABSENT
        if stat.S_ISLNK(status.st_mode):
            data = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            data = files.read_bytes(path)
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}") from error
    return PathState(
        mode=status.st_mode, uid=status.st_uid, gid=status.st_gid, rdev=status.st_rdev, data=data
    )


def identity(path: str) -> str:
    """Return what tells a node or link from a later one with the same name and numbers."""
    status = files.lstat_or_none(path, None)
    return f"{status.st_ino}:{status.st_ctime_ns}" if status else ""


def put(path: str, state: PathState, kernel: Kernel) -> None:
    """Make a path what `state` says.

    Raises:
        OSError: the path is unchanged.
    """
    if state == ABSENT:
        journals.remove(path, kernel)
        return
    folder, name = files.split(path)
    dir_fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        aside = _make_aside(dir_fd, state, kernel)
        try:
            kernel.rename(aside, name, source_dir_fd=dir_fd, target_dir_fd=dir_fd)
        except BaseException:
            files.discard(aside, dir_fd, kernel)
            raise
        kernel.fsync(dir_fd)
    finally:
        kernel.close(dir_fd)


def _make_aside(dir_fd: int, state: PathState, kernel: Kernel) -> str:
    """Make a file, link or node with a temporary name; return the name."""
    permissions = stat.S_IMODE(state.mode)
    owner = (state.uid, state.gid)
    if state.is_file:
        return files.write_temporary(
            dir_fd, state.data, permissions, owner=owner, sync=True, kernel=kernel
        )
    aside = files.temporary_name()
    if stat.S_ISLNK(state.mode):
        kernel.symlink(os.fsdecode(state.data), aside, dir_fd=dir_fd)
    else:
        kernel.mknod(aside, stat.S_IFMT(state.mode), state.rdev, dir_fd=dir_fd)
    try:
        kernel.lchown(aside, *owner, dir_fd=dir_fd)
        if not stat.S_ISLNK(state.mode):
            kernel.chmod(aside, permissions, dir_fd=dir_fd)
    except BaseException:
        files.discard(aside, dir_fd, kernel)
        raise
    return aside
