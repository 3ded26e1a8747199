# SPDX-License-Identifier: Apache-2.0
"""The spec files and devices that engines use, and the conflicts between files.

Contract: values only, no I/O except for the `origin` of a file. If two folders define a device,
engines take it from the one of higher priority; if two files of one folder do, engines refuse it.
Both cases are reported, once for each pair of files, because otherwise nobody notices until a
container gets the wrong files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from nvct.cdi.make import provenance
from nvct.cdi.names import qualified
from nvct.cdi.read.registry import Registry, SpecFile
from nvct.cdi.types import ContainerEdits, Device

Kind: TypeAlias = Literal[
    "unreadable", "conflict", "shadowed",
    "driver-version", "file-gone", "file-changed", "node-gone", "node-changed", "node-missing",
    "hook-gone", "hook-no-program", "hook-no-env",
    "gpu-gone", "gpu-moved", "gpu-missing", "mig-gone", "mig-moved", "mig-missing",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference between a spec and the host, or between specs."""

    kind: Kind
    source: str  # the spec file or folder, "" if there is none
    sentence: str
    path: str = ""  # of the file, node or hook on the host, "" if there is none
    # qualified names of the affected devices, () for all of the spec
    devices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the sentence after its source."""
        return f"{self.source}: {self.sentence}" if self.source else self.sentence


@dataclass(frozen=True, kw_only=True)
class EffectiveSpec:
    """A spec file and the devices that engines use from it, at least one."""

    file: SpecFile
    devices: tuple[Device, ...]

    @cached_property
    def origin(self) -> provenance.Provenance | None:
        """Return the file's provenance, None if it has none."""
        return provenance.read(self.file.spec, self.file.path)

    @property
    def kind(self) -> str:
        """Return vendor and class of the devices."""
        return self.file.spec["kind"]

    def name(self, device: Device) -> str:
        """Return a device's qualified name."""
        return qualified(self.kind, device["name"])

    def drift(
        self, kind: Kind, sentence: str, path: str = "", devices: tuple[str, ...] = ()
    ) -> Drift:
        """Return a difference of this file."""
        return Drift(
            kind=kind, source=self.file.path, sentence=sentence, path=path, devices=devices
        )

    def edits(self) -> Iterator[tuple[ContainerEdits, tuple[str, ...]]]:
        """Yield all edits in force, each with its device; () for the common edits."""
        yield self.file.spec.get("containerEdits") or {}, ()
        for device in self.devices:
            yield device.get("containerEdits") or {}, (self.name(device),)


def in_force(registry: Registry) -> list[EffectiveSpec]:
    """Return the spec files from which engines use a device, with these devices."""
    effective = []
    for spec_file in registry.specs:
        kind = spec_file.spec["kind"]
        devices = tuple(
            device
            for device in spec_file.spec["devices"]
            if registry.devices.get(qualified(kind, device["name"]), (None,))[0] is spec_file
        )
        if devices:
            effective.append(EffectiveSpec(file=spec_file, devices=devices))
    return effective


def overlaps(registry: Registry) -> list[Drift]:
    """Return the unreadable files, conflicts and shadowed devices, in the order of the files."""
    unread = [
        Drift(
            kind="unreadable",
            source=path,
            path=path,
            sentence=error.message.removeprefix(path).lstrip(": "),
        )
        for path, error in sorted(registry.errors.items())
    ]
    return unread + _conflicts(registry) + _shadows(registry)


def _conflicts(registry: Registry) -> list[Drift]:
    names: dict[tuple[str, ...], list[str]] = {}
    for name, files in sorted(registry.conflicts.items()):
        names.setdefault(tuple(files), []).append(name)
    return [
        Drift(
            kind="conflict",
            source=files[0],
            path=files[0],
            devices=tuple(devices),
            sentence=f"{_listed(devices)} {_are(devices)} also defined by "
            f"{' and '.join(files[1:])}, so engines refuse {'them' if devices[1:] else 'it'}",
        )
        for files, devices in names.items()
    ]


def _shadows(registry: Registry) -> list[Drift]:
    names: dict[tuple[str, str], list[str]] = {}
    for spec_file in registry.specs:
        for device in spec_file.spec["devices"]:
            name = qualified(spec_file.spec["kind"], device["name"])
            if winner := _winner(registry, name, spec_file):
                names.setdefault((spec_file.path, winner), []).append(name)
    return [
        Drift(
            kind="shadowed",
            source=path,
            path=winner,
            devices=tuple(devices),
            sentence=f"{_listed(devices)} {_are(devices)} taken from {winner}, whose folder has a "
            "higher priority",
        )
        for (path, winner), devices in names.items()
    ]


def _winner(registry: Registry, name: str, spec_file: SpecFile) -> str:
    """Return the file that an engine uses for a device instead, "" if it is not shadowed."""
    if name in registry.devices:
        other = registry.devices[name][0]
        return "" if other is spec_file else other.path
    files = registry.conflicts.get(name, [])
    return "" if spec_file.path in files or not files else files[0]


def _listed(names: list[str]) -> str:
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} other devices"


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
