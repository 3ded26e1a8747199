# SPDX-License-Identifier: Apache-2.0
"""Loads a configuration as containerd does: imports, version, its CRI table, what is in force.

As in containerd (cmd/containerd/server/config/config.go): imports are read breadth first; a
relative one starts at the folder of its file (a pattern does so only since 1.7: tested with 1.6.20
and 1.7.24); the matches of a pattern are read in the order of their names; no file is read twice.
Later files win: before 2.0 a plugin's table replaces the earlier one completely, since then tables
are merged key by key and lists are united (containerd pull request 9982).

The last version that a file names is the version of all files. It decides which of the CRI's names
is read. containerd 1.x reads the name of that version; without a version, that is 1. containerd 2
starts with 3: a file of version 1 or without a version gets the version of the file before it, but
its CRI settings are not migrated; those of version 2 are migrated only if 2 is the last version.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nvct.config import toml_file
from nvct.config.tables import ABSENT, Path, Table, find, reduced, string, subtable
from nvct.engine.model import EngineOptions, Files, text_of
from nvct.errors import EngineConfigError
from nvct.host.go_pattern import expand, matches

CONFIG = "/etc/containerd/config.toml"
CRI = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
"""Version of the format → the name under [plugins] that the CRI's runtimes have in it."""
DISABLED = frozenset(CRI.values())
RUNTIMES: Path = ("containerd", "runtimes")  # below the CRI's table
RELATIVE_PATTERNS = (1, 7)
VERSION_3 = (2, 0)
"""The first release that merges tables and reads version 3; it has none of version 1."""
RUNC_TYPE = "io.containerd.runc.v2"
LINUX_V1 = "io.containerd.runtime.v1.linux"  # the shim of containerd 1.0, gone with 2.0
DEFAULT, LEGACY_TABLE = "default_runtime_name", "default_runtime"
LEGACY_DEFAULT = "default"  # the name that containerd gives that table
FILE_LIMIT = 256  # files that one configuration may have; containerd has no limit


