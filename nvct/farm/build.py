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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nvct.errors import HostError, OSErrorsAs
from nvct.farm import folder, methods, model
from nvct.farm.folder import Farm
from nvct.farm.methods import RefusedError, ViewContent
from nvct.farm.model import FORMAT, LIVE, METHODS, Entry, Identity, Manifest, Method, ViewFile
from nvct.host.model import DriverFile, Inventory
from nvct.linux.constants import MNT_DETACH
from nvct.linux.files import temporary_name


class _Job(NamedTuple):
    """A view to build."""

    name: str
    root: str
    inventory: Inventory
    content: ViewContent
    sources: Mapping[str, Identity]  # by host path
    left_out: Sequence[tuple[str, str]]
    # host path -> the driver's own file, if another view is the source
    origins: Mapping[str, DriverFile]


def build(
    farm: Farm,
    inventory: Inventory,
    root: str = "/",
    *,
    allowed: Sequence[Method] = METHODS,
    rebuild: bool = False,
) -> Manifest:
    """Return the view of a driver's files, built by the first method that works.

    Raises HostError.
    """
    if inventory.mode != "nvml":
        raise HostError(f"no view can be made in mode {inventory.mode}: it has no driver")
    existing = None if rebuild else _source_view(farm, inventory)
    if existing is not None:
        return existing
    farm.prepare()
    job = _job(farm, inventory, root)
    # A process without write permission uses the view that root built, without the lock.
    existing = _existing(farm, job, allowed)
    if existing is not None:
        return existing
    with (
        OSErrorsAs(
            HostError,
            f"no view can be made in {farm.path}",
            hint="run nvct farm build as root: every user can use its view",
        ),
        farm.lock(),
    ):
        if manifest := _existing(farm, job, allowed):
            return manifest
        _refuse_staged(farm, job.name, allowed)
        put_aside(farm, job.name)
        return _make(farm, job, allowed)


def _existing(farm: Farm, job: _Job, allowed: Sequence[Method]) -> Manifest | None:
    existing = farm.manifest(job.name)
    if existing is None or existing.method not in allowed or not folder.is_intact(existing):
        return None
    return existing


def _refuse_staged(farm: Farm, name: str, allowed: Sequence[Method]) -> None:
    """Refuse to replace an intact view of binds if the caller does not allow binds."""
    current = farm.manifest(name)
    if current is None or current.method in allowed or current.method != "binds":
        return
    if folder.is_intact(current):
        raise HostError(
            f"{current.path} has a mount for every file",
            hint='layout = "farm" in config.toml uses it all the same',
        )


def _source_view(farm: Farm, inventory: Inventory) -> Manifest | None:
    """Return the view whose files, all and no others, an inventory has; None if there is none."""
    paths = {view_file.file.host_path for view_file in model.view_files(inventory.files)}
    prefix = farm.path + "/"
    if not paths or not all(path.startswith(prefix) for path in paths):
        return None
    for manifest in farm.manifests():
        if paths == {file.host_path for file in manifest.held_files}:
            return manifest
    return None


def _job(farm: Farm, inventory: Inventory, root: str) -> _Job:
    view_files: list[ViewFile] = []
    sources: dict[str, Identity] = {}
    left_out: list[tuple[str, str]] = []
    for view_file in model.view_files(inventory.files):
        path = view_file.file.host_path
        with OSErrorsAs(
            HostError,
            f"{path} was removed while a view was made",
            hint="is the driver being installed? try again",
        ):
            status = os.lstat(path)
        reason = _unusable(status)
        if reason:
            left_out.append((path, reason))
            continue
        view_files.append(view_file)
        sources[path] = Identity.of(status)
    if not any(view_file.file.kind == "library" for view_file in view_files):
        raise HostError(f"{root} has no library of driver {inventory.driver_version}")
    content = ViewContent(view_files, model.links(view_files))
    name = f"{inventory.driver_version}-{_key(content, sources)}"
    return _Job(name, root, inventory, content, sources, left_out, _origins(farm, view_files))


