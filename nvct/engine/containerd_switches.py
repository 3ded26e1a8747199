# SPDX-License-Identifier: Apache-2.0
"""containerd's settings other than runtimes: the default, CDI, its folders; what `dump` prints."""

from __future__ import annotations

import os
import posixpath

from nvct.engine import containerd_load as loading
from nvct.engine import toml_file
from nvct.engine.containerd_load import RUNTIMES, Config, Setting, Table
from nvct.engine.model import ABSENT, EngineOptions, without_var
from nvct.errors import EngineConfigError

SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")  # containerd's own
KNOWS_CDI = (1, 7)
CDI_IS_ON = (2, 0)
LEGACY_NAME = "former-default"


def cdi_by_default(options: EngineOptions, config: Config) -> bool | None:
    """Report whether CDI is on if no file has the switch; None if that is unknown."""
    if options.engine_version:
        return options.engine_version >= CDI_IS_ON
    return True if config.version >= 3 else None


def settings(
    options: EngineOptions, config: Config, cri: Table, notes: list[str]
) -> list[Setting]:
    """Return the changes of the settings other than runtimes; note options without effect.

    Raises:
        EngineConfigError: the default that is asked for is no runtime.
    """
    changes: list[Setting] = []
    if options.default and loading.default(cri, modern=config.modern) != options.default:
        names = {handler.name for handler in options.handlers} | loading.runtimes(cri).keys()
        if options.default not in names:
            raise EngineConfigError(
                f"default runtime {options.default!r} is no runtime of containerd"
            )
        changes.append((RUNTIMES[:1], "default_runtime_name", options.default))
        if not config.modern and loading.legacy_default(cri):
            changes += _without_legacy(cri, notes)
    elif not options.default:
        changes += _without_default(options, cri, notes)
    if not options.cdi and not options.spec_dirs:
        return changes
    engine = options.engine_version
    if engine and engine < KNOWS_CDI:
        notes.append("this containerd has no CDI (1.7 has): containers use the handlers instead")
        return changes
    switch = cri.get("enable_cdi")
    on = switch if isinstance(switch, bool) else cdi_by_default(options, config)
    if options.cdi and not on:
        changes.append(((), "enable_cdi", True))
    present = loading.strings(cri, "cdi_spec_dirs") or SPEC_DIRS
    names = {without_var(posixpath.normpath(folder)) for folder in present}
    missing = [
        folder
        for folder in options.spec_dirs
        if without_var(posixpath.normpath(folder)) not in names
    ]
    if missing:
        changes.append(((), "cdi_spec_dirs", [*present, *missing]))
    return changes


def _without_default(options: EngineOptions, cri: Table, notes: list[str]) -> list[Setting]:
    """Return the changes that make runc the default again, if the only handler of the options is.

    A user who names one runtime without --set-as-default does not want it as the default, as with
    nvidia-ctk (1.20, pkg/config/engine/containerd, AddRuntime). runc keeps the cgroup driver of
    that default: with another one than the kubelet's, pods fail. Our own three handlers leave the
    default as it is: it may be the node's only one, as on EKS.
    """
    name = loading.default(cri)
    if [handler.name for handler in options.handlers] != [name]:
        return []
    notes.append(f"{name} is no longer the default runtime: --set-as-default keeps it")
    changes: list[Setting] = [(RUNTIMES[:1], "default_runtime_name", ABSENT)]
    tables = loading.runtimes(cri)
    if "runc" not in tables:
        runc: Table = {"runtime_type": loading.RUNC_TYPE}
        if loading.systemd_cgroup(cri, tables.get(name, {})):
            runc["options"] = {"SystemdCgroup": True}
        changes.append((RUNTIMES, "runc", runc))
    return changes


def _without_legacy(cri: Table, notes: list[str]) -> list[Setting]:
    """Return the changes that make the table `default_runtime` a runtime with a name.

    containerd 1.x uses it as the default, whatever default_runtime_name says.
    """
    notes.append(
        f"default_runtime, which overrides default_runtime_name, is now the runtime {LEGACY_NAME}"
    )
    legacy = loading.legacy_default(cri)
    # An empty table must stay: without options, the old shim takes the CRI's cgroup driver.
    empty_options: Table = {"options": {}} if legacy.get("options") == {} else {}
    renamed: Setting = (RUNTIMES, LEGACY_NAME, {**empty_options, **loading.set_only(legacy)})
    return [renamed, (RUNTIMES[:1], loading.LEGACY_TABLE, ABSENT)]


def _real(folder: str) -> str:
    return without_var(posixpath.normpath(folder))


def cri_of_dump(dump: str) -> Table:
    """Return the CRI's table of a dump, {} if there is none.

    Raises:
        EngineConfigError: it is no TOML.
    """
    document = toml_file.parse(dump, "containerd config dump")
    version = document.get("version", 1)
    name = loading.CRI.get(version if isinstance(version, int) else 1, loading.CRI[4])
    table = toml_file.find(document, ("plugins", name))
    return _without_empty_options(table) if isinstance(table, dict) else {}


def _without_empty_options(table: Table) -> Table:
    """Return a table without the empty `options` that containerd prints if there are none."""
    inner = {
        key: _without_empty_options(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    return {key: value for key, value in inner.items() if (key, value) != ("options", {})}


def missing_in_dump(options: EngineOptions, dump: str) -> str:
    """Return the first of the options that is not in force, "" if all are.

    Also "" if the dump does not show it: the CRI is disabled or not built in, or a file that is
    imported by its name does not exist, after which containerd 2 stops reading.
    """
    try:
        table = cri_of_dump(dump)
        document = toml_file.parse(dump, "containerd config dump")
    except EngineConfigError:
        return ""
    disabled = loading.strings(document, "disabled_plugins")
    imported = (path for path in loading.strings(document, "imports") if "*" not in path)
    unclear = loading.DISABLED.intersection(disabled) or not all(map(os.path.exists, imported))
    if not table or unclear:
        return ""
    runtimes = loading.runtimes(table)
    for handler in options.handlers:
        program = loading.binary(runtimes.get(handler.name, {}))
        if program != handler.path:
            return f"the runtime {handler.name} of {handler.path}"
    if options.default and loading.default(table) != options.default:
        return f"the default runtime {options.default}"
    return ""
