# SPDX-License-Identifier: Apache-2.0
"""Podman: a drop-in beside containers.conf with our runtimes; hook folders of others are kept.

containers.conf(5), the same from Podman 4.3 to 5.8: every file overrides what earlier ones say,
/usr/share/containers/containers.conf, /etc/containers/containers.conf, its `.d` folder, and for a
user $XDG_CONFIG_HOME/containers/containers.conf and its `.d` folder. Tables are merged by name.
An array replaces earlier ones; since 4.7 it extends them if it, or an array before it, holds
{append=true}. Podman has no daemon: the next `podman run` reads the new files.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from nvct import paths
from nvct.config import toml_file
from nvct.config.tables import KeyEdit, Table, find
from nvct.config.toml_file import table
from nvct.engine.model import Change, EngineOptions, Files, State, change_of, file_to_edit
from nvct.engine.modules import Syntax
from nvct.errors import EngineConfigError, UsageError

VENDOR_CONFIG = "/usr/share/containers/containers.conf"
CONFIG = "/etc/containers/containers.conf"
DROP_IN = "99-nvidia.conf"
HOOKS_DIRS = ("/usr/share/containers/oci/hooks.d",)
"""Podman's default; it reads /etc/containers/oci/hooks.d only if a file names that."""

ENGINE, RUNTIMES = ("engine",), ("engine", "runtimes")
DEFAULT, HOOKS, SPEC_DIRS = "runtime", "hooks_dir", "cdi_spec_dirs"
WITH_SPEC_DIRS = (5, 5)
"""The first release that reads CDI specs in cdi_spec_dirs; 5.1 only parses it (PR 25717)."""
STATIC_ALONE = ((5, 5), (5, 6))
"""From the first release until just before the second, only /etc/cdi is read (issue 26569)."""
HEADER = "# Made by nvct; `nvct runtime undo --runtime podman` takes it away.\n"
SYNTAX = Syntax(parent=ENGINE, default=DEFAULT, header=HEADER)


@dataclass(slots=True)
class Merged:
    """The settings of several files, read one after the other."""

    files: list[str] = field(default_factory=list)
    handlers: dict[str, str] = field(default_factory=dict)
    default: str = ""
    hooks_dirs: list[str] = field(default_factory=lambda: list(HOOKS_DIRS))
    spec_dirs: list[str] = field(default_factory=list)
    append: bool = False  # whether later hook folders are added to the earlier ones
    sources: dict[str, str] = field(default_factory=dict)  # key → the last file that has it

    def add(self, document: Table, path: str) -> None:
        """Merge the next file. Raises EngineConfigError if a value in it has the wrong type."""
        self.files.append(path)
        for name, programs in table(document, RUNTIMES, path).items():
            strings, _ = _strings(programs, f"engine.runtimes.{name}", path)
            self.handlers[name] = strings[0] if strings else ""
            self.sources[name] = path
        engine = table(document, ENGINE, path)
        default = engine.get(DEFAULT, "")
        if not isinstance(default, str):
            raise EngineConfigError(f"{path}: engine.{DEFAULT} is not a string")
        if default:
            self.default = default
            self.sources[DEFAULT] = path
        if HOOKS in engine:
            strings, append = _strings(engine[HOOKS], f"engine.{HOOKS}", path)
            self.append = self.append if append is None else append
            self.hooks_dirs = [*self.hooks_dirs, *strings] if self.append else strings
            self.sources[HOOKS] = path
        if SPEC_DIRS in engine:
            self.spec_dirs, _ = _strings(engine[SPEC_DIRS], f"engine.{SPEC_DIRS}", path)
            self.sources[SPEC_DIRS] = path


def state(options: EngineOptions, files: Files) -> State:
    """Return the settings of all files; DocumentError or EngineConfigError if one is bad."""
    merged = _merged(_order(options, files), files)
    return State(
        files=tuple(merged.files),
        handlers=merged.handlers,
        default=merged.default,
        cdi=True,  # Podman has no switch for it
        spec_dirs=tuple(merged.spec_dirs),
    )


