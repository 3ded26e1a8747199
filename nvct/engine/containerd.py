# SPDX-License-Identifier: Apache-2.0
"""containerd: the state of its configuration, and the smallest edit that registers our handlers.

containerd 2.0 and later merges tables: our handlers go into a drop-in of their own. Before 2.0
they go into the file whose CRI table is in force, because a drop-in would replace that table; if
the user names a drop-in all the same, it gets a copy of the whole table. The format version of the
files on disk stays. Contract: no side effects; see `model`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping

from nvct.config import toml_file
from nvct.config.tables import ABSENT, KeyEdit, Path, Table, strings, subtable
from nvct.config.toml_source import Noted
from nvct.engine import containerd_files as target_files
from nvct.engine import containerd_load as loading
from nvct.engine.containerd_files import NAMED, Target
from nvct.engine.containerd_load import DEFAULT, RUNC_TYPE, RUNTIMES, Config, Cri
from nvct.engine.model import Change, EngineOptions, Files, Handler, State, without_var
from nvct.engine.modules import ANY, Syntax
from nvct.errors import EngineConfigError

RUNC_TYPES = ("", "io.containerd.runc.v1", RUNC_TYPE, "io.containerd.runtime.v1.linux")
SYSTEMD: Table = {"SystemdCgroup": True}
IMAGES = {  # key → containerd's default
    "snapshotter": "overlayfs",
    "disable_snapshot_annotations": True,
    "discard_unpacked_layers": False,
}
LEGACY_NAME = "former-default"
DEFAULT_KEY = ("containerd", DEFAULT)
SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")  # containerd's default
KNOWS_CDI = (1, 7)
CDI_IS_ON = (2, 0)


def state(options: EngineOptions, files: Files) -> State:
    """Return what containerd's files say; DocumentError if one is malformed or unreadable."""
    config = loading.load(options, files)
    cri = config.effective()
    return State(
        files=tuple(loaded.path for loaded in config.files if loaded.data is not None),
        version=config.version,
        handlers={name: loading.binary(table) for name, table in cri.runtimes.items()},
        default=cri.default,
        cdi=_cdi(options, config, cri),
        spec_dirs=strings(cri.table, "cdi_spec_dirs"),
    )


def plan(options: EngineOptions, files: Files) -> Change:
    """Return the smallest edit that configures the options; DocumentError if it is impossible."""
    config = loading.load(options, files)
    target = target_files.choose(options, config, files)
    notes = [*_notes(config), *target.notes]
    cri = config.effective()
    template = _template(options, config, cri)
    keys: list[KeyEdit] = []
    for handler in options.handlers:
        old = cri.runtimes.get(handler.name)
        program = _program(handler, target)
        if old is None:
            entry = _new_runtime(program, template, options)
        else:
            entry = _changed_runtime(program, template, old, cri, options)
        if entry:
            keys.append(((*RUNTIMES, handler.name), entry))
    if keys:
        keys = [*_named_runc(options, cri, notes), *keys]
    keys += _switches(options, config, cri, notes)
    edits = target_files.edits(config, target, keys, files)
    target_files.check(options, edits, files)
    notes += target.written if edits else ()
    return Change(edits=edits, restart=bool(edits), notes=tuple(notes))


def _notes(config: Config) -> list[str]:
    notes: list[str] = []
    path = config.root.path
    disabled = strings(config.root.document, "disabled_plugins")
    if loading.DISABLED.intersection(disabled):
        notes.append(
            f"{path} has the CRI in disabled_plugins: Kubernetes cannot use this containerd"
        )
    if config.missing:
        notes.append(f"{config.missing[0]} is imported but missing: containerd will not start")
    if config.modern and (config.root.data or b"").startswith(b"\xef\xbb\xbf"):
        notes.append(f"{path} starts with a byte order mark, which containerd 2 refuses")
    notes += _migrated_settings(config)
    for loaded, name in config.unread():
        notes.append(
            f"{loaded.path} has settings in plugins.{name}, which containerd does not read there:"
            f" its configuration is of version {config.version}"
        )
    return notes


def _migrated_settings(config: Config) -> list[str]:
    """Return notes on settings of version 2 that containerd 2 reads only beside a runtime.

    Its migration stops at a table `containerd` without runtimes (plugins/cri/images, 2.0 to 2.2),
    so these settings take effect once a runtime is added.
    """
    cri = config.effective()
    if not config.modern or config.names[0] != loading.CRI[2] or cri.runtimes:
        return []
    table = subtable(cri.table, ("containerd",))
    return [
        f"{key} of {config.root.path}, which containerd 2 reads only beside a runtime, has an"
        " effect from now on"
        for key, default in IMAGES.items()
        if table.get(key, default) != default
    ]


