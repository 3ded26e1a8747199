# SPDX-License-Identifier: Apache-2.0
"""Verifies and lists the views of a farm, and removes those that nobody needs.

Contract: a view is removed only if it is not the loaded module's, and neither a plan in force, a
CDI spec nor a process's mountinfo names it: its files would vanish from running containers at
once. If the users of views are unknown, no view is removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal, TypeAlias

from nvct.errors import DocumentError, HostError, OSErrorsAs
from nvct.farm import build, folder
from nvct.farm.folder import Farm
from nvct.farm.model import Entry, Manifest
from nvct.linux import mountinfo
from nvct.linux.constants import MNT_DETACH
from nvct.linux.files import TEMPORARY_PREFIX, read_bytes

State: TypeAlias = Literal["good", "damaged", "absent"]
CHUNK = 1 << 20
PLAN_AGE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The current state of a view."""

    manifest: Manifest
    state: State  # "absent" is a view of binds before the first container after a boot
    problems: tuple[str, ...] = ()
    keep: str = ""  # the reason to keep it, "" if it can be removed
    users: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The users of views, apart from processes."""

    loaded: str
    plans: tuple[str, ...] = ()
    specs: tuple[tuple[str, str], ...] = ()
    # age of the youngest plan or spec; a create that read the one before it may still run
    plan_age_s: float = PLAN_AGE_S


def read_needs(
    loaded: str, plans: Iterable[str], specs: Iterable[str] = (), *, now: float | None = None
) -> Needs:
    """Read the plans in force and the CDI specs; arguments are their paths."""
    at = time.time() if now is None else now
    ages = [float(PLAN_AGE_S)]

    def texts(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            try:
                text = read_bytes(path).decode("utf-8", "surrogateescape")
                ages.append(at - os.stat(path).st_mtime)
            except (OSError, DocumentError):
                continue
            yield path, text

    plan_texts = tuple(text for _, text in texts(plans))
    return Needs(loaded=loaded, plans=plan_texts, specs=tuple(texts(specs)), plan_age_s=min(ages))


def statuses(farm: Farm, need: Needs, *, strict: bool = True) -> list[Status]:
    """Return the status of all views, the newest first.

    If the mounts of other processes are unreadable, it raises HostError if `strict`, else it keeps
    every view.
    """
    manifests = farm.manifests()
    try:
        users = _users(farm, [manifest.name for manifest in manifests])
    except HostError:
        if strict:
            raise
        unknown = "only root can see the processes that have it mounted"
        return [replace(_status(manifest, need, 0), keep=unknown) for manifest in manifests]
    return [_status(manifest, need, users.get(manifest.name, 0)) for manifest in manifests]


def _problems(manifest: Manifest) -> list[str]:
    path_of = manifest.host_path
    changed = (f"{path_of(entry.path)}: {text}" for entry, text in folder.changed(manifest))
    lost = (f"{path_of(path)}: the link is missing" for path in folder.lost_links(manifest))
    return [*changed, *lost]


def _status(manifest: Manifest, need: Needs, users: int) -> Status:
    problems = _problems(manifest)
    absent = is_absent(manifest)
    return Status(
        manifest=manifest,
        state="absent" if absent else "damaged" if problems else "good",
        problems=() if absent else tuple(problems),
        keep=_keep(manifest, need, users, good=absent or not problems),
        users=users,
        size=sum(entry.held.size for entry in manifest.entries),
    )


def is_absent(manifest: Manifest) -> bool:
    """Return whether a view's mounts are missing, as after a boot."""
    return manifest.method == "binds" and not os.path.ismount(manifest.path)


def _keep(manifest: Manifest, need: Needs, users: int, *, good: bool) -> str:
    if users:
        return f"{users} process{'' if users == 1 else 'es'} have it mounted"
    if any(manifest.path in text for text in need.plans):
        return "the plan in force names it"
    for path, text in need.specs:
        if manifest.path in text:
            return f"{path} names it"
    if not need.loaded:
        return "no kernel module is loaded, so it is unknown which driver is needed"
    if manifest.version == need.loaded and good:
        return "it is the loaded driver's"
    if need.plan_age_s < PLAN_AGE_S:
        age = f"the plan in force is only {need.plan_age_s:.0f} s old"
        return f"{age}: a create may still use the one before it"
    return ""


def _users(farm: Farm, names: Sequence[str]) -> dict[str, int]:
    """Return the number of processes that have mounted a part of a view outside the farm.

    Every line of mountinfo with a view's name counts: the folder, a single file, or the tmpfs of a
    view of binds, whose source contains the name.
    """
    with OSErrorsAs(HostError, f"{farm.processes} cannot be read"):
        processes = [name for name in os.listdir(farm.processes) if name.isdecimal()]
    # A process with another root sees only a part of its namespace's mounts.
    namespaces: dict[str, set[str]] = {}
    members: dict[str, int] = {}
    for process in processes:
        process_dir = f"{farm.processes}/{process}"
        try:
            namespace = os.readlink(f"{process_dir}/ns/mnt")
        except OSError:
            namespace = process
        namespaces.setdefault(namespace, set()).update(_names_in_use(farm, process_dir, names))
        members[namespace] = members.get(namespace, 0) + 1
    counts: dict[str, int] = {}
    for namespace, used in namespaces.items():
        for name in used:
            counts[name] = counts.get(name, 0) + members[namespace]
    return counts


