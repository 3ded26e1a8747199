# SPDX-License-Identifier: Apache-2.0
"""The walk behind `root`: one descriptor per directory, links as text. The rules stand there."""

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
        """Whatever counts the steps that many walks may take together."""

        steps_left: int

    from os import _ScandirIterator as ScandirIterator
    from os import stat_result
    from types import TracebackType

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel

LINK_LIMIT = 40  # the kernel's MAXSYMLINKS
DEPTH_LIMIT = 256  # each level holds a descriptor; the usual limit of those is 1024
STEP_LIMIT = 512  # 40 links of 4095 bytes each could name 80000 components
TEXT_STEP = 256  # bytes of a link's text that cost as much as a component

ABSENT = (FileNotFoundError, NotADirectoryError)
DIRECTORY, FOLLOW, NOFOLLOW, EXISTING = range(4)


class Place:
    """Where a walk ended: open directories from the root down, and a last name in them.

    `leaf` is "" where the path is the directory itself. Leaving the context closes everything and
    gives OSErrors the whole path. `missing` is what of an EXISTING walk's path does not exist.
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
        """The directory that holds the last name; it stays the Place's own."""
        return self.fds[-1] if self.fds else self.root_fd

    def take(self) -> int:
        """Return the directory's descriptor for the caller to keep and close."""
        return self.fds.pop() if self.fds else posix.dup(self.root_fd)

    def up(self) -> None:
        """Go back to the directory before, at most to the root."""
        if self.fds:
            self.names.pop()
            posix.close(self.fds.pop())

    def down(self, name: str, fd: int) -> None:
        """Go on to a directory that was just opened."""
        self.fds.append(fd)
        self.names.append(name)
        if len(self.fds) > DEPTH_LIMIT:
            raise self.unsafe(f"lies more than {DEPTH_LIMIT} directories deep")

    def restart(self) -> None:
        """Go back to the root."""
        self.names.clear()
        while self.fds:
            posix.close(self.fds.pop())

    def linked(self) -> None:
        """Remember the mount that holds a link, if something is to be written."""
        if self.mounts is not None:
            self.mounts.add(KERNEL.mount_id(self.dir_fd))

    def check_mount(self) -> None:
        """Refuse to write where a link led from one mount into another.

        A volume that lies at the path itself is meant; one that the image's links lead to is
        none of ours, and may be one that the container's own user cannot write to.

        Raises:
            UnsafePathError: a link led there.
        """
        if self.mounts and self.mounts != {KERNEL.mount_id(self.dir_fd)}:
            raise self.unsafe("leads by a symbolic link into another mount")

    def status(self) -> stat_result | None:
        """Tell what the last name stands for now, itself and no link's target."""
        if not self.leaf:
            return posix.stat(self.dir_fd)
        return lstat_or_none(self.leaf, self.dir_fd)

    def shown(self) -> str:
        """Return where the walk ended, without links, as the root's inside sees it."""
        return "/" + "/".join([*self.names, *filter(None, [self.leaf]), *self.missing])

    def unsafe(self, what: str) -> UnsafePathError:
        """Return the error that says what is wrong with this path."""
        return UnsafePathError(f"{self.path} in {self.label} {what}")

    def spend(self, budget: Budget, steps: int = 1) -> None:
        """Take steps off the budget.

        Raises:
            HostError: none is left. It is no UnsafePathError: this path is not to blame.
        """
        budget.steps_left -= steps
        if budget.steps_left < 0:
            raise HostError(
                f"the paths in {self.label} take too many steps to follow",
                hint="has it thousands of mounts, or links to links?",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restart()
        if isinstance(error, OSError):
            if error.errno == errno.ENAMETOOLONG:
                raise self.unsafe("has a name that is too long") from error
            raise OSError(error.errno, error.strerror, self.path) from error


def walk(place: Place, last: int, create: int | None, kernel: Kernel) -> Place:
    """Walk from the root to `place.path`; `last` says what to do with the last component.

    DIRECTORY: it is a directory, walked into. FOLLOW: if it is a link, go on with its text.
    NOFOLLOW: stop before it. EXISTING: as FOLLOW, but what is missing at the end may be missing.
    `create` is the mode of directories to make on the way, or None.

    Raises:
        UnsafePathError: too many links, too deep, or no path at all.
        FileNotFoundError, NotADirectoryError: a directory on the way is missing.
        HostError: the budget is spent.
    """
    if "\0" in place.path:
        raise UnsafePathError(f"a path inside {place.label} holds a NUL character")
    if not place.path.isascii():
        try:
            place.path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:  # JSON can say more than a path can
            raise UnsafePathError(f"a path inside {place.label} is no Unicode text") from error
    try:
        _steps(place, last, create, kernel)
    except BaseException as error:
        place.__exit__(None, error, None)
        raise
    return place


def _steps(place: Place, last: int, create: int | None, kernel: Kernel) -> None:
    todo = _components(place.path)
    own = len(todo)  # how many of these are the path's, not a link's
    links = steps = 0
    while todo:
        steps += 1
        if place.budget is not None:
            place.spend(place.budget)
        name = todo.pop()
        is_own, own = len(todo) < own, min(own, len(todo))
        if name == "..":
            place.up()
            continue
        if name == ".":  # the last one: the path is the directory walked into before
            continue
        text = None
        if todo or last == DIRECTORY:
            try:
                text = _enter(place, name, create, kernel)
            except FileNotFoundError:
                if last != EXISTING or not is_own:
                    raise
                place.missing = [name, *(n for n in reversed(todo) if n != ".")]
                return
        elif last != NOFOLLOW:
            text = link_text(name, place.dir_fd)
        if text is not None:
            links += 1
            if place.budget is not None:
                place.spend(place.budget, len(text) // TEXT_STEP)
            place.linked()
            if text.startswith("/"):
                place.restart()
            todo.extend(_components(text))
        elif not todo and last != DIRECTORY:
            place.leaf = name
            if last == EXISTING and not is_own and place.status() is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
        if links > LINK_LIMIT or steps > STEP_LIMIT:
            raise place.unsafe("leads through too many symbolic links")
    place.check_mount()


def _components(path: str) -> list[str]:
    """Return the components of a path, last one first, without those that say nothing.

    A `.` at the end, or a slash, does say something: what is before it has to be a directory.
    """
    names = path.split("/")
    end = ["."] if names[-1] in ("", ".") else []
    return end + [name for name in reversed(names) if name not in ("", ".")]


def _enter(place: Place, name: str, create: int | None, kernel: Kernel) -> str | None:
    """Go down into a directory, or return the text of the link that stands there."""
    flags = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW
    for _ in range(LINK_LIMIT):  # more than two turns only if somebody races us
        try:
            fd = posix.open(name, flags, dir_fd=place.dir_fd)
        except NotADirectoryError:
            text = link_text(name, place.dir_fd)
            if text is not None:
                return text
            if create is None or lstat_or_none(name, place.dir_fd) is not None:
                raise
        except FileNotFoundError:
            if create is None:
                raise
            place.check_mount()
            _make_directory(place, name, create, kernel)
        else:
            place.down(name, fd)
            return None
    raise place.unsafe("changes while it is walked")


def link_text(name: str, dir_fd: int) -> str | None:
    """Return a symbolic link's text, or None if that name is none."""
    try:
        return posix.readlink(name, dir_fd=dir_fd)
    except ABSENT:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def entries(dir_fd: int) -> ScandirIterator[str]:
    """Return what is in a directory, of which any descriptor will do; to be closed."""
    fd = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY, dir_fd=dir_fd)
    try:
        return posix.scandir(fd)  # it has a descriptor of its own
    finally:
        posix.close(fd)


def names_in(dir_fd: int, limit: int) -> list[str] | None:
    """Return the names in a directory, None if there are more than `limit`."""
    names = []
    with entries(dir_fd) as found:
        for entry in found:
            names.append(entry.name)
            if len(names) > limit:
                return None
    return names


def is_name(path: str) -> bool:
    """Tell whether a path is one plain name, for which there is nothing to walk."""
    fits = path.isascii() and len(path) < 256 and path[:1] not in ("", ".")
    return fits and "/" not in path and "\0" not in path


def _make_directory(place: Place, name: str, mode: int, kernel: Kernel) -> None:
    """Make a directory with these permissions; if somebody else was quicker, his is taken."""
    try:
        kernel.mkdir(name, mode, dir_fd=place.dir_fd)
    except FileExistsError:
        return
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW
    fd = kernel.open(name, flags, dir_fd=place.dir_fd)
    try:
        found = posix.fstat(fd).st_mode & 0o7777
        if found & 0o777 != mode:  # the umask; an inherited set-group-id bit stays
            kernel.fchmod(fd, found & 0o7000 | mode)
    finally:
        kernel.close(fd)
