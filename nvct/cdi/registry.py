# SPDX-License-Identifier: Apache-2.0
"""What the CDI spec folders hold: spec files, devices by name, and what is wrong.

Cold, and imports little: `nvidia-ctk cdi list` is this and a print. A folder's place in the list
is its priority, the last one wins. One bad file or folder costs nothing but itself. Two files of
the same folder that define the same device make it unusable there: a folder of higher priority
still defines it, one of lower priority does not step in. That differs from the CDI library (up to
1.1.0), where a conflict in one folder also hides a valid definition in a higher one, and an
unreadable folder all that come after it.
"""

from __future__ import annotations

import os

from nvct.cdi import load, names
from nvct.errors import CdiConflictError, HostError, NvctError, UnknownDeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.cdi.types import Device, Spec


class SpecFile:
    """One spec file that could be read.

    Attributes:
        priority: place of its folder in the list of folders.
    """

    __slots__ = ("path", "priority", "spec")

    def __init__(self, *, path: str, priority: int, spec: Spec) -> None:
        self.path = path
        self.priority = priority
        self.spec = spec


class Registry:
    """What was found.

    Attributes:
        specs: in order of priority, then of file name.
        devices: qualified name -> where it comes from, and the device.
        errors: path of a file or folder -> why it could not be used.
        conflicts: qualified name -> the files that define it; it is not in `devices`.
        inputs: the folders and files that were looked at, those with errors as well.
    """

    __slots__ = ("conflicts", "devices", "errors", "inputs", "specs")

    def __init__(self) -> None:
        self.specs: list[SpecFile] = []
        self.devices: dict[str, tuple[SpecFile, Device]] = {}
        self.errors: dict[str, NvctError] = {}
        self.conflicts: dict[str, list[str]] = {}
        self.inputs: list[str] = []

    def device(self, name: str) -> tuple[SpecFile, Device]:
        """Return a device by its qualified name, and the file it comes from.

        Raises:
            RequestError: it is no qualified name.
            CdiConflictError: two files of the same priority define it.
            UnknownDeviceError: no file defines it.
        """
        names.parse(name)
        if name in self.conflicts:
            raise CdiConflictError(
                f"{name} is defined by {' and '.join(self.conflicts[name])}",
                hint="remove it from all but one of them",
            )
        if name not in self.devices:
            raise UnknownDeviceError(
                f"no CDI spec defines {name}", hint="nvidia-ctk cdi list shows what there is"
            )
        return self.devices[name]


def scan(dirs: Sequence[str]) -> Registry:
    """Read the spec files in folders; a folder that is not there is fine.

    Nothing is raised: what cannot be used is in `errors` and `conflicts`.
    """
    registry = Registry()
    for priority, folder in enumerate(dirs):
        registry.inputs.append(folder)
        found: list[SpecFile] = []
        for path in _spec_paths(folder, registry.errors):
            registry.inputs.append(path)
            try:
                spec = load.load_file(path, owned=True)
            except NvctError as error:
                registry.errors[path] = error
            else:
                found.append(SpecFile(path=path, priority=priority, spec=spec))
        registry.specs.extend(found)
        _add_devices(registry, found)
    return registry


def _spec_paths(folder: str, errors: dict[str, NvctError]) -> list[str]:
    """Return the spec files right in a folder, in order of name."""
    try:
        with os.scandir(folder) as entries:
            found = [
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
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether it is a folder; a link that leads nowhere is a file that can't be read."""
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def _add_devices(registry: Registry, files: list[SpecFile]) -> None:
    """Put the devices of one folder over those of the folders before it."""
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
