# SPDX-License-Identifier: Apache-2.0
"""CRI-O: the state of its files, and the drop-in that registers our handlers.

CRI-O reads crio.conf and then every file below crio.conf.d, whatever its suffix, in the order of
their paths. A later file replaces single keys, but an element of `runtimes` completely, so a
handler of ours has all keys of the low-level runtime (cri-o pkg/config, UpdateFromPath; its TOML
decoder creates each element of a map again). Contract: no side effects; see `model`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nvct.config.tables import ABSENT, KeyEdit, Table, string, strings, subtable
from nvct.config.toml_file import parse
from nvct.config.toml_file import table as table_of
from nvct.engine.model import Change, EngineOptions, Files, Handler, State, change_of, file_to_edit
from nvct.engine.modules import Syntax
from nvct.errors import EngineConfigError
from nvct.paths import CONFIG_FILE, DEFAULT_PATH_DIRS

CONFIG = "/etc/crio/crio.conf"
CONFIG_DIR = "/etc/crio/crio.conf.d"
DROP_IN = f"{CONFIG_DIR}/99-nvidia.toml"
# nvidia-ctk before v1.19.1 wrote here; CRI-O has never read it.
UNREAD_DROP_IN = "/etc/crio/conf.d/99-nvidia.toml"
KNOWS_CDI = (1, 23)  # and has no switch for it
HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
BUNDLED = "/usr/libexec/crio"  # where CRI-O's own packages keep conmon, crun and runc

RUNTIME = ("crio", "runtime")
RUNTIMES = (*RUNTIME, "runtimes")
HEADER = "# Made by nvct; `nvct runtime undo --runtime crio` takes it away.\n"
SYNTAX = Syntax(parent=RUNTIME, default="default_runtime", header=HEADER)
# Keys that a copy of another runtime's table must not keep: CRI-O would run another program
# (inherit_default_runtime, platform_runtime_paths), or they are for virtual machines.
NOT_INHERITED = frozenset(
    {"inherit_default_runtime", "platform_runtime_paths", "runtime_config_path"}
    | {"runtime_path", "runtime_type", "runtime_pull_image"}
)
MISLEADING = ("inherit_default_runtime", "platform_runtime_paths", "runtime_config_path")


@dataclass(slots=True, kw_only=True)
class _Merged:
    """The settings of all CRI-O files, merged as CRI-O merges them."""

    keys: Table = field(default_factory=dict)  # of crio.runtime, without its runtimes
    runtimes: dict[str, Table] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # key or "runtimes.NAME" → last file
    low_level: str = ""  # the last default runtime that is not NVIDIA's


def state(options: EngineOptions, files: Files) -> State:
    """Return what CRI-O's files say; EngineConfigError or DocumentError if one is bad."""
    layers = _in_force(options) if options.dump else _layers(options, files)
    merged = _merge(layers)
    return State(
        files=tuple(layers),
        handlers={name: string(table, "runtime_path") for name, table in merged.runtimes.items()},
        default=string(merged.keys, "default_runtime"),
        cdi=options.engine_version >= KNOWS_CDI if options.engine_version else None,
        spec_dirs=strings(merged.keys, "cdi_spec_dirs"),
    )


def plan(options: EngineOptions, files: Files) -> Change:
    """Return the smallest edit that registers the handlers; DocumentError, EngineConfigError."""
    order, merged = _order(options, files), _merge(_layers(options, files))
    sources = {name: merged.sources[f"runtimes.{name}"] for name in merged.runtimes}
    target = file_to_edit(options, _target(options), order, sources)
    before = files.read(target)
    document = parse(before or b"", target)
    template = _template(_merge(_in_force(options)) if options.dump else merged, files)
    settings: list[KeyEdit] = []
    notes = [*_notes(options, files, target), *_low_level_note(template, files)]
    for handler in options.handlers:
        changes = _handler(handler, template, merged, document)
        if changes:
            _check_last(merged, f"runtimes.{handler.name}", target, order)
            settings += changes
    for key, value in _keys(options, merged):
        _check_last(merged, key, target, order)
        settings.append(((*RUNTIME, key), value))
    if options.cdi:
        notes.append("CRI-O has no switch for CDI: every version that supports CDI has it on")
    after = SYNTAX.edit(before, settings, target) if settings else before
    return change_of(target, before, after, restart=True, notes=notes)


def config_dir(options: EngineOptions) -> str:
    """Return the folder of drop-ins for these options."""
    return posixpath.dirname(options.drop_in) if options.drop_in else CONFIG_DIR


def _target(options: EngineOptions) -> str:
    if options.drop_in is None:
        return DROP_IN
    return options.drop_in or options.config or CONFIG


def _layers(options: EngineOptions, files: Files) -> dict[str, Table]:
    contents = ((path, files.read(path)) for path in _order(options, files))
    return {path: parse(data, path) for path, data in contents if data}


def _order(options: EngineOptions, files: Files) -> list[str]:
    """Return the files in CRI-O's order; the target is one of them even if it does not exist."""
    main, drop_ins = options.config or CONFIG, [*_walk(files, config_dir(options))]
    if _target(options) not in (main, *drop_ins):
        drop_ins = sorted([*drop_ins, _target(options)])
    return [main, *drop_ins]


def _in_force(options: EngineOptions) -> dict[str, Table]:
    name = "the output of `crio status config`"
    return {name: parse(options.dump, name)}


def _walk(files: Files, folder: str) -> Iterator[str]:
    """Yield every file below a folder in the order of Go's filepath.Walk."""
    for path in files.names(folder, ""):
        real_path = files.at(path)
        if os.path.isdir(real_path) and not os.path.islink(real_path):
            yield from _walk(files, path)
        else:
            yield path


