# SPDX-License-Identifier: Apache-2.0
"""Chooses the file for containerd's new keys: a drop-in of their own, or the file in force.

A drop-in that an older toolkit wrote holds a copy of the CRI's whole table, which hides later
edits of the root file. If containerd merges tables, and the copy says nothing that the other files
do not say, it is reduced to our keys.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from nvct.engine.containerd import dump as containerd_dump
from nvct.engine.containerd import load as loading
from nvct.engine.files import toml_file
from nvct.engine.model import FileEdit, Files
from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nvct.engine.containerd.load import Config, Path, Table
    from nvct.engine.model import EngineOptions

NAME = "99-nvidia.toml"
FOLDER = "conf.d"
HEADER = "# Made by nvct; `nvct runtime undo --runtime containerd` takes it away.\n"
OWN_KEYS = frozenset({"enable_cdi", "cdi_spec_dirs"})
OWN_CONTAINERD_KEYS = frozenset({"runtimes", "default_runtime_name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where new keys go.

    Attributes:
        path: of the file.
        cri: path of the CRI's table in it.
        start: the text to edit.
        base: what it needs, too: the CRI's whole table if a drop-in replaces that.
        pattern: to add to the root's `imports`; "" if it is the root, or imported already.
        replaces: whether `start` differs from the present file.
        notes: sentences for the user.
        written: notes that apply only if something is written.
    """

    path: str
    cri: Path
    start: str
    base: tuple[toml_file.Change, ...] = ()
    pattern: str = ""
    replaces: bool = False
    notes: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


class After(Files):
    """The files with some edits applied."""

    def __init__(self, files: Files, edits: Iterable[FileEdit]) -> None:
        """Keep both."""
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
        found = set(self._files.names(folder, suffix))
        for path, after in self._edits.items():
            if after is None:
                found.discard(path)
            elif posixpath.dirname(path) == folder.rstrip("/") and path.endswith(suffix):
                found.add(path)
            elif path.startswith(f"{folder.rstrip('/')}/"):  # a folder on the way to a new file
                part = path[len(folder.rstrip("/")) + 1 :].split("/")[0]
                found.add(f"{folder.rstrip('/')}/{part}")
        return sorted(found)


def choose(options: EngineOptions, config: Config, files: Files) -> Place:
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
        alone = not options.engine_version and config.is_without_cri()
        path = _beside(root.path) if config.modern or alone else ""
    if not path or path == root.path:
        return _in_place(config)
    if config.modern:
        return _small(config, path, files)
    return _whole(options, config, path, files)


def _beside(root: str) -> str:
    return posixpath.join(posixpath.dirname(root), FOLDER, NAME)


def _in_place(config: Config) -> Place:
    """Return the root if tables merge; else the file whose CRI table replaces the others."""
    loaded = config.root if config.modern else config.winner()
    text = toml_file.text_of(loaded.data or b"")
    cri = config.cri_path(loaded)
    base: list[toml_file.Change] = []
    if loaded is config.root and not loaded.document:
        base.append(((), "version", config.version))
    written: list[str] = []
    if loaded is not config.root:
        written.append(
            f"{loaded.path} replaces the CRI settings of the root file, so it is edited"
        )
    return Place(path=loaded.path, cri=cri, start=text, base=tuple(base), written=tuple(written))


def _new(config: Config) -> str:
    """Return the first lines of a drop-in; a version only if the root has one or it is needed."""
    named = config.root.version or not config.root.document or config.modern
    return f"{HEADER}version = {config.version}\n" if named else HEADER


def _small(config: Config, path: str, files: Files) -> Place:
    cri: Path = ("plugins", config.names[0])
    pattern, notes = _pattern(config, path, files)
    data = files.read(path)
    if data is None:
        start = _new(config)
        return Place(path=path, cri=cri, start=start, pattern=pattern, written=notes)
    text = toml_file.text_of(data)
    loaded = loading.Loaded(path=path, data=data, document=toml_file.parse(text, path))
    own = config.cri(loaded) or {}
    rest = difference(own, config.effective(without=path))
    only_ours = _is_ours(rest) and not _others(loaded, config.cri_path(loaded))
    is_read = config.get(path) is not None
    is_small = toml_file.same(own, rest) and loaded.version in (0, config.version)
    if is_small and (is_read or only_ours):
        where = config.cri_path(loaded) if loaded.version else cri
        return Place(path=path, cri=where, start=text, pattern=pattern, written=notes)
    if only_ours:
        changes = [(cri, key, value) for key, value in rest.items()]
        start = toml_file.edit(_new(config), changes, path)
        said = f"{path} held a copy of the CRI settings, which shadowed later edits: now only ours"
        return Place(
            path=path, cri=cri, start=start, pattern=pattern, replaces=True, notes=(said,)
        )
    if is_read:
        said = f"{path} holds CRI settings that the root file does not: it shadows edits of that"
        return Place(path=path, cri=config.cri_path(loaded), start=text, notes=(said,))
    raise EngineConfigError(
        f"{path} is there, is not imported, and holds more than our handlers",
        hint="remove it, or name another with --drop-in-config",
    )


