# SPDX-License-Identifier: Apache-2.0
"""Builds the view of a driver's user space: in a temporary folder that is renamed when complete.

Contract: the name is a hash of the sources (path, device, inode, size and time of every file), so
a changed driver gets another view and containers keep theirs. A view never changes. Setuid files
are left out. Two processes that build the same view produce one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from typing import NamedTuple

from nvct.errors import HostError
from nvct.farm import folder, layout, methods
from nvct.farm.methods import Plan, RefusedError
from nvct.farm.model import FORMAT, LIVE, METHODS, Entry, Identity, Manifest
from nvct.linux.constants import MNT_DETACH
from nvct.linux.files import temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.farm.folder import Farm
    from nvct.farm.layout import Place
    from nvct.farm.model import Method
    from nvct.host.model import DriverFile, Inventory


class _Job(NamedTuple):
    """A view to build.

    Attributes:
        origins: host path -> the driver's own file, if another view is the source.
    """

    name: str
    root: str
    inventory: Inventory
    plan: Plan
    sources: Mapping[str, Identity]
    left_out: Sequence[tuple[str, str]]
    origins: Mapping[str, DriverFile]


def build(
    farm: Farm,
    inventory: Inventory,
    root: str = "/",
    *,
    ways: Sequence[Method] = METHODS,
    anew: bool = False,
) -> Manifest:
    """Return the view of a driver's files; build it if it is missing.

    Args:
        farm: the folder of views.
        inventory: of the host, or of a view (`after_upgrade`).
        root: of the driver.
        ways: methods of building, in order of preference; the first that works is used.
        anew: build even if the files are those of a view.

    Raises:
        HostError: no method works, or there are no files.
    """
    if inventory.mode != "nvml":
        raise HostError(f"mode {inventory.mode} has no driver of which a view could be made")
    made = None if anew else _made_of(farm, inventory)
    if made is not None:
        return made
    farm.prepare()
    job = _job(farm, inventory, root)
    # A process without write permission uses the view that root built, without the lock.
    kept = _kept(farm, job, ways)
    if kept is not None:
        return kept
    try:
        with farm.lock():
            return _kept(farm, job, ways) or _made_anew(farm, job, ways)
    except OSError as error:
        raise HostError(
            f"no view can be made in {farm.path}: {error.strerror}",
            hint="nvct farm build as root makes one that everybody can use",
        ) from error


def _made_anew(farm: Farm, job: _Job, ways: Sequence[Method]) -> Manifest:
    """Build a view in place of one that is damaged."""
    _leave_staged(farm, job.name, ways)
    put_aside(farm, job.name)
    return _make(farm, job, ways)


def _kept(farm: Farm, job: _Job, ways: Sequence[Method]) -> Manifest | None:
    """Return the existing view if it is intact and its method is permitted."""
    kept = farm.manifest(job.name)
    if kept is None or kept.method not in ways or not folder.is_intact(kept):
        return None
    return kept


def _leave_staged(farm: Farm, name: str, ways: Sequence[Method]) -> None:
    """Refuse to replace existing mounts if the caller permits no mounts.

    Raises:
        HostError: the view is made of mounts.
    """
    there = farm.manifest(name)
    if there is None or there.method in ways or there.method != "binds":
        return
    if folder.is_intact(there):
        raise HostError(
            f"{there.path} has a mount for every file",
            hint='layout = "farm" in config.toml uses it all the same',
        )


def _made_of(farm: Farm, inventory: Inventory) -> Manifest | None:
    """Return the view whose files an inventory has, None unless it has all of one view."""
    held = {place.file.host_path for place in layout.places(inventory.files)}
    prefix = farm.path + "/"
    if not held or not all(path.startswith(prefix) for path in held):
        return None
    for manifest in farm.manifests():
        if held == {file.host_path for file in manifest.held_files}:
            return manifest
    return None


def _job(farm: Farm, inventory: Inventory, root: str) -> _Job:
    places, sources, left_out = [], {}, []
    for place in layout.places(inventory.files):
        path = place.file.host_path
        try:
            found = os.lstat(path)
        except OSError as error:
            raise HostError(
                f"{path} is gone while a view is made: {error.strerror}",
                hint="is the driver being installed? try again",
            ) from error
        reason = _unusable(found)
        if reason:
            left_out.append((path, reason))
            continue
        places.append(place)
        sources[place.path] = Identity.of(found)
    if not any(place.file.kind == "library" for place in places):
        raise HostError(f"{root} has no library of driver {inventory.driver_version}")
    plan = Plan(places, layout.links(places))
    name = f"{inventory.driver_version}-{_key(plan, sources)}"
    return _Job(name, root, inventory, plan, sources, left_out, _origins(farm, places))


def _unusable(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "no regular file"
    if found.st_mode & methods.S_ISUGID:
        # A package upgrade also sets the mode of such a file's hard links to 0600 (dpkg).
        return "setuid or setgid"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    return ""


def _key(plan: Plan, sources: Mapping[str, Identity]) -> str:
    text = json.dumps(
        [
            FORMAT,
            [(p.path, p.file.host_path, *_numbers(p.path, sources[p.path])) for p in plan.places],
            [(link.path, link.target) for link in plan.links],
        ]
    )
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _numbers(path: str, found: Identity) -> tuple[int, ...]:
    times = () if LIVE in path else (found.mtime_ns,)
    return (found.dev, found.ino, found.size, *times)


def _origins(farm: Farm, places: Sequence[Place]) -> dict[str, DriverFile]:
    prefix = farm.path + "/"
    if not any(place.file.host_path.startswith(prefix) for place in places):
        return {}
    return {
        manifest.host_path(entry.path): entry.file
        for manifest in farm.manifests()
        for entry in manifest.entries
    }


def _make(farm: Farm, job: _Job, ways: Sequence[Method]) -> Manifest:
    reasons = []
    for way in ways:
        try:
            return _own(farm, job) if way == "own" else _aside(farm, job, way)
        except RefusedError as reason:
            reasons.append(f"{way}: {reason}")
        except OSError as error:
            raise HostError(
                f"the view {farm.view(job.name)} cannot be made: {error.strerror} "
                f"({error.filename or way})"
            ) from error
    raise HostError(
        f"there is no way to make a view of driver {job.inventory.driver_version}: "
        f"{'; '.join(reasons)}",
        hint="run nvct farm build as root, or name another farm-dir in config.toml",
    )


def _own(farm: Farm, job: _Job) -> Manifest:
    if job.origins:
        raise RefusedError("the files are those of another view")
    methods.in_own_folder(farm, job.root, job.plan)
    places = [
        place._replace(path=os.path.relpath(place.file.host_path, job.root))
        for place in job.plan.places
    ]
    sources = dict(
        zip((p.path for p in places), (job.sources[p.path] for p in job.plan.places), strict=True)
    )
    own = job._replace(plan=Plan(places, job.plan.links), sources=sources)
    manifest = _manifest(own, "own", job.root, job.root)
    farm.keep(manifest)
    return manifest


def _aside(farm: Farm, job: _Job, way: Method) -> Manifest:
    """Build a view in a temporary folder and give it its name.

    Raises:
        RefusedError: the method does not work here.
        OSError: a file cannot be written.
    """
    aside = f"{farm.path}/{folder.BUILDING}{temporary_name().lstrip('.')}"
    final = farm.view(job.name)
    farm.kernel.mkdir(aside, 0o755)
    try:
        farm.kernel.chmod(aside, 0o755)
        if way == "binds":
            methods.bind(farm, aside, final, job.plan, job.name)
            manifest = _manifest(job, way, final, final)
            farm.keep(manifest)
        else:
            methods.fill(farm, aside, job.plan, way)
            manifest = _manifest(job, way, final, aside)
            farm.keep(manifest)
            farm.kernel.rename(aside, final)
    except BaseException:
        if way == "binds":
            _unmount(farm, final)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest


def _manifest(job: _Job, way: Method, path: str, made_at: str) -> Manifest:
    entries = tuple(
        Entry(
            path=place.path,
            file=job.origins.get(place.file.host_path, place.file),
            source=job.sources[place.path],
            held=Identity.of(os.lstat(f"{made_at}/{place.path}")),
        )
        for place in job.plan.places
    )
    manifest = Manifest(
        name=job.name,
        version=job.inventory.driver_version,
        cuda_version=job.inventory.cuda_version,
        method=way,
        path=path,
        made=int(time.time()),
        entries=entries,
        links=tuple(job.plan.links),
        left_out=tuple(job.left_out),
    )
    for entry in entries:
        # A driver that is replaced during the build would give a mixture of two versions.
        if not entry.is_live and entry.source != _now(_source_of(job, entry.path)):
            raise HostError(
                f"{_source_of(job, entry.path)} changed while a view was made of it",
                hint="is the driver being installed? try again",
            )
    return manifest


def _source_of(job: _Job, path: str) -> str:
    """Return the host path of the source of a path in the view."""
    return next(place.file.host_path for place in job.plan.places if place.path == path)


def _now(path: str) -> Identity | None:
    try:
        return Identity.of(os.lstat(path))
    except OSError:
        return None


def put_aside(farm: Farm, name: str) -> str:
    """Rename a view, under the lock; return its temporary path, "" if there was no view.

    Containers keep it: a mount does not depend on a name. An empty folder stays: it may be the
    mount point of a view in another mount namespace, which would lose the mount.

    Raises:
        HostError: the view cannot be renamed.
    """
    path = farm.view(name)
    _unmount(farm, path)
    try:
        if not os.listdir(path):
            return ""
    except FileNotFoundError:
        return ""
    except OSError:
        pass  # no folder
    aside = f"{farm.path}/{folder.GONE}{temporary_name().lstrip('.')}"
    try:
        farm.kernel.rename(path, aside)
    except OSError as error:
        raise HostError(f"{path} cannot be replaced: {error.strerror}") from error
    return aside


def _unmount(farm: Farm, path: str) -> None:
    if os.path.ismount(path):
        farm.kernel.umount2(path, MNT_DETACH)
