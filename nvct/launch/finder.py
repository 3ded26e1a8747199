# SPDX-License-Identifier: Apache-2.0
"""Imports the hot side from the archive that `nvct.launch.archive` makes.

Hot, and no module of the hot side imports it: its code stands first in the archive, and the
launcher's boot text runs that. Contract: a module whose source is not as it was when the archive
was made is not taken from it, so that changed code is never run stale; the usual import finds it.
"""

from __future__ import annotations

import posix
import sys
from _frozen_importlib import ModuleSpec
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import TypeAlias

    Module: TypeAlias = tuple[str, int, int, bool, int, int]


class Finder:
    """Finder and loader in one, for sys.meta_path.

    Attributes:
        fd: the open archive.
        modules: source path, its size and mtime in ns, whether it is a package; where its code
            stands in the archive, and how long that is.
        extensions: path of extension modules. The usual way there is through the folders of
            sys.path and costs 0.2 ms for `_json`.
    """

    __slots__ = ("extensions", "fd", "modules")

    def __init__(
        self, fd: int, modules: dict[str, Module], extensions: dict[str, str]
    ) -> None:
        """Keep them; no code is read before its module is imported."""
        self.fd = fd
        self.modules = modules
        self.extensions = extensions

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is here and fresh, None for others."""
        found = self.modules.get(name)
        if found is None:
            return self._extension(name) if name in self.extensions else None
        source, size, mtime_ns, is_package, _, _ = found
        try:
            now = posix.stat(source)
        except OSError:
            return None
        if now.st_mtime_ns != mtime_ns or now.st_size != size:
            return None
        spec = ModuleSpec(name, self, origin=source, is_package=is_package)  # type: ignore[arg-type]  # a loader by what it can
        if is_package:
            spec.submodule_search_locations = [source.rpartition("/")[0]]  # for what is not here
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to the interpreter to make a module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it."""
        _, _, _, _, offset, length = self.modules[module.__name__]
        exec(loads(posix.pread(self.fd, length, offset)), module.__dict__)  # noqa: S102  as every import does

    def _extension(self, name: str) -> ModuleSpec | None:
        from _frozen_importlib_external import ExtensionFileLoader

        path = self.extensions[name]
        try:
            posix.stat(path)
        except OSError:
            return None
        return ModuleSpec(name, ExtensionFileLoader(name, path), origin=path)


def install(fd: int, modules: dict[str, Module], extensions: dict[str, str]) -> None:
    """Let imports look into the archive first."""
    sys.meta_path.insert(0, Finder(fd, modules, extensions))  # type: ignore[arg-type]  # a finder by what it can