def _unusable(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_mode & methods.S_ISUGID:
        # A package upgrade also sets the mode of such a file's hard links to 0600 (dpkg).
        return "setuid or setgid"
    if status.st_mode & stat.S_IWOTH:
        return "everybody can write to it"
    return ""


def _key(content: ViewContent, sources: Mapping[str, Identity]) -> str:
    files = [
        (p.path, p.file.host_path, *_numbers(p.path, sources[p.file.host_path]))
        for p in content.files
    ]
    text = json.dumps([FORMAT, files, [(link.path, link.target) for link in content.links]])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _numbers(path: str, identity: Identity) -> tuple[int, ...]:
    times = () if LIVE in path else (identity.mtime_ns,)
    return (identity.dev, identity.ino, identity.size, *times)


def _origins(farm: Farm, view_files: Sequence[ViewFile]) -> dict[str, DriverFile]:
    prefix = farm.path + "/"
    if not any(view_file.file.host_path.startswith(prefix) for view_file in view_files):
        return {}
    return {
        manifest.host_path(entry.path): entry.file
        for manifest in farm.manifests()
        for entry in manifest.entries
    }


def _make(farm: Farm, job: _Job, allowed: Sequence[Method]) -> Manifest:
    last = ""  # the reason of the last method, which asks least of the host
    for method in allowed:
        try:
            return _in_place(farm, job) if method == "own" else _in_temporary(farm, job, method)
        except RefusedError as reason:
            last = str(reason)
        except OSError as error:
            raise HostError(
                f"the view {farm.view(job.name)} cannot be made: {error.strerror} "
                f"({error.filename or method})"
            ) from error
    raise HostError(
        f"no view of driver {job.inventory.driver_version} can be made: {last}",
        hint="run nvct farm build as root, or name another farm-dir in config.toml",
    )


def _in_place(farm: Farm, job: _Job) -> Manifest:
    if job.origins:
        raise RefusedError("the files are those of another view")
    methods.in_own_folder(farm, job.root, job.content)
    view_files = [
        view_file._replace(path=os.path.relpath(view_file.file.host_path, job.root))
        for view_file in job.content.files
    ]
    own_job = job._replace(content=ViewContent(view_files, job.content.links))
    return _store(farm, own_job, "own", job.root, job.root)


def _in_temporary(farm: Farm, job: _Job, method: Method) -> Manifest:
    temporary = f"{farm.path}/{folder.BUILDING}{temporary_name().lstrip('.')}"
    final = farm.view(job.name)
    farm.kernel.mkdir(temporary, 0o755)
    try:
        farm.kernel.chmod(temporary, 0o755)
        if method == "binds":
            methods.bind(farm, temporary, final, job.content, job.name)
        else:
            methods.fill(farm, temporary, job.content, method)
        manifest = _store(farm, job, method, final, final if method == "binds" else temporary)
        if method != "binds":
            farm.kernel.rename(temporary, final)
    except BaseException:
        if method == "binds":
            _unmount(farm, final)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _store(farm: Farm, job: _Job, method: Method, path: str, made_at: str) -> Manifest:
    entries = []
    for view_file in job.content.files:
        source = view_file.file.host_path
        entry = Entry(
            path=view_file.path,
            file=job.origins.get(source, view_file.file),
            source=job.sources[source],
            held=Identity.of(os.lstat(f"{made_at}/{view_file.path}")),
        )
        # A driver that is replaced during the build would give a mixture of two versions.
        if not entry.is_live and entry.source != _identity(source):
            raise HostError(
                f"{source} changed while a view was made",
                hint="is the driver being installed? try again",
            )
        entries.append(entry)
    manifest = Manifest(
        name=job.name,
        version=job.inventory.driver_version,
        cuda_version=job.inventory.cuda_version,
        method=method,
        path=path,
        made=int(time.time()),
        entries=tuple(entries),
        links=tuple(job.content.links),
        left_out=tuple(job.left_out),
    )
    farm.store(manifest)
    return manifest


def _identity(path: str) -> Identity | None:
    try:
        return Identity.of(os.lstat(path))
    except OSError:
        return None


def put_aside(farm: Farm, name: str) -> str:
    """Rename a view, under the lock; return its temporary path, "" if there was no view.

    Containers keep it: a mount does not depend on a name. An empty folder stays: it may be the
    mount point of a view in another mount namespace, which would lose the mount. Raises HostError
    if the view cannot be renamed.
    """
    path = farm.view(name)
    _unmount(farm, path)
    try:
        if not os.listdir(path):
            return ""
    except FileNotFoundError:
        return ""
    except OSError:
        pass  # not a folder
    temporary = f"{farm.path}/{folder.GONE}{temporary_name().lstrip('.')}"
    with OSErrorsAs(HostError, f"{path} cannot be replaced"):
        farm.kernel.rename(path, temporary)
    return temporary


def _unmount(farm: Farm, path: str) -> None:
    if os.path.ismount(path):
        farm.kernel.umount2(path, MNT_DETACH)
