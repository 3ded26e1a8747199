# SPDX-License-Identifier: Apache-2.0
"""The content of the CDI spec folders: spec files, devices by name, and errors.

Cold side; imports little, for `nvidia-ctk cdi list`. A folder's position in the list is its
priority; the last one wins. A bad file or folder does not affect the others. If two files of one
folder define a device, the device is unusable, unless a folder of higher priority defines it. That
differs from the CDI library (up to 1.1.0), where a conflict in one folder also hides a valid
definition in a folder of higher priority, and an unreadable folder hides all later ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from nvct.cdi import names
from nvct.cdi.read import load
from nvct.cdi.types import Device, Spec
from nvct.errors import HostError, NvctError


class SpecFile:
    """One readable spec file."""

    __slots__ = ("path", "spec")

    def __init__(self, *, path: str, spec: Spec) -> None:
        self.path = path
        self.spec = spec


class Registry:
    """The spec files and devices of the folders."""

    __slots__ = ("conflicts", "devices", "errors", "specs")

    def __init__(self) -> None:
        self.specs: list[SpecFile] = []  # sorted by priority, then by file name
        # qualified name -> the spec file and the device
        self.devices: dict[str, tuple[SpecFile, Device]] = {}
        # path of a file or folder -> the reason that it is unusable
        self.errors: dict[str, NvctError] = {}
        # qualified name -> the files that define it; it is not in `devices`
        self.conflicts: dict[str, list[str]] = {}


def scan(
    dirs: Sequence[str],
    read: Callable[[str], Spec] = lambda path: load.load_file(path, owned=True),
) -> Registry:
    """Read the spec files in folders, which may be missing; collect errors instead of raising."""
    registry = Registry()
    for folder in dirs:
        spec_files: list[SpecFile] = []
        for path in _spec_paths(folder, registry.errors):
            try:
                spec = read(path)
            except NvctError as error:
                registry.errors[path] = error
            else:
                spec_files.append(SpecFile(path=path, spec=spec))
        registry.specs.extend(spec_files)
        _add_devices(registry, spec_files)
    return registry


def spec_paths(dirs: Sequence[str]) -> list[str]:
    """Return the spec files in folders; unreadable folders have none."""
    return [path for folder in dirs for path in _spec_paths(folder, {})]


def _spec_paths(folder: str, errors: dict[str, NvctError]) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            spec_paths = [
                os.path.join(folder, entry.name)
                for entry in entries
                if entry.name.endswith(load.EXTENSIONS) and not _is_folder(entry)
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        errors[folder] = HostError(
            f"CDI spec folder {folder} cannot be read: {error.strerror}",
            hint="correct spec-dirs in config.toml or the folder's mode",
        )
        return []
    return sorted(spec_paths)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder; a dangling link counts as an unreadable file."""
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def _add_devices(registry: Registry, files: list[SpecFile]) -> None:
    """Add the devices of one folder, which override those of the folders before it."""
    level: dict[str, list[tuple[SpecFile, Device]]] = {}
    for spec_file in files:
        for device in spec_file.spec["devices"]:
            name = names.qualified(spec_file.spec["kind"], device["name"])
            level.setdefault(name, []).append((spec_file, device))
    for name, definitions in level.items():
        registry.devices.pop(name, None)
        registry.conflicts.pop(name, None)
        if len(definitions) == 1:
            registry.devices[name] = definitions[0]
        else:
            registry.conflicts[name] = [spec_file.path for spec_file, _ in definitions]
