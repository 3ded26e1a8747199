# SPDX-License-Identifier: Apache-2.0
"""Imports the hot side from the archive that `nvct.launcher.archive` makes.

Hot. No module imports this one: its code is first in the archive, and the launcher's boot code
runs it. Contract: a module whose source has changed since the archive was made comes from the
source.
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
    """Finder and loader in one, for sys.meta_path."""

    __slots__ = ("extensions", "fd", "modules", "packages", "start")

    def __init__(
        self,
        fd: int,
        start: int,
        packages: str,
        modules: dict[str, Module],
        extensions: dict[str, str],
    ) -> None:
        self.fd = fd
        self.start = start  # offset of the modules' code
        self.packages = packages
        # by name: size and mtime in ns of the source; whether it is a package; offset of its code,
        # relative to `start`, and its length; the modules that it imports
        self.modules = modules
        # paths of extension modules. A search of sys.path costs 0.2 ms for `_json`
        self.extensions = extensions

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with current code in the archive, else None."""
        module = self.modules.get(name)
        if module is None:
            return self._extension(name) if name in self.extensions else None
        size, mtime_ns, is_package = module[:3]
        path = f"{self.packages}/{name.replace('.', '/')}"
        source = f"{path}/__init__.py" if is_package else f"{path}.py"
        try:
            status = posix.stat(source)
        except OSError:
            return None
        if status.st_mtime_ns != mtime_ns or status.st_size != size:
            return None
        spec = ModuleSpec(name, self, origin=source, is_package=is_package)  # type: ignore[arg-type]  # a loader by its methods
        if is_package:
            spec.submodule_search_locations = [path]  # for modules that are not in the archive
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Return None: the interpreter creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of a module, after the code of all modules that it imports.

        The import system runs once for all of them: 5 us per module instead of 22.
        """
        name = module.__name__
        for needed in self.modules[name][5]:
            if needed not in sys.modules:
                self._load(needed)
        self._run(name, module)

    def _load(self, name: str) -> None:
        """Import a module without the import system, if possible."""
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
    """Make imports search the archive first."""
    sys.meta_path.insert(0, Finder(fd, start, packages, modules, extensions))