# Handlers


def _template(options: EngineOptions, config: Config, cri: Cri) -> Table:
    """Return the runtime's table that our handlers copy: that of the default, if it runs runc.

    The default may be NVIDIA's runtime already. Settings of other runtimes (kata, gVisor) do not
    suit a handler that calls runc.
    """
    source = Cri(loading.cri_of_dump(options.dump).table, config.modern) if options.dump else cri
    registered = source.runtimes
    handler_names = [handler.name for handler in options.handlers]
    other_names = [name for name in registered if name not in handler_names]
    names = (source.default or "runc", "runc", "crun", *other_names, *handler_names)
    tables = [source.legacy] if source.legacy else []
    tables += [registered[name] for name in names if name in registered]
    usable = (table for table in tables if table.get("runtime_type", "") in RUNC_TYPES)
    table = next(usable, {})
    template = loading.set_only(table)
    if source.systemd_cgroup(table) and "options" not in template:
        template["options"] = SYSTEMD
    return template


def _program(handler: Handler, target: Target) -> Table:
    program: Table = {"BinaryName": handler.path}
    if target.cri[1] == loading.CRI[1]:  # read by the shim of io.containerd.runtime.v1.linux
        program["Runtime"] = handler.path
    return program


def _new_runtime(program: Table, template: Table, options: EngineOptions) -> Table:
    inherited = subtable(template, ("options",))
    # In old shims, runtime_engine would override our program.
    settings = {k: v for k, v in template.items() if k not in ("options", "runtime_engine")}
    kind = settings.pop("runtime_type", "") or options.runtime_type
    if options.engine_version >= loading.VERSION_3:  # containerd 2 has no older shim
        kind = RUNC_TYPE
    table = {"runtime_type": kind, **settings, **_annotations(options, settings)}
    return {**table, "options": {**inherited, **program}}


def _changed_runtime(
    program: Table, template: Table, old: Table, cri: Cri, options: EngineOptions
) -> Table:
    """Return the keys to set in an existing handler's table; {} if nothing has to change.

    Its cgroup driver stays: with another one than the kubelet's, pods fail.
    """
    change: Table = _annotations(options, old)
    if not old.get("runtime_type"):
        change["runtime_type"] = template.get("runtime_type") or options.runtime_type
    if loading.binary(old) == program["BinaryName"]:
        return change
    # Any options replace those that the CRI sets by default, which have the cgroup driver.
    cgroup_options = {} if "options" in old or not cri.systemd_cgroup(old) else SYSTEMD
    return {**change, "options": {**program, **cgroup_options}}


def _annotations(options: EngineOptions, table: Mapping[str, object]) -> Table:
    change: Table = {}
    requested = {
        "container_annotations": options.container_annotations,
        "pod_annotations": options.pod_annotations,
    }
    for key, patterns in requested.items():
        present = strings(table, key)
        missing = [pattern for pattern in patterns if pattern not in present]
        if missing:
            change[key] = [*present, *missing]
    return change


def _named_runc(options: EngineOptions, cri: Cri, notes: list[str]) -> Iterator[KeyEdit]:
    """Yield an entry for runc if it is the default, or no runtime is registered yet.

    Beside any registered runtime, containerd 1.x drops its built-in entry for runc; and its CRI
    does not load if the default runtime is not registered.
    """
    is_default = not options.default and cri.default in ("", "runc")
    if not cri.modern and "runc" not in cri.runtimes and (is_default or not cri.runtimes):
        kind = Noted(RUNC_TYPE, NAMED)
        yield (*RUNTIMES, "runc"), {"runtime_type": kind}
        notes.append(
            "runc is registered, too: containerd 1.x drops its built-in entry beside any other"
        )


# Settings other than runtimes


def _cdi(options: EngineOptions, config: Config, cri: Cri) -> bool | None:
    """Report whether CDI is on: by the switch, or the release; None if that is unknown."""
    switch = cri.table.get("enable_cdi")
    if isinstance(switch, bool):
        return switch
    if options.engine_version:
        return options.engine_version >= CDI_IS_ON
    return True if config.version >= 3 else None