def _merge(layers: Mapping[str, Table]) -> _Merged:
    merged = _Merged()
    for path, document in layers.items():
        table = table_of(document, RUNTIME, path)
        for key, value in table.items():
            if key != "runtimes":
                merged.keys[key] = value
                merged.sources[key] = path
        default = table.get("default_runtime")
        if isinstance(default, str) and not default.startswith("nvidia"):
            merged.low_level = default
        for name in table_of(document, RUNTIMES, path):
            merged.runtimes[name] = table_of(document, (*RUNTIMES, name), path)
            merged.sources[f"runtimes.{name}"] = path
    return merged


def _template(merged: _Merged, files: Files) -> Table:
    """Return the table of the low-level runtime that our handlers call, {} if no file has one.

    Candidates: the default, then runc and crun (as in nvidia-container-toolkit v1.20), then
    NVIDIA's runtime if it is the default; never one of type vm or pod.
    """
    for name in (merged.low_level, "runc", "crun"):
        table = merged.runtimes.get(name)
        if table is not None and string(table, "runtime_type") in ("", "oci"):
            # Without a path, CRI-O looks up the runtime's name.
            return table | {"runtime_path": string(table, "runtime_path") or name}
    default = merged.runtimes.get(string(merged.keys, "default_runtime"), {})  # NVIDIA's alone
    is_oci = string(default, "runtime_type") in ("", "oci")
    inherited = {key: value for key, value in default.items() if key != "runtime_path" and is_oci}
    # CRI-O looks conmon up on its PATH. The bundled one is not there: CRI-O would not start.
    conmon = f"{BUNDLED}/conmon"
    monitor = string(merged.keys, "conmon") or inherited.get("monitor_path")
    if monitor or conmon not in files.names(BUNDLED, "conmon"):
        return inherited
    return inherited | {"monitor_path": conmon}


def _handler(handler: Handler, template: Table, merged: _Merged, document: Table) -> list[KeyEdit]:
    """Return the keys to set for a handler; [] if it is registered as it should be."""
    table: Table = {"runtime_path": handler.path, "runtime_type": "oci"}
    # To CRI-O, empty, 0 and false mean unset; the configuration that it prints has them all.
    table |= {key: value for key, value in template.items() if key not in NOT_INHERITED and value}
    registered = merged.runtimes.get(handler.name)
    if registered is not None and _is_up_to_date(registered, table):
        return []
    key = (*RUNTIMES, handler.name)
    own_table = subtable(document, key)
    return [(key, table), *(((*key, name), ABSENT) for name in MISLEADING if name in own_table)]


def _is_up_to_date(registered: Table, table: Table) -> bool:
    """Report whether a registered handler has our program, and a monitor if one is needed.

    Other settings may differ: an admin chose them.
    """
    return (
        registered.get("runtime_path") == table["runtime_path"]
        and registered.get("runtime_type", "oci") in ("", "oci")
        and not any(registered.get(key) for key in MISLEADING)
        and bool(registered.get("monitor_path")) >= bool(table.get("monitor_path"))
    )


def _keys(options: EngineOptions, merged: _Merged) -> Iterator[tuple[str, object]]:
    if options.default and string(merged.keys, "default_runtime") != options.default:
        names = {handler.name for handler in options.handlers} | set(merged.runtimes)
        if options.default not in names:
            raise EngineConfigError(
                f'"{options.default}" cannot be the default: CRI-O has no such handler',
                hint="name one of " + ", ".join(sorted(names)),
            )
        yield "default_runtime", options.default
    dirs = strings(merged.keys, "cdi_spec_dirs", SPEC_DIRS)
    missing = [name for name in options.spec_dirs if name not in dirs]
    if missing:
        yield "cdi_spec_dirs", [*dirs, *missing]
    hooks = strings(merged.keys, "hooks_dir", (HOOKS_DIR,))
    if options.hooks_dir and options.hooks_dir not in hooks:
        yield "hooks_dir", [*hooks, options.hooks_dir]


def _check_last(merged: _Merged, key: str, target: str, order: Sequence[str]) -> None:
    """Refuse to write a key that a later file overrides."""
    where = merged.sources.get(key, target)
    if order.index(where) > order.index(target):
        raise EngineConfigError(
            f"{where} sets {key}, too, and CRI-O reads that file after {target}",
            hint=f"change {key} there",
        )


def _notes(options: EngineOptions, files: Files, target: str) -> Iterator[str]:
    folder = posixpath.dirname(target)
    if options.drop_in and folder != CONFIG_DIR:
        yield f"CRI-O reads {folder} only if it runs with --config-dir={folder}"
    if target != UNREAD_DROP_IN and files.read(UNREAD_DROP_IN) is not None:
        yield f"remove {UNREAD_DROP_IN}: an older nvidia-ctk wrote it, and CRI-O never reads it"


def _low_level_note(template: Table, files: Files) -> Iterator[str]:
    """Yield a sentence if our program would call another low-level runtime than CRI-O did.

    runc cannot stop a container that crun created; and CRI-O's packages keep both outside of
    PATH.
    """
    path = string(template, "runtime_path")
    config = files.read(CONFIG_FILE)
    document = {} if config is None else parse(config, CONFIG_FILE)
    shim_options = subtable(document, ("nvidia-container-runtime",))
    first = (strings(shim_options, "runtimes") or ("runc",))[0]
    on_path = posixpath.dirname(path) in ("", *DEFAULT_PATH_DIRS)
    if path and first != path and not (on_path and first == posixpath.basename(path)):
        yield (
            f"CRI-O has used {path} so far: put it first in `runtimes` of"
            f" [nvidia-container-runtime] in {CONFIG_FILE}"
        )
