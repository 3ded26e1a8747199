# SPDX-License-Identifier: Apache-2.0
"""The farm: the folder that holds views, their manifests and a lock.

Contract: it belongs to root (or whoever runs this) and nobody else may write to it; else it is
refused, because containers run what lies there. A view has its manifest beside it, written before
the view gets its name; a name is given once and what it stands for is never changed.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from nvct.errors import DocumentError, HostError
from nvct.farm import model
from nvct.farm.model import Identity
from nvct.linux import mountinfo
from nvct.linux.files import LINK_LIMIT, Lock, read_bytes, write_atomic
from nvct.linux.kernel import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvct.farm.model import Entry, Manifest
    from nvct.linux.kernel import Kernel

BUILDING = ".build-"
GONE = ".gone-"
MANIFEST = ".json"
LOCK = ".lock"
LOCK_TIMEOUT_S = 20.0
WHOLE_MAP = [b"0", b"0", b"4294967295"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """Where views are kept, and who asks the kernel.

    Attributes:
        path: of the folder.
        processes: a procfs that shows this machine's processes.
    """

    path: str
    processes: str = "/proc"
    kernel: Kernel = KERNEL

    def prepare(self) -> None:
        """Make the folder, mode 0755 whatever the umask.

        Raises:
            HostError: it cannot be made, or others may write to it.
        """
        self._check_way()
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            if not os.path.lexists(self.path):
                self.kernel.mkdir(self.path, 0o755)
                self.kernel.chmod(self.path, 0o755)
        except FileExistsError:
            pass  # made by another process meanwhile
        except OSError as error:
            raise HostError(
                f"the farm {self.path} cannot be made: {error.strerror}",
                hint="nvct farm build as root makes it; farm-dir in config.toml names another",
            ) from error
        self.check()

    def check(self) -> None:
        """Refuse a farm that others may write to, or put another in the place of.

        Raises:
            HostError: they may, or it is no folder.
        """
        self._check_way()
        try:
            found = os.lstat(self.path)
        except OSError as error:
            raise HostError(f"there is no farm {self.path}: {error.strerror}") from error
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode):
            raise HostError(f"the farm {self.path} is no folder", hint="remove it")
        if found.st_uid not in self.trusted() or mode & 0o022:
            raise HostError(
                f"the farm {self.path} belongs to uid {found.st_uid} with mode {mode:o}: "
                "somebody else may write to it",
                hint="make it root's, with mode 755",
            )

    def _check_way(self) -> None:
        """Refuse a folder or link above the farm that somebody else may change.

        In a sticky one, as /tmp, nobody can rename what is root's.

        Raises:
            HostError: there is such.
        """
        trusted = self.trusted()
        try:
            for path, found in _way(os.path.dirname(self.path)):
                mode = 0 if stat.S_ISLNK(found.st_mode) else stat.S_IMODE(found.st_mode)
                others = mode & 0o002 or (mode & 0o020 and found.st_gid != 0)
                if found.st_uid not in trusted or (others and not mode & stat.S_ISVTX):
                    raise HostError(
                        f"the farm {self.path} is below {path}, which somebody else may change: "
                        f"uid {found.st_uid}, mode {mode:o}",
                        hint="farm-dir in config.toml names another place",
                    )
        except FileNotFoundError:
            pass  # the rest will be made
        except OSError as error:
            raise HostError(
                f"there is no way to the farm {self.path}: {error.strerror}"
            ) from error

    def trusted(self) -> set[int]:
        """Return the owners whose files are believed: root, as it is seen here, and ourselves."""
        found = {0, os.geteuid()}
        try:
            # In a user namespace that has no root of the host's it is the overflow uid's.
            if read_bytes(f"{self.processes}/self/uid_map").split() != WHOLE_MAP:
                found.add(int(read_bytes(f"{self.processes}/sys/kernel/overflowuid")))
        except (OSError, ValueError, DocumentError):
            pass
        return found

    def lock(self) -> Lock:
        """Return the lock under which views are made and removed."""
        return Lock(f"{self.path}/{LOCK}", LOCK_TIMEOUT_S)

    def names(self) -> list[str]:
        """Return what views there are or were, sorted: those that have a manifest."""
        try:
            found = os.listdir(self.path)
        except OSError:
            return []
        return sorted(
            name.removesuffix(MANIFEST)
            for name in found
            if name.endswith(MANIFEST) and not name.startswith(".")
        )

    def manifest(self, name: str) -> Manifest | None:
        """Return a view's manifest, None where it is missing or cannot be used."""
        path = f"{self.path}/{name}{MANIFEST}"
        try:
            manifest = model.loads(read_bytes(path), path)
        except (OSError, DocumentError):
            return None
        mine = manifest.method == "own" or manifest.path == self.view(name)
        return manifest if mine and manifest.name == name else None

    def manifests(self) -> list[Manifest]:
        """Return the manifests that can be used, the newest first."""
        found = filter(None, map(self.manifest, self.names()))
        return sorted(found, key=lambda one: (one.made, one.name), reverse=True)

    def keep(self, manifest: Manifest) -> None:
        """Write a manifest.

        Raises:
            OSError: it cannot be written.
        """
        path = f"{self.path}/{manifest.name}{MANIFEST}"
        write_atomic(path, model.dumps(manifest), mode=0o644, sync=True, kernel=self.kernel)

    def view(self, name: str) -> str:
        """Return where a view is."""
        return f"{self.path}/{name}"


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every folder and link on the way to a folder, from / on.

    Raises:
        OSError: one is missing, or they are too many.
    """
    at, rest, links = "/", path.split("/"), 0
    yield at, os.lstat(at)
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        before, at = at, os.path.dirname(at) if name == ".." else os.path.join(at, name)
        found = os.lstat(at)
        yield at, found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINK_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(at)
            at = "/" if target.startswith("/") else before
            rest = [*target.split("/"), *rest]


def changed(manifest: Manifest) -> list[tuple[Entry, str]]:
    """Return the files of a view that are no longer what was put there, and what they are."""
    found = []
    for entry in manifest.entries:
        try:
            now = os.lstat(manifest.host_path(entry.path))
        except OSError as error:
            found.append((entry, str(error.strerror).lower()))
            continue
        # A copy on a tmpfs: every mount namespace that has this view has one of its own.
        is_copy = manifest.method == "binds" and entry.held.ino != entry.source.ino
        same = now.st_size == entry.held.size if is_copy else entry.is_kept(Identity.of(now))
        if not stat.S_ISREG(now.st_mode) or not same:
            found.append((entry, "changed in place"))
    return found


def lost_links(manifest: Manifest) -> list[str]:
    """Return the links of a view that are not there or say something else."""
    found = []
    for link in manifest.links:
        try:
            target = os.readlink(manifest.host_path(link.path))
        except OSError:
            target = ""
        # A driver's own folder may have a link to the file itself.
        if target != link.target and not (manifest.method == "own" and target):
            found.append(link.path)
    return found


def is_intact(manifest: Manifest) -> bool:
    """Tell by the cheap facts, a few microseconds a file, whether a view is as it was made."""
    return not changed(manifest) and not lost_links(manifest)


def mount_of(farm: Farm, path: str) -> mountinfo.Mount:
    """Return the mount that a path is on.

    Raises:
        OSError: the path cannot be opened.
        HostError: the kernel does not tell.
    """
    fd = farm.kernel.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        number = int(farm.kernel.mount_id(fd) or b"-1")
    finally:
        farm.kernel.close(fd)
    for mount in mountinfo.parse(own_mounts(farm)):
        if mount.mount_id == number:
            return mount
    raise HostError(f"{path} is on a mount that {farm.processes}/self/mountinfo does not have")


def own_mounts(farm: Farm) -> str:
    """Return the mountinfo of this process."""
    return read_bytes(f"{farm.processes}/self/mountinfo").decode("utf-8", "surrogateescape")