def _names_in_use(farm: Farm, process_dir: str, names: Sequence[str]) -> set[str]:
    try:
        text = read_bytes(f"{process_dir}/mountinfo").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return set()  # it has ended
    except (OSError, DocumentError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ESRCH, errno.EINVAL):
            return set()  # it is exiting: it has no memory or no root any more
        raise HostError(
            f"{process_dir}/mountinfo cannot be read, so the views in use are unknown",
            hint="run it as root",
        ) from error
    return {
        name
        for name in names
        if name in text and any(_is_use(farm, line, name) for line in text.splitlines())
    }


def _is_use(farm: Farm, line: str, name: str) -> bool:
    """Return whether a line of mountinfo names a view, except as the farm's own mount."""
    if name not in line:
        return False
    try:
        target = mountinfo.Mount(line).target
    except DocumentError:
        return True
    view = farm.view(name)
    return target != view and not target.startswith((view + "/", f"{farm.path}/{folder.BUILDING}"))


def verify(farm: Farm, names: Sequence[str] = ()) -> list[tuple[Manifest, list[str]]]:
    """Compare views with their manifests by content; return the differences.

    A missing digest of an unchanged file is added to the manifest. A view without its mounts has
    no differences: it is made again when it is needed. Raises HostError if a view does not exist,
    or its manifest is unreadable.
    """
    view_names = farm.names()
    for name in names:
        if name not in view_names:
            raise HostError(
                f"{farm.path} has no view {name!r}", hint="nvct farm list shows all views"
            )
    results: list[tuple[Manifest, list[str]]] = []
    for name in names or view_names:
        manifest = farm.manifest(name)
        if manifest is None:
            raise HostError(
                f"{farm.path}/{name}{folder.MANIFEST} is not a manifest of a view",
                hint="remove it and the folder beside it",
            )
        if is_absent(manifest):
            results.append((manifest, []))
            continue
        results.append((manifest, _problems(manifest) or _by_content(farm, manifest)))
    return results


def _by_content(farm: Farm, manifest: Manifest) -> list[str]:
    problems: list[str] = []
    entries: list[Entry] = []
    for entry in manifest.entries:
        path = manifest.host_path(entry.path)
        digest = "" if entry.is_live else _digest(path)
        if entry.digest and digest != entry.digest:
            problems.append(f"{path}: its content changed, its size and time did not")
        entries.append(entry if entry.digest else replace(entry, digest=digest))
    updated = replace(manifest, entries=tuple(entries))
    if updated != manifest and not problems:
        try:
            farm.store(updated)
        except OSError:
            pass  # the comparison needs no write permission
    return problems


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with OSErrorsAs(HostError, f"{path} cannot be read"), open(path, "rb", buffering=0) as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def collect(farm: Farm, need: Needs, *, dry_run: bool = False) -> list[Status]:
    """Remove the views that nobody needs, and what killed builds left; return these views.

    Raises HostError.
    """
    if not os.path.lexists(farm.path):
        return []
    farm.check()
    with farm.lock():
        removable = [status for status in statuses(farm, need) if not status.keep]
        if dry_run:
            return removable
        for manifest in farm.manifests():
            _sweep(farm, manifest)
        removed = [status for status in removable if _remove(farm, status.manifest)]
        for name in os.listdir(farm.path):
            path = f"{farm.path}/{name}"
            if name.startswith(TEMPORARY_PREFIX):  # of a manifest
                with suppress(OSError):  # the next time
                    farm.kernel.unlink(path)
            elif name.startswith((folder.BUILDING, folder.GONE)) and not _users(farm, [name]):
                _discard(farm, path)
        return removed


def _sweep(farm: Farm, manifest: Manifest) -> None:
    """Remove empty files and folders that do not belong to a view.

    If a link of an image leads into the view, crun creates a volume's mount point there, because
    it makes the view's mount read-only only after all other mounts.
    """
    if manifest.method in {"own", "binds"}:
        return  # the folder is the driver's, or read-only
    paths = [entry.path for entry in manifest.entries] + [link.path for link in manifest.links]
    own = {manifest.host_path(path) for path in paths}
    own |= {str(folder) for path in own for folder in PurePath(path).parents}
    for top, folders, files in os.walk(manifest.path, topdown=False):
        for path in (os.path.join(top, name) for name in [*folders, *files]):
            if path in own:
                continue
            with suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    farm.kernel.rmdir(path)
                elif stat.S_ISREG(status.st_mode) and not status.st_size:
                    farm.kernel.unlink(path)


def _remove(farm: Farm, manifest: Manifest) -> bool:
    """Remove a view; return False if a container mounted it first, so that it stays."""
    record = f"{farm.path}/{manifest.name}{folder.MANIFEST}"
    temporary = "" if manifest.method == "own" else build.put_aside(farm, manifest.name)
    if temporary and _users(farm, [manifest.name, os.path.basename(temporary)]):
        # It was mounted between the check and the rename: the mount follows the folder.
        farm.kernel.rename(temporary, farm.view(manifest.name))
        return False
    with OSErrorsAs(HostError, f"{record} cannot be removed"), suppress(FileNotFoundError):
        farm.kernel.unlink(record)
        if manifest.method == "binds":
            farm.kernel.rmdir(manifest.path)
    if temporary:
        _discard(farm, temporary)
    return True


def _discard(farm: Farm, path: str) -> None:
    with OSErrorsAs(HostError, f"{path} cannot be removed"):
        while os.path.ismount(path):
            farm.kernel.umount2(path, MNT_DETACH)
        shutil.rmtree(path)
