# SPDX-License-Identifier: Apache-2.0
"""Chooses the file for containerd's new keys: a drop-in of their own, or the file in force.

A drop-in that an older toolkit wrote holds a copy of the CRI's whole table, which hides later
edits of the root file. If containerd merges tables, and the copy says nothing that the other files
do not say, it is reduced to our keys.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvct.engine import containerd_load as loading
from nvct.engine import containerd_switches, toml_file
from nvct.engine.containerd_load import Config, Path, Table
from nvct.engine.model import EngineOptions, FileEdit, Files, text_of
from nvct.engine.spans import same
from nvct.errors import EngineConfigError

NAME = "99-nvidia.toml"
FOLDER = "conf.d"
HEADER = "# Made by nvct; `nvct runtime undo --runtime containerd` takes it away.\n"
OWN_KEYS = frozenset({"enable_cdi", "cdi_spec_dirs"})
OWN_CONTAINERD_KEYS = frozenset({"runtimes", "default_runtime_name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where new keys go."""

    path: str
    cri: Path  # path of the CRI's table in it
    start: str
    # what it needs, too: the CRI's whole table if a drop-in replaces that
    base: tuple[toml_file.Change, ...] = ()
    pattern: str = ""  # to add to the root's `imports`; "" if it is the root, or imported already
    replaces: bool = False  # whether `start` differs from the present file
    notes: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # notes that apply only if something is written


class EditedFiles(Files):
    """The files with some edits applied."""

    def __init__(self, files: Files, edits: Iterable[FileEdit]) -> None:
        super().__init__(files.root)
        self._files = files
        self._edits = {edit.path: edit.after for edit in edits}

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is none.

        Raises:
            DocumentError: as Files.
        """
        return self._edits[path] if path in self._edits else self._files.read(path)

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the paths of a folder's files with a suffix, sorted."""
        paths = set(self._files.names(folder, suffix))
        for path, data in self._edits.items():
            if data is None:
                paths.discard(path)
            elif posixpath.dirname(path) == folder.rstrip("/") and path.endswith(suffix):
                paths.add(path)
            elif path.startswith(f"{folder.rstrip('/')}/"):  # a folder on the way to a new file
                part = path[len(folder.rstrip("/")) + 1 :].split("/")[0]
                paths.add(f"{folder.rstrip('/')}/{part}")
        return sorted(paths)


def choose(options: EngineOptions, config: Config, files: Files) -> Target:
    """Return where new keys go.

    Raises:
        EngineConfigError: this containerd does not read the CRI in files of that version, or the
            drop-in holds settings of others that would be imported.
    """
    root = config.root
    is_old = config.modern and bool(root.document) and root.version < 2
    if is_old and (root.version == 1 or options.drop_in == ""):
        raise EngineConfigError(
            f"{root.path} is of version 1, in which containerd 2 reads no CRI settings",
            hint="run `containerd config migrate` and put its output there",
        )
    if root.version > 2 and not config.modern:
        release = ".".join(map(str, options.engine_version))
        raise EngineConfigError(
            f"{root.path} is of version {root.version}, of which containerd {release} reads no"
            " CRI settings",
            hint="write it in version 2, or update containerd",
        )
    path = options.drop_in
    if path is None:
        is_safe = not options.engine_version and config.is_without_cri()
        path = _default_path(root.path) if config.modern or is_safe else ""
    if not path or path == root.path:
        return _present_file(config)
    if config.modern:
        return _reduced_drop_in(config, path, files)
    return _full_drop_in(options, config, path, files)


def _default_path(root: str) -> str:
    return posixpath.join(posixpath.dirname(root), FOLDER, NAME)


def _present_file(config: Config) -> Target:
    """Return the root if tables merge; else the file whose CRI table replaces the others."""
    loaded = config.root if config.modern else config.winner()
    text = text_of(loaded.data or b"")
    cri = config.cri_path(loaded)
    base: list[toml_file.Change] = []
    if loaded is config.root and not loaded.document:
        base.append(((), "version", config.version))
    written: list[str] = []
    if loaded is not config.root:
        written.append(
            f"{loaded.path} replaces the CRI settings of the root file, so it is edited"
        )
    return Target(path=loaded.path, cri=cri, start=text, base=tuple(base), written=tuple(written))


def _first_lines(config: Config) -> str:
    """Return the first lines of a drop-in; a version only if the root has one or it is needed."""
    has_version = config.root.version or not config.root.document or config.modern
    return f"{HEADER}version = {config.version}\n" if has_version else HEADER


def _reduced_drop_in(config: Config, path: str, files: Files) -> Target:
    cri: Path = ("plugins", config.names[0])
    pattern, notes = _pattern(config, path, files)
    data = files.read(path)
    if data is None:
        start = _first_lines(config)
        return Target(path=path, cri=cri, start=start, pattern=pattern, written=notes)
    text = text_of(data)
    loaded = loading.parsed(path, data)
    table = config.cri(loaded) or {}
    additions = difference(table, config.effective(without=path))
    has_other_keys = _has_other_keys(loaded, config.cri_path(loaded))
    is_all_ours = _has_only_our_keys(additions) and not has_other_keys
    is_read = config.get(path) is not None
    is_small = same(table, additions) and loaded.version in (0, config.version)
    if is_small and (is_read or is_all_ours):
        where = config.cri_path(loaded) if loaded.version else cri
        return Target(path=path, cri=where, start=text, pattern=pattern, written=notes)
    if is_all_ours:
        changes = [(cri, key, value) for key, value in additions.items()]
        start = toml_file.edit(_first_lines(config), changes, path)
        note = f"{path} held a copy of the CRI settings, which shadowed later edits: now only ours"
        return Target(
            path=path, cri=cri, start=start, pattern=pattern, replaces=True, notes=(note,)
        )
    if is_read:
        note = f"{path} holds CRI settings that the root file does not: it shadows edits of that"
        return Target(path=path, cri=config.cri_path(loaded), start=text, notes=(note,))
    raise EngineConfigError(
        f"{path} is there, is not imported, and holds more than our handlers",
        hint="remove it, or name another with --drop-in-config",
    )


