# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration as it loads it: the root file, its imports, and what holds of them.

As containerd does (cmd/containerd/server/config/config.go): imports are taken breadth first, a
relative one from the folder of the file that names it (a pattern only since 1.7: seen on 1.6.20
and 1.7.24), a pattern's in the order of their names, no file twice. What comes later wins: before
2.1 a plugin's table replaces the one before as a whole, since then tables are merged key by key
and lists united (containerd pull request 9982).
"""

from __future__ import annotations

import fnmatch
import posixpath
from dataclasses import dataclass

from nvct.engine import toml_file
from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from nvct.engine.model import Files, Wanted

    Path: TypeAlias = tuple[str, ...]
    Table: TypeAlias = dict[str, object]

CONFIG = "/etc/containerd/config.toml"
CRI = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
"""Version of the format → the name under [plugins] that the CRI's runtimes have in it."""
DISABLED = frozenset(CRI.values())
RELATIVE_PATTERNS = (1, 7)
MERGES = (2, 1)  # the first release that merges plugins' tables
VERSION_3 = (2, 0)  # the first release that reads version 3, and the CRI in no version 1
FILE_LIMIT = 256  # files that one configuration may have; containerd has no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One file: path, bytes (None: there is none), and what it says."""

    path: str
    data: bytes | None
    document: Table

    @property
    def version(self) -> int:
        """Return the version that it names, 0 if none."""
        version = self.document.get("version", 0)
        return version if isinstance(version, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All files, root first, in containerd's order.

    Attributes:
        files: that were read.
        version: of the root file; 1 where it names none.
        deep: whether this containerd merges tables of plugins.
        unread: whether it reads no CRI settings in a file of version 1, as containerd 2 does not.
        relative: whether it surely takes a relative pattern from the folder of its file.
        missing: files that are named, not matched by a pattern, and are not there.
    """

    files: tuple[Loaded, ...]
    version: int
    deep: bool
    unread: bool = False
    relative: bool = False
    missing: tuple[str, ...] = ()

    @property
    def root(self) -> Loaded:
        """Return the root file."""
        return self.files[0]

    def cri_path(self, loaded: Loaded) -> Path:
        """Return the path of the CRI's table in a file, whether it is there or not."""
        names = [CRI[loaded.version]] if loaded.version in CRI else []
        names += [CRI[self.version], *CRI.values()]
        for name in names:
            if isinstance(toml_file.find(loaded.document, ("plugins", name)), dict):
                return "plugins", name
        return "plugins", names[0]

    def cri(self, loaded: Loaded) -> Table | None:
        """Return the CRI's table of a file, None if it has none."""
        path = self.cri_path(loaded)
        if self.unread and path[1] == CRI[1]:
            return None
        found = toml_file.find(loaded.document, path)
        return found if isinstance(found, dict) else None

    def effective(self, without: str = "") -> Table:
        """Return the CRI's table that holds, of all files but one."""
        table: Table = {}
        for loaded in self.files:
            own = self.cri(loaded)
            if own is not None and loaded.path != without:
                table = merged(table, own) if self.deep else own
        return table

    def winner(self) -> Loaded:
        """Return the file whose CRI table is in force: the last that has one, or the root."""
        own = [loaded for loaded in self.files if self.cri(loaded) is not None]
        return own[-1] if own else self.root

    def get(self, path: str) -> Loaded | None:
        """Return a file that was read, None if it was not."""
        return next((loaded for loaded in self.files if loaded.path == path), None)


def load(wanted: Wanted, files: Files) -> Config:
    """Read the root file and whatever it imports; without a root file, the engine's defaults hold.

    Raises:
        DocumentError: a file cannot be read, is no TOML, or is of an unknown version.
    """
    path = wanted.config or CONFIG
    root = _read(path, files)
    version = _version(root, wanted.engine_version)
    found = [root]
    missing: list[str] = []
    relative = not wanted.engine_version or wanted.engine_version >= RELATIVE_PATTERNS
    pending = _imports(root, files, relative=relative)
    while pending:
        place = pending.pop(0)
        if any(loaded.path == place for loaded in found):
            continue
        loaded = _read(place, files)
        if loaded.data is None:
            missing.append(place)
            continue
        if len(found) == FILE_LIMIT:
            raise EngineConfigError(f"{path} imports more than {FILE_LIMIT} files")
        found.append(loaded)
        pending += _imports(loaded, files, relative=relative)
    config = Config(
        files=tuple(found),
        version=version,
        deep=wanted.engine_version >= MERGES,
        unread=wanted.engine_version >= VERSION_3,
        relative=wanted.engine_version >= RELATIVE_PATTERNS,
        missing=tuple(missing),
    )
    for loaded in found:
        _check_tables(loaded, config.cri_path(loaded))
    return config


def _read(path: str, files: Files) -> Loaded:
    data = files.read(path)
    return Loaded(path=path, data=data, document=toml_file.parse(data or b"", path))


def _check_tables(loaded: Loaded, cri: Path) -> None:
    """Refuse another kind of thing where containerd wants a table."""
    paths = [cri[:1], cri, (*cri, "containerd"), (*cri, "containerd", "runtimes")]
    found = toml_file.find(loaded.document, paths[-1])
    paths += [(*paths[-1], name) for name in (found if isinstance(found, dict) else ())]
    for path in paths:
        item = toml_file.find(loaded.document, path)
        if item is not None and not isinstance(item, dict):
            raise EngineConfigError(
                f"{loaded.path}: {'.'.join(path)} is {item!r:.40}, not a table",
                hint="correct the file",
            )


def _version(root: Loaded, engine: tuple[int, ...]) -> int:
    if root.data is None or not root.document:
        return 3 if engine >= VERSION_3 else 2
    version = root.document.get("version", 1)
    if type(version) is not int or version not in CRI:
        raise EngineConfigError(
            f"{root.path}: version is {version!r:.40}, not 1, 2, 3 or 4",
            hint="correct it to the version that containerd reads",
        )
    return root.version or 1


def _imports(loaded: Loaded, files: Files, *, relative: bool) -> list[str]:
    found: list[str] = []
    for pattern in patterns(loaded, relative=relative):
        found += _glob(pattern, files) if "*" in pattern else [pattern]
    return found


def patterns(loaded: Loaded, *, relative: bool = True) -> list[str]:
    """Return the paths and patterns that a file imports, absolute.

    Where a `relative` pattern is not known, it is one of the working folder, which is / here.

    Raises:
        EngineConfigError: its `imports` are no list of strings.
    """
    imports = loaded.document.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(item, str) for item in imports):
        raise EngineConfigError(f"{loaded.path}: imports is {imports!r:.60}, not a list of paths")
    folder = posixpath.dirname(loaded.path)
    return [
        posixpath.normpath(posixpath.join(folder if relative or "*" not in item else "/", item))
        for item in imports
    ]


