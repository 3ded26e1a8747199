# SPDX-License-Identifier: Apache-2.0
"""Views of a driver's user space, and the manifest that describes the content of each.

Contract: values and their JSON form. A manifest is beside its view, belongs to root like the view,
and is the only record of the driver's files after a package upgrade has replaced them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from os import stat_result
from typing import Any, Literal, TypeAlias

from nvct.errors import DocumentError
from nvct.host.driver.libraries import COMPAT_MACHINES
from nvct.host.model import DriverFile, Link

FORMAT = 1
Method: TypeAlias = Literal["own", "links", "reflinks", "binds", "copies"]
METHODS: tuple[Method, ...] = ("own", "links", "reflinks", "binds")
"""Methods to make a view of a driver on the disk, cheapest first."""
LEAN: tuple[Method, ...] = ("own", "links", "reflinks")
"""Methods whose view is one mount of existing files, and survives a boot."""
SAVING: tuple[Method, ...] = ("links", "reflinks", "copies", "binds")
"""Methods to make a view from another view's files of a driver that is gone from the disk."""
# A simulated node's state, not the driver's: a library that changes while it is in use.
LIVE = "libnvidia-simstate.so."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The stat data that identify an unchanged file."""

    dev: int
    ino: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: stat_result) -> Identity:
        """Return the identity of a file."""
        return cls(
            dev=status.st_dev, ino=status.st_ino, size=status.st_size, mtime_ns=status.st_mtime_ns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a view.

    Attributes:
        path: relative to the view.
        file: as in the inventory; its host path is that of the driver's own file, even if another
            view was the source.
        source: identity of the driver's file when the view was made.
        held: identity of the view's file.
        digest: of its content; "" until `verify` computes it.
    """

    path: str
    file: DriverFile
    source: Identity
    held: Identity
    digest: str = ""

    @property
    def is_live(self) -> bool:
        """Return whether the file changes while it is in use."""
        return LIVE in self.path

    def is_kept(self, current: Identity) -> bool:
        """Return whether the view's file is unchanged.

        The device number is not compared: it may change at each boot.
        """
        is_same_file = (current.ino, current.size) == (self.held.ino, self.held.size)
        return is_same_file and (self.is_live or current.mtime_ns == self.held.mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a view and its origin.

    Attributes:
        name: of the view: the driver's version and a hash of the sources.
        path: of the view's folder; outside the farm if method is "own".
        made: seconds since 1970.
        links: paths relative to the view, with their targets.
        left_out: host paths that are missing in the view, with the reasons.
    """

    name: str
    version: str
    cuda_version: str
    method: Method
    path: str
    made: int
    entries: tuple[Entry, ...]
    links: tuple[Link, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def host_path(self, path: str) -> str:
        """Return the host path of a path in the view."""
        return f"{self.path}/{path}"

    @property
    def held_files(self) -> tuple[DriverFile, ...]:
        """Return the driver's files with the view's files as host paths."""
        return tuple(
            replace(entry.file, host_path=self.host_path(entry.path)) for entry in self.entries
        )


def dumps(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return (json.dumps({"nvct-farm": FORMAT, **asdict(manifest)}, indent=1) + "\n").encode()


def loads(data: bytes, path: str) -> Manifest:
    """Parse a manifest.

    Raises:
        DocumentError: it is damaged, or of another version.
    """
    try:
        document = json.loads(data)
        if document.pop("nvct-farm") != FORMAT:
            raise DocumentError(f"{path} is of another version")
        document["entries"] = tuple(_entry(entry) for entry in document["entries"])
        document["links"] = tuple(Link(**link) for link in document["links"])
        document["left_out"] = tuple((str(a), str(b)) for a, b in document["left_out"])
        manifest = Manifest(**document)
        _check(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DocumentError(f"{path} is no manifest of a view: {error}") from error
    return manifest


def _entry(document: dict[str, Any]) -> Entry:
    file = document.pop("file")
    file["links"] = tuple(Link(**link) for link in file["links"])
    file["needed"] = tuple(file["needed"])
    if file["kind"] == "library":  # manifests before plan format 5 lack it
        is_compat = file["capability"] == "compat32"
        machine = os.uname().machine
        file.setdefault("machine", COMPAT_MACHINES.get(machine, "") if is_compat else machine)
    source, held = Identity(**document.pop("source")), Identity(**document.pop("held"))
    return Entry(**document, file=DriverFile(**file), source=source, held=held)


def _check(manifest: Manifest) -> None:
    """Refuse a manifest with values of wrong types or paths outside the view.

    Raises:
        ValueError: it has such values.
    """
    if manifest.method not in (*METHODS, *SAVING) or type(manifest.made) is not int:
        raise ValueError(f"method {manifest.method!r}, made {manifest.made!r}")
    texts = [manifest.name, manifest.version, manifest.cuda_version, manifest.path]
    texts += [value for link in manifest.links for value in (link.path, link.target)]
    for entry in manifest.entries:
        texts += [entry.path, entry.digest, entry.file.host_path, entry.file.container_path]
        numbers = [
            getattr(identity, f.name)
            for identity in (entry.source, entry.held)
            for f in fields(identity)
        ]
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"{entry.path} has an identity that is no number")
    if any(type(text) is not str for text in texts):
        raise ValueError("a path is no string")
    below = [*(link.path for link in manifest.links), *(e.path for e in manifest.entries)]
    if any(path.startswith("/") or ".." in path.split("/") for path in below):
        raise ValueError("a path leads out of the view")
