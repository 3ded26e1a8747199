# SPDX-License-Identifier: Apache-2.0
"""The farm: the folder that contains views, their manifests and a lock.

Contract: it belongs to root (or the user of this process) and nobody else may write to it, because
containers run its files; otherwise it is refused. A manifest is written before its view gets its
name. A name always stands for the same, unchanged view.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from nvct.cdi.read.load import unmapped_root
from nvct.errors import DocumentError, HostError, OSErrorsAs
from nvct.farm import model
from nvct.farm.model import Entry, Identity, Manifest
from nvct.linux import mountinfo
from nvct.linux.files import LINK_LIMIT, Lock, read_bytes, write_atomic
from nvct.linux.kernel import KERNEL, Kernel

BUILDING = ".build-"
GONE = ".gone-"
MANIFEST = ".json"
LOCK = ".lock"
LOCK_TIMEOUT_S = 20.0
NOT_YET = "the view of this driver does not exist yet"  # If this process must not build it


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """The folder of views, and the kernel's interface."""

    path: str
    processes: str = "/proc"
    kernel: Kernel = KERNEL
    may_build: bool = True  # False: only existing views are used

    def prepare(self) -> None:
        """Make the folder, mode 0755 whatever the umask; HostError if others may write to it."""
        if not self.may_build:
            if not os.path.lexists(self.path):
                raise HostError(NOT_YET)
            self.check()
            return
        self._check_parents()
        with (
            OSErrorsAs(
                HostError,
                f"the farm {self.path} cannot be made",
                hint="run nvct farm build as root, or set another farm-dir in config.toml",
            ),
            suppress(FileExistsError),  # another process made it
        ):
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            if not os.path.lexists(self.path):
                self.kernel.mkdir(self.path, 0o755)
                self.kernel.chmod(self.path, 0o755)
        self.check()

    def check(self) -> None:
        """Refuse a farm (HostError) that other users can write to or replace."""
        self._check_parents()
        with OSErrorsAs(HostError, f"there is no farm {self.path}"):
            status = os.lstat(self.path)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISDIR(status.st_mode):
            raise HostError(f"the farm {self.path} is not a folder", hint="remove it")
        if status.st_uid not in self.trusted() or mode & 0o022:
            raise HostError(
                f"the farm {self.path} belongs to uid {status.st_uid} with mode {mode:o}: "
                "other users can write to it",
                hint="make it root's, with mode 755",
            )

    def _check_parents(self) -> None:
        """Refuse a folder or link above the farm that another user can change.

        In a sticky folder, such as /tmp, nobody else can rename root's files.
        """
        trusted = self.trusted()
        with (
            OSErrorsAs(HostError, f"the farm {self.path} cannot be reached"),
            suppress(FileNotFoundError),  # the rest will be made
        ):
            for path, status in _path_components(os.path.dirname(self.path)):
                mode = 0 if stat.S_ISLNK(status.st_mode) else stat.S_IMODE(status.st_mode)
                others_write = mode & 0o002 or (mode & 0o020 and status.st_gid != 0)
                if status.st_uid not in trusted or (others_write and not mode & stat.S_ISVTX):
                    raise HostError(
                        f"the farm {self.path} is below {path}, which other users can change: "
                        f"uid {status.st_uid}, mode {mode:o}",
                        hint="set another farm-dir in config.toml",
                    )

    def trusted(self) -> set[int]:
        """Return the owners to trust: root, as this process sees it, and the process's user."""
        return {0, os.geteuid(), *unmapped_root(self.processes)}

    def lock(self) -> Lock:
        """Return the lock for building and removing views; HostError unless `may_build`."""
        if not self.may_build:
            raise HostError(NOT_YET)
        return Lock(f"{self.path}/{LOCK}", LOCK_TIMEOUT_S)

    def names(self) -> list[str]:
        """Return the sorted names of views that have a manifest."""
        try:
            entries = os.listdir(self.path)
        except OSError:
            return []
        return sorted(
            name.removesuffix(MANIFEST)
            for name in entries
            if name.endswith(MANIFEST) and not name.startswith(".")
        )

    def manifest(self, name: str) -> Manifest | None:
        """Return a view's manifest, None if it is missing or invalid."""
        path = f"{self.path}/{name}{MANIFEST}"
        try:
            manifest = model.loads(read_bytes(path), path)
        except (OSError, DocumentError):
            return None
        is_in_place = manifest.method == "own" or manifest.path == self.view(name)
        return manifest if is_in_place and manifest.name == name else None

    def manifests(self) -> list[Manifest]:
        """Return the valid manifests, the newest first."""
        valid = filter(None, map(self.manifest, self.names()))
        return sorted(valid, key=lambda manifest: (manifest.made, manifest.name), reverse=True)

    def store(self, manifest: Manifest) -> None:
        """Write a manifest. Raises OSError if the write failed."""
        path = f"{self.path}/{manifest.name}{MANIFEST}"
        write_atomic(path, model.dumps(manifest), mode=0o644, kernel=self.kernel)

    def view(self, name: str) -> str:
        """Return the path of a view."""
        return f"{self.path}/{name}"


def _path_components(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every folder and link on the path to a folder, from / on."""
    at, remaining, links = "/", path.split("/"), 0
    yield at, os.lstat(at)
    while remaining:
        name = remaining.pop(0)
        if name in ("", "."):
            continue
        before, at = at, os.path.dirname(at) if name == ".." else os.path.join(at, name)
        status = os.lstat(at)
        yield at, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > LINK_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(at)
            at = "/" if target.startswith("/") else before
            remaining = [*target.split("/"), *remaining]


def changed(manifest: Manifest) -> list[tuple[Entry, str]]:
    """Return the changed or missing files of a view, each with a description."""
    entries = []
    for entry in manifest.entries:
        try:
            status = os.lstat(manifest.host_path(entry.path))
        except OSError as error:
            entries.append((entry, str(error.strerror).lower()))
            continue
        # A copy on a tmpfs differs in each mount namespace that has this view.
        is_copy = manifest.method == "binds" and entry.held.ino != entry.source.ino
        is_unchanged = (
            status.st_size == entry.held.size if is_copy else entry.is_kept(Identity.of(status))
        )
        if not stat.S_ISREG(status.st_mode) or not is_unchanged:
            entries.append((entry, "changed in place"))
    return entries


def lost_links(manifest: Manifest) -> list[str]:
    """Return the links of a view that are missing or have another target."""
    lost = []
    for link in manifest.links:
        try:
            target = os.readlink(manifest.host_path(link.path))
        except OSError:
            target = ""
        # The driver's own folder may have a link to the same file with another text.
        if target != link.target and not (manifest.method == "own" and target):
            lost.append(link.path)
    return lost


def is_intact(manifest: Manifest) -> bool:
    """Return whether a view is unchanged by its stat data; takes a few microseconds per file."""
    return not changed(manifest) and not lost_links(manifest)


def mount_of(farm: Farm, path: str) -> mountinfo.Mount:
    """Return the mount of a path; HostError if the kernel does not report it."""
    fd = farm.kernel.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        number = int(farm.kernel.mount_id(fd) or b"-1")
    finally:
        farm.kernel.close(fd)
    for mount in mountinfo.parse(own_mounts(farm)):
        if mount.mount_id == number:
            return mount
    raise HostError(f"{path} is on a mount that {farm.processes}/self/mountinfo does not list")


def own_mounts(farm: Farm) -> str:
    """Return the mountinfo of this process."""
    return read_bytes(f"{farm.processes}/self/mountinfo").decode("utf-8", "surrogateescape")