def _glob(pattern: str, files: Files) -> list[str]:
    """Return the files that match, in the order of Go's filepath.Glob: by folder, by name."""
    folders = ["/"]
    for part in pattern.strip("/").split("/"):
        inside: list[str] = []
        for folder in folders:
            one = [posixpath.join(folder, part)]
            paths = files.names(folder, "") if _is_pattern(part) else one
            inside += [path for path in paths if matches(posixpath.basename(path), part)]
        folders = inside
    return folders


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


def matches(path: str, pattern: str) -> bool:
    """Say whether a path is one that a pattern of `imports` takes in; * does not span folders."""
    names, parts = path.split("/"), pattern.split("/")
    if len(names) != len(parts):
        return False
    # Go's pattern has [^a] where Python's has [!a].
    return all(
        fnmatch.fnmatchcase(name, part.replace("[^", "[!"))
        for name, part in zip(names, parts, strict=True)
    )


def merged(table: Mapping[str, object], over: Mapping[str, object]) -> Table:
    """Return two tables as containerd 2.1 merges them: no empty value wins, lists are united."""
    result = dict(table)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = merged(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            result[key] = [*old, *(item for item in value if item not in old)]
        elif value or key not in result:
            result[key] = value
    return result


def runtimes(cri: Mapping[str, object]) -> dict[str, Table]:
    """Return the runtimes of a CRI table: name → its table."""
    found = toml_file.find(dict(cri), ("containerd", "runtimes"))
    if not isinstance(found, dict):
        return {}
    return {name: table for name, table in found.items() if isinstance(table, dict)}


def binary(runtime: Mapping[str, object]) -> str:
    """Return the program of a runtime; "" where the shim looks it up."""
    options = runtime.get("options")
    if not isinstance(options, dict):
        return ""
    # `Runtime` is what the shim of containerd 1.0 (io.containerd.runtime.v1.linux) reads.
    found = options.get("BinaryName") or options.get("Runtime")
    return found if isinstance(found, str) else ""


def default(cri: Mapping[str, object]) -> str:
    """Return the name of a CRI table's default runtime, "" if it names none."""
    found = toml_file.find(dict(cri), ("containerd", "default_runtime_name"))
    return found if isinstance(found, str) else ""


def strings(cri: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a list of strings, () for anything else."""
    found = cri.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def is_imported(path: str, config: Config) -> bool:
    """Say whether one of the files imports a path, be it there or not."""
    return any(
        matches(path, pattern) if "*" in pattern else path == pattern
        for one in config.files
        for pattern in patterns(one, relative=config.relative)
    )
