# SPDX-License-Identifier: Apache-2.0
"""Reads the output of `containerd config dump`: the configuration in force."""

from __future__ import annotations

import os

from nvct.engine import containerd_load as loading
from nvct.engine import toml_file
from nvct.engine.containerd_load import Table
from nvct.engine.model import EngineOptions
from nvct.errors import EngineConfigError


def cri(dump: str) -> Table:
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


def missing(options: EngineOptions, dump: str) -> str:
    """Return the first of the options that is not in force, "" if all are.

    Also "" if the dump does not show it: the CRI is disabled or not built in, or a file that is
    imported by its name does not exist, after which containerd 2 stops reading.
    """
    try:
        table = cri(dump)
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
