# SPDX-License-Identifier: Apache-2.0
"""The path walk of `root`: symlinks stay in it; a descriptor for each directory. See its rules."""

from __future__ import annotations

import errno
import posix

from nvct.errors import HostError, UnsafePathError
from nvct.linux.files import lstat_or_none
from nvct.linux.kernel import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Budget(Protocol):
        """An object with the remaining steps of several walks."""

        steps_left: int

    from os import _ScandirIterator as ScandirIterator
    from os import stat_result

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel

LINK_LIMIT = 40  # the kernel's MAXSYMLINKS
DEPTH_LIMIT = 256  # each level has an open descriptor; their usual limit is 1024
STEP_LIMIT = 512  # 40 links of 4095 bytes each could name 80000 components
TEXT_STEP = 256  # bytes of link text that cost as much as a component

ABSENT = (FileNotFoundError, NotADirectoryError)
DIRECTORY, FOLLOW, NOFOLLOW, EXISTING = range(4)


class Location:
    """The position of a walk: open directories from the root down, and a last name.

    `leaf` is "" if the path is the directory itself; `missing` has the components that do not
    exist, in an EXISTING walk. The context manager closes all descriptors and adds the whole path
    to OSErrors.
    """

    __slots__ = (
        "budget", "fds", "label", "leaf", "missing", "mounts", "names", "path", "root_fd",
    )  # fmt: skip

    def __init__(
        self,
        root_fd: int,
        path: str,
        label: str,
        *,
        write: bool = False,
        budget: Budget | None = None,
    ) -> None:
        self.root_fd = root_fd
        self.budget = budget
        self.path = path
        self.label = label
        self.fds: list[int] = []
        self.names: list[str] = []
        self.leaf = ""
        self.missing: list[str] = []
        self.mounts: set[bytes] | None = set() if write else None

    @property
    def dir_fd(self) -> int:
        """The descriptor of the directory with the last name; this object closes it."""
        return self.fds[-1] if self.fds else self.root_fd

    def take(self) -> int:
        """Return the descriptor of the directory; the caller closes it."""
        return self.fds.pop() if self.fds else posix.dup(self.root_fd)

    def up(self) -> None:
        """Return to the previous directory, but not above the root."""
        if self.fds:
            self.names.pop()
            posix.close(self.fds.pop())

    def down(self, name: str, fd: int) -> None:
        """Continue in an open directory."""
        self.fds.append(fd)
        self.names.append(name)
        if len(self.fds) > DEPTH_LIMIT:
            raise self.unsafe(f"lies more than {DEPTH_LIMIT} directories deep")

    def restart(self) -> None:
        """Return to the root."""
        self.names.clear()
        while self.fds:
            posix.close(self.fds.pop())

    def linked(self) -> None:
        """Record the mount that holds a link, for `check_mount`."""
        if self.mounts is not None:
            self.mounts.add(KERNEL.mount_id(self.dir_fd))

    def check_mount(self) -> None:
        """Before a write, raise UnsafePathError if a link led from one mount into another.

        A volume at the path itself is allowed. A volume behind a link of the image is not, because
        the container's own user possibly has no right to write to it.
        """
        if self.mounts and self.mounts != {KERNEL.mount_id(self.dir_fd)}:
            raise self.unsafe("leads by a symbolic link into another mount")

    def status(self) -> stat_result | None:
        """Return the current status of the last name, links not followed; None if absent."""
        if not self.leaf:
            return posix.stat(self.dir_fd)
        return lstat_or_none(self.leaf, self.dir_fd)

    def shown(self) -> str:
        """Return the position as a path inside the root, without links."""
        return "/" + "/".join([*self.names, *filter(None, [self.leaf]), *self.missing])

    def unsafe(self, problem: str) -> UnsafePathError:
        """Return an error about this path; `problem` is the predicate of its sentence."""
        return UnsafePathError(f"{self.path} in {self.label} {problem}")

    def spend(self, budget: Budget, steps: int = 1) -> None:
        """Take steps off the budget; HostError if none is left, as one path is not the cause."""
        budget.steps_left -= steps
        if budget.steps_left < 0:
            raise HostError(
                f"the paths in {self.label} take too many steps to follow",
                hint="does it have thousands of mounts, or nested links?",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.restart()
        if isinstance(error, OSError):
            if error.errno == errno.ENAMETOOLONG:
                raise self.unsafe("has a name that is too long") from error
            raise OSError(error.errno, error.strerror, self.path) from error


def walk(location: Location, last: int, create: int | None, kernel: Kernel) -> Location:
    """Walk from the root to `location.path`; `last` selects how the last component is handled.

    DIRECTORY: enter it. FOLLOW: if it is a link, follow it. NOFOLLOW: stop before it. EXISTING: as
    FOLLOW, but the path's last components need not exist. `create` is the mode for missing
    directories, None to create none.

    Raises:
        UnsafePathError: too many links, too deep, or not a valid path.
        FileNotFoundError, NotADirectoryError: a directory on the way is missing.
        HostError: the budget is spent.
    """
    if "\0" in location.path:
        raise UnsafePathError(f"a path inside {location.label} holds a NUL character")
    if not location.path.isascii():
        try:
            location.path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:  # from JSON, whose strings need not be valid paths
            raise UnsafePathError(f"a path inside {location.label} is not Unicode text") from error
    try:
        _steps(location, last, create, kernel)
    except BaseException as error:
        location.__exit__(None, error, None)
        raise
    return location


def _steps(location: Location, last: int, create: int | None, kernel: Kernel) -> None:
    todo = _components(location.path)
    own_left = len(todo)  # number of components from the path itself, not from links
    links = steps = 0
    while todo:
        steps += 1
        if location.budget is not None:
            location.spend(location.budget)
        name = todo.pop()
        is_own, own_left = len(todo) < own_left, min(own_left, len(todo))
        if name == "..":
            location.up()
            continue
        if name == ".":  # at the end: the path is the current directory
            continue
        text = None
        if todo or last == DIRECTORY:
            try:
                text = _enter(location, name, create, kernel)
            except FileNotFoundError:
                if last != EXISTING or not is_own:
                    raise
                location.missing = [name, *(n for n in reversed(todo) if n != ".")]
                return
        elif last != NOFOLLOW:
            text = link_text(name, location.dir_fd)
        if text is not None:
            links += 1
            if location.budget is not None:
                location.spend(location.budget, len(text) // TEXT_STEP)
            location.linked()
            if text.startswith("/"):
                location.restart()
            todo.extend(_components(text))
        elif not todo and last != DIRECTORY:
            location.leaf = name
            if last == EXISTING and not is_own and location.status() is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
        if links > LINK_LIMIT or steps > STEP_LIMIT:
            raise location.unsafe("leads through too many symbolic links")
    location.check_mount()


def _components(path: str) -> list[str]:
    """Return the components of a path, the last one first, without empty ones and `.`.

    A final slash or `.` is kept as `.`: the component before it must be a directory.
    """
    names = path.split("/")
    end = ["."] if names[-1] in ("", ".") else []
    return end + [name for name in reversed(names) if name not in ("", ".")]


def _enter(location: Location, name: str, create: int | None, kernel: Kernel) -> str | None:
    """Enter a directory and return None, or return the text of a link."""
    flags = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW
    for _ in range(LINK_LIMIT):  # more than two iterations only if another process interferes
        try:
            fd = posix.open(name, flags, dir_fd=location.dir_fd)
        except NotADirectoryError:
            text = link_text(name, location.dir_fd)
            if text is not None:
                return text
            if create is None or lstat_or_none(name, location.dir_fd) is not None:
                raise
        except FileNotFoundError:
            if create is None:
                raise
            location.check_mount()
            _make_directory(location, name, create, kernel)
        else:
            location.down(name, fd)
            return None
    raise location.unsafe("changes while its links are followed")


def link_text(name: str, dir_fd: int) -> str | None:
    """Return the text of a symbolic link, None if the name is not one."""
    try:
        return posix.readlink(name, dir_fd=dir_fd)
    except ABSENT:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def entries(dir_fd: int) -> ScandirIterator[str]:
    """Return an iterator over a directory, to be closed; the descriptor can be O_PATH."""
    fd = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY, dir_fd=dir_fd)
    try:
        return posix.scandir(fd)  # it duplicates the descriptor
    finally:
        posix.close(fd)


def names_in(dir_fd: int, limit: int) -> list[str] | None:
    """Return the names in a directory, None if there are more than `limit`."""
    names = []
    with entries(dir_fd) as listed:
        for entry in listed:
            names.append(entry.name)
            if len(names) > limit:
                return None
    return names


def is_name(path: str) -> bool:
    """Report whether a path is a single plain name, which needs no walk."""
    fits = path.isascii() and len(path) < 256 and path[:1] not in ("", ".")
    return fits and "/" not in path and "\0" not in path


def _make_directory(location: Location, name: str, mode: int, kernel: Kernel) -> None:
    """Make a directory with a mode; use one that another process has just made."""
    try:
        kernel.mkdir(name, mode, dir_fd=location.dir_fd)
    except FileExistsError:
        return
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW
    fd = kernel.open(name, flags, dir_fd=location.dir_fd)
    try:
        current = posix.fstat(fd).st_mode & 0o7777
        if current & 0o777 != mode:  # the umask; an inherited set-group-id bit stays
            kernel.fchmod(fd, current & 0o7000 | mode)
    finally:
        kernel.close(fd)
