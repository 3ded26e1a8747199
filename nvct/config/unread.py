# SPDX-License-Identifier: Apache-2.0
"""Keys of config.toml that are accepted but have no effect, and the reasons.

Cold: commands that show or change the configuration warn, a create does not. docs/config.md
contains the table. Keys are those of nvidia-container-toolkit v1.20.
"""

from __future__ import annotations

import difflib
import posixpath

from nvct import paths
from nvct.config.load import KEYS, POLICY, leaves
from nvct.config.model import Config

_NO_PROGRAM = "nvct runs no nvidia-container-cli; its prestart hook does that work itself"
_NO_LDCONFIG = "nvct runs no ldconfig; it writes ld.so.cache of a container itself"
_OWN_CACHE = "nvct reads ld.so.cache of the driver root"

UNREAD = {
    "nvidia-container-cli.path": _NO_PROGRAM,
    "nvidia-container-cli.environment": _NO_PROGRAM,
    "nvidia-container-cli.debug": f"{_NO_PROGRAM}; see nvidia-container-runtime.debug",
    "nvidia-container-cli.user": _NO_PROGRAM,
    "nvidia-container-cli.no-pivot": f"{_NO_PROGRAM}, and never changes its own root",
    "nvidia-container-cli.ldcache": _OWN_CACHE,
    "nvidia-container-cli.ldconfig": f"{_NO_LDCONFIG}; a path without @ is refused",
    "nvidia-ctk.path": "the hook of containers is nvct.hook-path",
    "nvidia-container-runtime-hook.path": "the runtime adds no prestart hook in any mode",
    "features.allow-ldconfig-from-container": f"{_NO_LDCONFIG}, so the container's never runs",
    "features.allow-unknown-oci-spec-fields": "unknown fields of config.json always stay",
}
"""Key -> reason."""

_PROGRAMS = {
    "nvidia-container-cli.path": paths.CONTAINER_CLI_PROGRAM,
    "nvidia-ctk.path": paths.CTK_PROGRAM,
    "nvidia-container-runtime-hook.path": paths.RUNTIME_HOOK_PROGRAM,
}
_DEFAULTS: dict[str, object] = {
    "nvidia-container-cli.user": "root:video",
    "nvidia-container-cli.ldcache": "/etc/ld.so.cache",
}


def warnings(settings: Config) -> list[str]:
    """Return a message for each key with a value that has no effect."""
    default = Config()
    return [
        f"{key} has no effect: {why}"
        for key, why in UNREAD.items()
        if getattr(settings, KEYS[key]) != getattr(default, KEYS[key])
        and not _is_redundant(key, getattr(settings, KEYS[key]), settings)
    ]


def unknown_keys(text: str) -> list[str]:
    """Return a message for each unknown key in the text of a config.toml."""
    messages = []
    for key in leaves(text):
        if key in KEYS or key == POLICY:
            continue
        similar = difflib.get_close_matches(key, KEYS, 1)
        suggestion = f"; did you mean {similar[0]}?" if similar else ""
        messages.append(f"{key} has no effect: there is no such key{suggestion}")
    return messages


def _is_redundant(key: str, value: object, settings: Config) -> bool:
    """Report whether a value describes what nvct does anyway."""
    if key == "nvidia-container-cli.ldconfig":
        root = settings.driver_root.rstrip("/")
        programs = ("/sbin/ldconfig", f"{root}/sbin/ldconfig")
        return value in ("", *(f"@{path}{end}" for path in programs for end in ("", ".real")))
    if key in _PROGRAMS:
        folders = {posixpath.dirname(path) for path in (settings.hook_path, paths.HOOK_PATH)}
        return value in ("", *(f"{folder}/{_PROGRAMS[key]}" for folder in folders))
    return value in ("", _DEFAULTS.get(key))