def plan(options: EngineOptions, files: Files) -> Change:
    """Return the smallest edit that configures the options.

    Raises UsageError for a setting that Podman does not have, and as `state`.
    """
    order = _order(options, files)
    current = _merged(order, files)
    target = file_to_edit(options, _target(options), order, current.sources)
    at = order.index(target) + 1
    before = files.read(target)
    edits = _edits(options, current)
    if options.hooks_dir and options.hooks_dir not in current.hooks_dirs:
        folders = find(toml_file.parse(before or b"", target), (*ENGINE, HOOKS))
        value = _with_folder(options, folders, _merged(order[:at], files))
        edits.append(((*ENGINE, HOOKS), value))
    if not edits:
        return Change(notes=_notes(options, current))
    after = SYNTAX.edit(before, edits, target)
    changed = {key[-1] for key, _value in edits}
    notes = tuple(
        f"{file} is read later and sets {key}, too: it wins"
        for key, file in current.sources.items()
        if key in changed and file in order[at:]
    )
    notes += _notes(options, current)
    return change_of(target, before, after, notes=notes)


def _edits(options: EngineOptions, current: Merged) -> list[KeyEdit]:
    """Return the keys to write into the target: those that are not in force yet."""
    edits: list[KeyEdit] = []
    for handler in options.handlers:
        if not handler.path.startswith("/"):
            text = f"podman cannot look up a runtime by its name alone: {handler.path}"
            raise UsageError(text, hint="give the absolute path of the program")
        if current.handlers.get(handler.name) != handler.path:
            edits.append(((*RUNTIMES, handler.name), [handler.path]))
    if options.default and current.default != options.default:
        edits.append(((*ENGINE, DEFAULT), options.default))
    if options.spec_dirs and _spec_dirs(options, current) != options.spec_dirs:
        if options.engine_version and options.engine_version < WITH_SPEC_DIRS:
            text = "Podman before 5.5 looks for CDI specs only in /etc/cdi and /var/run/cdi"
            raise UsageError(text, hint="leave the folders as they are")
        edits.append(((*ENGINE, SPEC_DIRS), list(options.spec_dirs)))
    return edits


def _spec_dirs(options: EngineOptions, current: Merged) -> tuple[str, ...]:
    first, end = STATIC_ALONE
    if current.spec_dirs and not (options.engine_version and options.engine_version < first):
        return tuple(current.spec_dirs)
    if first <= options.engine_version < end:
        return (paths.CDI_STATIC_DIR,)
    return paths.CDI_SPEC_DIRS


def _notes(options: EngineOptions, current: Merged) -> tuple[str, ...]:
    has_spec_dirs = bool(options.spec_dirs or current.spec_dirs)
    if has_spec_dirs or paths.CDI_DYNAMIC_DIR in _spec_dirs(options, current):
        return ()
    note = f"this Podman looks for CDI specs only in {paths.CDI_STATIC_DIR}: write them there, "
    return (f"{note}or add {paths.CDI_DYNAMIC_DIR} to {SPEC_DIRS}",)


def _with_folder(options: EngineOptions, folders: object, earlier: Merged) -> list[object]:
    """Return the target's new hook folders: its present ones or those that it overrides, and ours.

    `folders` is the target's present value. An array without {append=true} replaces earlier ones.
    """
    if isinstance(folders, list):
        return folders if options.hooks_dir in folders else [*folders, options.hooks_dir]
    return [*([] if earlier.append else earlier.hooks_dirs), options.hooks_dir]


def _config(options: EngineOptions) -> str:
    return options.config or CONFIG


def _target(options: EngineOptions) -> str:
    if options.drop_in == "":
        return _config(options)
    folder = f"{_config(options)}.d"
    target = options.drop_in or f"{folder}/{DROP_IN}"
    if posixpath.dirname(target) != folder or not target.endswith(".conf"):
        raise UsageError(f"podman does not read {target}", hint=f"name a .conf file in {folder}")
    return target


def _order(options: EngineOptions, files: Files) -> list[str]:
    """Return the files in Podman's order, whether they exist or not."""
    order = [VENDOR_CONFIG]
    for config in dict.fromkeys((CONFIG, _config(options))):
        names = files.names(f"{config}.d", ".conf")
        if config == _config(options):
            names = sorted({*names, _target(options)} - {config})
        order += [config, *names]
    return order


def _merged(order: list[str], files: Files) -> Merged:
    merged = Merged()
    for path in order:
        data = files.read(path)
        if data is not None:
            merged.add(toml_file.parse(data, path), path)
    return merged


def _strings(value: object, name: str, path: str) -> tuple[list[str], bool | None]:
    """Return the strings of an array, and the value of its {append=...}."""
    items = value if isinstance(value, list) else [value]
    append = None
    for item in items:
        if isinstance(item, dict) and isinstance(item.get("append"), bool):
            append = item["append"]
        elif not isinstance(item, str) or not isinstance(value, list):
            text = f"{path}: {name} is not an array of strings"
            raise EngineConfigError(text, hint="correct the file")
    return [item for item in items if isinstance(item, str)], append