def _switches(
    options: EngineOptions, config: Config, cri: Cri, notes: list[str]
) -> Iterator[KeyEdit]:
    """Yield the edits of settings other than runtimes; add notes on options without effect."""
    if not options.default:
        yield from _without_default(options, cri, notes)
    elif cri.default != options.default:
        names = {handler.name for handler in options.handlers} | cri.runtimes.keys()
        if options.default not in names:
            raise EngineConfigError(
                f"{options.default!r} cannot be the default: containerd has no such runtime"
            )
        yield DEFAULT_KEY, options.default
        if cri.legacy:
            yield from _without_legacy(cri, notes)
    if not options.cdi and not options.spec_dirs:
        return
    if options.engine_version and options.engine_version < KNOWS_CDI:
        notes.append("containerd before 1.7 has no CDI: containers use the handlers instead")
        return
    if options.cdi and not _cdi(options, config, cri):
        yield ("enable_cdi",), True
    present = strings(cri.table, "cdi_spec_dirs") or SPEC_DIRS
    names = {without_var(posixpath.normpath(folder)) for folder in present}
    missing = [
        folder
        for folder in options.spec_dirs
        if without_var(posixpath.normpath(folder)) not in names
    ]
    if missing:
        yield ("cdi_spec_dirs",), [*present, *missing]


def _without_default(options: EngineOptions, cri: Cri, notes: list[str]) -> Iterator[KeyEdit]:
    """Yield the edits that make runc the default again, if the default is the only handler given.

    A user who names one runtime without --set-as-default does not want it as the default, as with
    nvidia-ctk (1.20, pkg/config/engine/containerd, AddRuntime). runc gets the cgroup driver of the
    former default: pods fail if it is not the kubelet's. If all three of our handlers are given,
    the default stays: it may be the node's only runtime, as on EKS.
    """
    name, tables = cri.default, cri.runtimes
    if [handler.name for handler in options.handlers] != [name]:
        return
    notes.append(f"{name} is no longer the default runtime: --set-as-default keeps it")
    yield DEFAULT_KEY, ABSENT
    if "runc" not in tables:
        has_systemd = cri.systemd_cgroup(tables.get(name, {}))
        cgroup_options = {"options": SYSTEMD} if has_systemd else {}
        yield (*RUNTIMES, "runc"), {"runtime_type": RUNC_TYPE, **cgroup_options}


def _without_legacy(cri: Cri, notes: list[str]) -> Iterator[KeyEdit]:
    """Yield the edits that turn the table `default_runtime` into a runtime with a name.

    containerd 1.x uses it as the default, whatever default_runtime_name says.
    """
    notes.append(
        f"default_runtime, which overrides default_runtime_name, is now the runtime {LEGACY_NAME}"
    )
    # An empty table must stay: without options, the old shim takes the CRI's cgroup driver.
    empty_options: Table = {"options": {}} if cri.legacy.get("options") == {} else {}
    yield (*RUNTIMES, LEGACY_NAME), {**empty_options, **loading.set_only(cri.legacy)}
    yield ("containerd", loading.LEGACY_TABLE), ABSENT


def _next_default(remaining: Table, version: tuple[int, ...], where: Path) -> object:
    """Return the default among the remaining runtimes; ABSENT for containerd's built-in runc.

    If any runtime is registered, containerd 1.x has runc only if that is registered, too, and its
    CRI does not load without the default: so the default is one of the remaining runtimes.
    """
    if version >= loading.VERSION_3 or where[1] == loading.CRI[3]:
        return ABSENT
    if LEGACY_NAME in remaining:
        return LEGACY_NAME
    if not remaining or "runc" in remaining:
        return ABSENT
    tables = {name: table for name, table in remaining.items() if isinstance(table, dict)}
    usable = (name for name, table in tables.items() if table.get("runtime_type") in RUNC_TYPES)
    return next(usable, next(iter(remaining)))


def missing_in_dump(options: EngineOptions, dump: str) -> str:
    """Return the first of the options that is not in force, "" if all are or the dump is unclear.

    A dump is unclear if the CRI is disabled or not built in, or if an import that is no pattern
    does not exist, because containerd 2 stops reading there.
    """
    try:
        cri = loading.cri_of_dump(dump)
        document = toml_file.parse(dump, "containerd config dump")
    except EngineConfigError:
        return ""
    disabled = strings(document, "disabled_plugins")
    imported = (path for path in strings(document, "imports") if "*" not in path)
    unclear = loading.DISABLED.intersection(disabled) or not all(map(os.path.exists, imported))
    if not cri.table or unclear:
        return ""
    for handler in options.handlers:
        if loading.binary(cri.runtimes.get(handler.name, {})) != handler.path:
            return f"the runtime {handler.name} of {handler.path}"
    if options.default and cri.default != options.default:
        return f"the default runtime {options.default}"
    return ""


SYNTAX = Syntax(
    parent=("plugins", ANY, "containerd"), default=DEFAULT, header=target_files.HEADER,
    needed=target_files.is_import_needed, merges_from=loading.VERSION_3,
    next_default=_next_default, cleared=target_files.cleared,
)  # fmt: skip
