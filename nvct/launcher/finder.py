# SPDX-License-Identifier: Apache-2.0
"""Imports the hot side from the archive that `nvct.launcher.archive` makes.

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

    Module: TypeAlias = tuple[int, int, bool, int, int, tuple[str, ...]]


class Finder:
    """Finder and loader in one, for sys.meta_path.

    Attributes:
        fd: the open archive.
        start: where in it the code of the modules begins.
        packages: the folder that holds nvct.
        modules: by name: size and mtime in ns of the source; whether it is a package; where its
            code begins, counted from `start`, and how long it is; what it imports first of all.
        extensions: path of extension modules. The usual way there is through the folders of
            sys.path and costs 0.2 ms for `_json`.
    """

    __slots__ = ("extensions", "fd", "modules", "packages", "start")

    def __init__(
        self,
        fd: int,
        start: int,
        packages: str,
        modules: dict[str, Module],
        extensions: dict[str, str],
    ) -> None:
        """Keep them; no code is read before its module is imported."""
        self.fd = fd
        self.start = start
        self.packages = packages
        self.modules = modules
        self.extensions = extensions

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is here and fresh, None for others."""
        found = self.modules.get(name)
        if found is None:
            return self._extension(name) if name in self.extensions else None
        size, mtime_ns, is_package = found[:3]
        place = f"{self.packages}/{name.replace('.', '/')}"
        source = f"{place}/__init__.py" if is_package else f"{place}.py"
        try:
            now = posix.stat(source)
        except OSError:
            return None
        if now.st_mtime_ns != mtime_ns or now.st_size != size:
            return None
        spec = ModuleSpec(name, self, origin=source, is_package=is_package)  # type: ignore[arg-type]  # a loader by what it can
        if is_package:
            spec.submodule_search_locations = [place]  # for what is not here
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to the interpreter to make a module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it, and before that the code of what it imports.

        The import system is gone through once for all of them: 5 us a module instead of 22.
        """
        name = module.__name__
        for needed in self.modules[name][5]:
            if needed not in sys.modules:
                self._load(needed)
        self._run(name, module)

    def _load(self, name: str) -> None:
        """Do what the import system does for a module, or leave it to that."""
        spec = self.find_spec(name)
        if spec is None:
            return
        parent, _, child = name.rpartition(".")
        if parent and parent not in sys.modules:
            return
        module = type(sys)(name)  # `types` is not loaded
        module.__spec__ = spec
        module.__loader__ = spec.loader
        module.__package__ = spec.parent
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module
        try:
            self._run(name, module)
        except BaseException:
            del sys.modules[name]
            raise
        if parent:
            setattr(sys.modules[parent], child, module)

    def _run(self, name: str, module: ModuleType) -> None:
        _, _, _, offset, length, _ = self.modules[name]
        code = loads(posix.pread(self.fd, length, self.start + offset))  # noqa: S302  the owner was checked
        exec(code, module.__dict__)  # noqa: S102  as every import does

    def _extension(self, name: str) -> ModuleSpec | None:
        from _frozen_importlib_external import ExtensionFileLoader

        path = self.extensions[name]
        try:
            posix.stat(path)
        except OSError:
            return None
        return ModuleSpec(name, ExtensionFileLoader(name, path), origin=path)


def install(
    fd: int, start: int, packages: str, modules: dict[str, Module], extensions: dict[str, str]
) -> None:
    """Let imports look into the archive first."""
    sys.meta_path.insert(0, Finder(fd, start, packages, modules, extensions))