class Cri(NamedTuple):
    """The CRI's table, of one file or of all files merged."""

    table: Table
    modern: bool  # whether containerd 2 reads it

    @property
    def runtimes(self) -> dict[str, Table]:
        """The table of each runtime by its name."""
        tables = subtable(self.table, RUNTIMES)
        return {name: table for name, table in tables.items() if isinstance(table, dict)}

    @property
    def default(self) -> str:
        """The name of the default runtime, "" if the table names none."""
        return LEGACY_DEFAULT if self.legacy else string(self.table.get("containerd"), DEFAULT)

    @property
    def legacy(self) -> Table:
        """The table `default_runtime` of containerd 1.x, {} if it sets nothing.

        With a type it is the default runtime, whatever default_runtime_name says. Without one, as
        `containerd config default` wrote it, it has no effect (pkg/cri/config,
        ValidatePluginConfig).
        """
        table = subtable(self.table, ("containerd", LEGACY_TABLE))
        return {} if self.modern or not table.get("runtime_type") else table

    def systemd_cgroup(self, runtime: Mapping[str, object]) -> bool:
        """Report whether a runtime has the cgroup driver systemd.

        Without options, containerd 1.0's shim gets the CRI's setting (generateRuntimeOptions).
        """
        options = runtime.get("options")
        if isinstance(options, dict):
            return bool(options.get("SystemdCgroup"))
        return runtime.get("runtime_type") == LINUX_V1 and bool(self.table.get("systemd_cgroup"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One file: path, bytes (None if it does not exist), and content."""

    path: str
    data: bytes | None
    document: Table

    @property
    def version(self) -> int:
        """The version that it names, 0 if none."""
        version = self.document.get("version", 0)
        return version if isinstance(version, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All files, root first, in containerd's order."""

    files: tuple[Loaded, ...]
    version: int  # of the format, for all files
    modern: bool  # whether this is containerd 2, which merges tables and reads no CRI of version 1
    relative: bool = False  # whether a relative pattern surely starts at the folder of its file
    missing: tuple[str, ...] = ()  # files that are imported by name and do not exist

    @property
    def root(self) -> Loaded:
        """Return the root file."""
        return self.files[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the CRI's table that are read; the one that wins comes first."""
        if not self.modern:
            return (CRI[min(self.version, 2)],)  # containerd 1.x knows no other
        newest = CRI[max(CRI)]
        if self.version > 2:
            return (newest,)
        path = ("plugins", newest, *RUNTIMES)
        has_newest = any(find(loaded.document, path) not in (ABSENT, {}) for loaded in self.files)
        return (newest, CRI[2]) if has_newest else (CRI[2], newest)

    def unread(self, keys: Sequence[str] = ("containerd",)) -> list[tuple[Loaded, str]]:
        """Return file and name of each CRI table that is not read and has one of the keys."""
        names = [name for name in dict.fromkeys(CRI.values()) if name not in self.names]
        return [
            (loaded, name)
            for loaded in self.files
            for name in names
            if not subtable(loaded.document, ("plugins", name)).keys().isdisjoint(keys)
        ]

    def cri_path(self, loaded: Loaded) -> Path:
        """Return the path of the CRI's table in a file, whether that exists or not."""
        for name in self.names:
            if isinstance(find(loaded.document, ("plugins", name)), dict):
                return "plugins", name
        return "plugins", self.names[0]

    def cri(self, loaded: Loaded) -> Table | None:
        """Return the CRI's table of a file, None if it has none."""
        table = find(loaded.document, self.cri_path(loaded))
        return table if isinstance(table, dict) else None

    def effective(self, without: str = "") -> Cri:
        """Return the CRI's table in force, of all files except one."""
        table: Table = {}
        for loaded in self.files:
            cri = self.cri(loaded)
            if cri is not None and loaded.path != without:
                table = merged(table, cri) if self.modern else cri
        return Cri(table, self.modern)

    def is_without_cri(self) -> bool:
        """Report whether no file has a CRI table, so that a drop-in with one hides nothing."""
        return all(self.cri(loaded) is None for loaded in self.files) and not self.unread()

    def winner(self) -> Loaded:
        """Return the file whose CRI table is in force: the last with one, else the root file."""
        with_cri = [loaded for loaded in self.files if self.cri(loaded) is not None]
        return with_cri[-1] if with_cri else self.root

    def get(self, path: str) -> Loaded | None:
        """Return a file that was read, None if it was not."""
        return next((loaded for loaded in self.files if loaded.path == path), None)


def load(options: EngineOptions, files: Files) -> Config:
    """Read the root file, or without one the defaults, and all imports. Raises DocumentError."""
    root = options.config or CONFIG
    relative = not options.engine_version or options.engine_version >= RELATIVE_PATTERNS
    loaded_files, missing = _with_imports(root, files, relative=relative)
    version = _version(loaded_files[0], options.engine_version)
    newest = max(version, *(loaded.version for loaded in loaded_files))
    modern = options.engine_version >= VERSION_3 if options.engine_version else newest > 2
    config = Config(
        files=tuple(loaded_files),
        version=_effective_version(loaded_files, version, modern=modern),
        modern=modern,
        relative=modern or options.engine_version >= RELATIVE_PATTERNS,
        missing=tuple(missing),
    )
    for loaded in loaded_files:
        if modern:  # its parser accepts UTF-8 alone; go-toml v1 of containerd 1.x, any byte
            toml_file.decode(loaded.data or b"", loaded.path)
        # Refuse another kind of value where containerd expects a table.
        runtimes = (*config.cri_path(loaded), *RUNTIMES)
        for name in toml_file.table(loaded.document, runtimes, loaded.path):
            toml_file.table(loaded.document, (*runtimes, name), loaded.path)
    return config


def parsed(path: str, data: bytes | None) -> Loaded:
    """Return a file with this content, without its imports; EngineConfigError if not TOML."""
    return Loaded(path=path, data=data, document=toml_file.parse(text_of(data or b""), path))


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


def _effective_version(files: Sequence[Loaded], root: int, *, modern: bool) -> int:
    versions = [loaded.version for loaded in files if loaded.version in CRI]
    if not modern:
        return versions[-1] if versions else root
    versions = [version for version in versions if version > 1]
    return versions[-1] if versions else 3


def _with_imports(root: str, files: Files, *, relative: bool) -> tuple[list[Loaded], list[str]]:
    """Return a file with all its imports, and the paths of imports that do not exist."""
    loaded_files: list[Loaded] = []
    missing: list[str] = []

    def names(folder: str) -> list[str]:
        return [posixpath.basename(path) for path in files.names(folder, "")]

    pending = [root]
    while pending:
        path = pending.pop(0)
        if any(loaded.path == path for loaded in loaded_files):
            continue
        loaded = parsed(path, files.read(path))
        if loaded.data is None and loaded_files:
            missing.append(path)
            continue
        if len(loaded_files) == FILE_LIMIT:
            raise EngineConfigError(f"{root} imports more than {FILE_LIMIT} files")
        loaded_files.append(loaded)
        for pattern in patterns(loaded, relative=relative):
            # As Go's filepath.Glob, by folder and by name.
            pending += expand(pattern, names) if "*" in pattern else [pattern]
    return loaded_files, missing


def patterns(loaded: Loaded, *, relative: bool = True) -> list[str]:
    """Return the paths and patterns that a file imports, as absolute ones. EngineConfigError.

    Unless `relative`, a relative pattern starts at containerd's working folder, assumed to be /.
    """
    imports = loaded.document.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(item, str) for item in imports):
        raise EngineConfigError(f"{loaded.path}: imports is {imports!r:.60}, not a list of paths")
    folder = posixpath.dirname(loaded.path)
    return [
        posixpath.normpath(posixpath.join(folder if relative or "*" not in item else "/", item))
        for item in imports
    ]


def merged(table: Mapping[str, object], over: Mapping[str, object]) -> Table:
    """Return `over` merged into a table as containerd 2.1 does: lists unite, empty values lose."""
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


def set_only(table: Mapping[str, object]) -> Table:
    """Return a table without the values that are containerd's defaults."""
    return reduced(table, lambda _key, value: value in ("", 0, [], {}))


def binary(runtime: Mapping[str, object]) -> str:
    """Return the program of a runtime; "" if the shim looks it up."""
    options = subtable(runtime, ("options",))
    # `Runtime` is what the shim of containerd 1.0 (io.containerd.runtime.v1.linux) reads.
    return string(options, "BinaryName" if options.get("BinaryName") else "Runtime")


def is_imported(path: str, config: Config) -> bool:
    """Report whether one of the files imports a path, whether it exists or not."""
    return any(
        matches(path, pattern) if "*" in pattern else path == pattern
        for loaded in config.files
        for pattern in patterns(loaded, relative=config.relative)
    )


def cri_of_dump(dump: str) -> Cri:
    """Return the CRI's table of a dump, or an empty one; EngineConfigError if it is not TOML."""
    document = toml_file.parse(dump, "containerd config dump")
    version = document.get("version", 1)
    known = version if isinstance(version, int) else 1
    table = subtable(document, ("plugins", CRI.get(known, CRI[4])))
    # A dump has empty `options` where the files have none.
    return Cri(reduced(table, lambda key, value: (key, value) == ("options", {})), known > 2)