def _full_drop_in(options: EngineOptions, config: Config, path: str, files: Files) -> Target:
    """Return a drop-in with the CRI's whole table, which this containerd would drop otherwise."""
    cri: Path = ("plugins", config.names[0])
    pattern, notes = _pattern(config, path, files)
    data = files.read(path)
    start = _first_lines(config)
    if data is not None:
        loaded = loading.parsed(path, data)
        if config.get(path) is not None:
            start, cri = text_of(data), config.cri_path(loaded)
        elif _has_other_keys(loaded, config.cri_path(loaded)):
            raise EngineConfigError(
                f"{path} is there, is not imported, and holds more than CRI settings",
                hint="remove it, or name another with --drop-in-config",
            )
    table = (
        containerd_switches.cri_of_dump(options.dump)
        if options.dump
        else config.effective(without=path)
    )
    registered = loading.runtimes(config.effective()) if config.winner().path == path else {}
    names = {handler.name for handler in options.handlers}
    names |= registered.keys() - loading.runtimes(table)
    table = _without_runtimes(table, config.effective(), registered.keys() & names)
    base = tuple((cri, key, value) for key, value in table.items())
    note = f"{path} holds a copy of the CRI settings: edits of these in other files have no effect"
    return Target(
        path=path, cri=cri, start=start, base=base, pattern=pattern, written=(*notes, note)
    )


def _without_runtimes(table: Table, copy: Table, names: Collection[str]) -> Table:
    """Return a copied table without our runtimes and CDI."""
    if not names:
        return table
    containerd_table = table.get("containerd")
    containerd = dict(containerd_table) if isinstance(containerd_table, dict) else {}
    runtimes = loading.runtimes(table)
    containerd["runtimes"] = {name: runtimes[name] for name in runtimes if name not in names}
    if loading.default(copy) in names:
        containerd.pop("default_runtime_name", None)
        containerd.pop(loading.LEGACY_TABLE, None)
    settings = {key: value for key, value in table.items() if key not in OWN_KEYS & copy.keys()}
    return {**settings, "containerd": containerd}


def _pattern(config: Config, path: str, files: Files) -> tuple[str, tuple[str, ...]]:
    """Return what to add to `imports`: the folder, unless that would import files of others.

    Never the plain path: containerd does not start if a named file does not exist.
    """
    if loading.is_imported(path, config):
        return "", ()
    folder = posixpath.dirname(path)
    neighbors = [name for name in files.names(folder, ".toml") if name != path]
    unread = [name for name in neighbors if config.get(name) is None]
    if not unread and path.endswith(".toml"):
        return f"{folder}/*.toml", ()
    stem, suffix = posixpath.splitext(path)
    note = f"only {path} is imported: {unread[0]} is there too, and was not read before"
    return f"{stem}*{suffix}", (note,) if unread else ()


def difference(table: Mapping[str, object], base: Mapping[str, object]) -> Table:
    """Return the part of a table that another table does not have."""
    result: Table = {}
    for key, value in table.items():
        base_value = base.get(key)
        if isinstance(value, dict) and isinstance(base_value, dict):
            inner = difference(value, base_value)
            if inner:
                result[key] = inner
        elif key not in base or not same(value, base_value):
            result[key] = value
    return result


def _has_only_our_keys(cri: Mapping[str, object]) -> bool:
    """Report whether a CRI table has only what we would write: handlers, default, CDI."""
    if not cri.keys() <= OWN_KEYS | {"containerd"}:
        return False
    containerd = cri.get("containerd", {})
    return isinstance(containerd, dict) and containerd.keys() <= OWN_CONTAINERD_KEYS


def _has_other_keys(loaded: loading.Loaded, cri: Path) -> bool:
    """Report whether a file has more than a version and the CRI's table."""
    plugins = loaded.document.get("plugins", {})
    only = isinstance(plugins, dict) and plugins.keys() <= {cri[1]}
    return not (only and loaded.document.keys() <= {"version", "plugins"})


def is_left_over(options: EngineOptions, config: Config, path: str, data: bytes) -> bool:
    """Report whether a file is our drop-in and says nothing that the others do not say."""
    if path == config.root.path or path not in (options.drop_in, _default_path(config.root.path)):
        return False
    loaded = loading.parsed(path, data)
    additions = difference(config.cri(loaded) or {}, config.effective(without=path))
    return not _has_other_keys(loaded, config.cri_path(loaded)) and additions.keys() <= OWN_KEYS


def is_import_needed(key: Path, item: object, remaining: Sequence[str]) -> bool:
    """Report whether a pattern of `imports` matches one of the remaining files."""
    return (
        key == ("imports",)
        and isinstance(item, str)
        and any(loading.matches(path, item) for path in remaining)
    )