def _whole(options: EngineOptions, config: Config, path: str, files: Files) -> Place:
    """Return a drop-in with the CRI's whole table, which this containerd would drop otherwise."""
    cri: Path = ("plugins", config.names[0])
    pattern, notes = _pattern(config, path, files)
    data = files.read(path)
    start = _new(config)
    if data is not None:
        text = toml_file.text_of(data)
        loaded = loading.Loaded(path=path, data=data, document=toml_file.parse(text, path))
        if config.get(path) is not None:
            start, cri = text, config.cri_path(loaded)
        elif _others(loaded, config.cri_path(loaded)):
            raise EngineConfigError(
                f"{path} is there, is not imported, and holds more than CRI settings",
                hint="remove it, or name another with --drop-in-config",
            )
    known = containerd_dump.cri(options.dump) if options.dump else config.effective(without=path)
    own = loading.runtimes(config.effective()) if config.winner().path == path else {}
    ours = {handler.name for handler in options.handlers} | (own.keys() - loading.runtimes(known))
    known = _without(known, config.effective(), own.keys() & ours)
    base = tuple((cri, key, value) for key, value in known.items())
    said = f"{path} holds a copy of the CRI settings: edits of these in other files have no effect"
    return Place(
        path=path, cri=cri, start=start, base=base, pattern=pattern, written=(*notes, said)
    )


def _without(known: Table, copy: Table, ours: Collection[str]) -> Table:
    """Return a copied table without our runtimes and CDI."""
    if not ours:
        return known
    found = known.get("containerd")
    inside = dict(found) if isinstance(found, dict) else {}
    runtimes = loading.runtimes(known)
    inside["runtimes"] = {name: runtimes[name] for name in runtimes if name not in ours}
    if loading.default(copy) in ours:
        inside.pop("default_runtime_name", None)
        inside.pop(loading.LEGACY_TABLE, None)
    rest = {key: value for key, value in known.items() if key not in OWN_KEYS & copy.keys()}
    return {**rest, "containerd": inside}


def _pattern(config: Config, path: str, files: Files) -> tuple[str, tuple[str, ...]]:
    """Return what to add to `imports`: the folder, unless that would import files of others.

    Never the plain path: containerd does not start if a named file does not exist.
    """
    if loading.is_imported(path, config):
        return "", ()
    folder = posixpath.dirname(path)
    others = [name for name in files.names(folder, ".toml") if name != path]
    unread = [name for name in others if config.get(name) is None]
    if not unread and path.endswith(".toml"):
        return f"{folder}/*.toml", ()
    stem, suffix = posixpath.splitext(path)
    said = f"only {path} is imported: {unread[0]} is there too, and was not read before"
    return f"{stem}*{suffix}", (said,) if unread else ()


def difference(table: Mapping[str, object], base: Mapping[str, object]) -> Table:
    """Return the part of a table that another table does not have."""
    found: Table = {}
    for key, value in table.items():
        other = base.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            inner = difference(value, other)
            if inner:
                found[key] = inner
        elif key not in base or not toml_file.same(value, other):
            found[key] = value
    return found


def _is_ours(cri: Mapping[str, object]) -> bool:
    """Report whether a CRI table has only what we would write: handlers, default, CDI."""
    if not cri.keys() <= OWN_KEYS | {"containerd"}:
        return False
    containerd = cri.get("containerd", {})
    return isinstance(containerd, dict) and containerd.keys() <= OWN_CONTAINERD_KEYS


def _others(loaded: loading.Loaded, cri: Path) -> bool:
    """Report whether a file has more than a version and the CRI's table."""
    plugins = loaded.document.get("plugins", {})
    only = isinstance(plugins, dict) and plugins.keys() <= {cri[1]}
    return not (only and loaded.document.keys() <= {"version", "plugins"})


def is_left_over(options: EngineOptions, config: Config, path: str, after: str) -> bool:
    """Report whether a file is our drop-in and says nothing that the others do not say."""
    if path == config.root.path or path not in (options.drop_in, _beside(config.root.path)):
        return False
    loaded = loading.Loaded(path=path, data=b"", document=toml_file.parse(after, path))
    rest = difference(config.cri(loaded) or {}, config.effective(without=path))
    return not _others(loaded, config.cri_path(loaded)) and rest.keys() <= OWN_KEYS


def is_import_needed(key: Path, item: object, left: Sequence[str]) -> bool:
    """Report whether a pattern of `imports` matches one of the remaining files."""
    return (
        key == ("imports",)
        and isinstance(item, str)
        and any(loading.matches(path, item) for path in left)
    )


def without_import(
    config: Config, edits: Sequence[FileEdit], gone: Collection[str]
) -> list[FileEdit]:
    """Return the root's edit without the imports that match only removed files.

    Args:
        config: as it is.
        edits: that are made.
        gone: files that are removed.
    """
    root = config.root
    old = next((edit for edit in edits if edit.path == root.path), None)
    spelled = loading.strings(root.document, "imports")
    stems = [posixpath.splitext(path) for path in gone]
    named = {*gone, *(f"{stem}*{suffix}" for stem, suffix in stems)}
    kept = [
        item
        for item, path in zip(spelled, loading.patterns(root), strict=True)
        if path not in named
    ]
    if len(kept) == len(spelled):
        return [old] if old else []
    text = toml_file.text_of((old.after if old else root.data) or b"")
    value: object = kept or toml_file.DELETE
    after = toml_file.edit(text, [((), "imports", value)], root.path)
    return [FileEdit(path=root.path, before=root.data, after=toml_file.data_of(after))]
