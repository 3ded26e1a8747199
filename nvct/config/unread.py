# SPDX-License-Identifier: Apache-2.0
"""Keys of config.toml that are accepted and have no effect, and why.

Cold: who changes or looks at the configuration is warned; a create never is. docs/config.md
prints the table. Keys are those of nvidia-container-toolkit v1.20.
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
"""The key and why it has no effect."""

_PROGRAMS = {
    "nvidia-container-cli.path": "nvidia-container-cli",
    "nvidia-ctk.path": "nvidia-ctk",
    "nvidia-container-runtime-hook.path": "nvidia-container-runtime-hook",
}
_USUAL: dict[str, object] = {
    "nvidia-container-cli.user": "root:video",
    "nvidia-container-cli.ldcache": "/etc/ld.so.cache",
}


def warnings(settings: Config) -> list[str]:
    """Return a sentence for each key that is set to what nvct does not do."""
    default = Config()
    return [
        f"{key} has no effect: {why}"
        for key, why in UNREAD.items()
        if getattr(settings, KEYS[key]) != getattr(default, KEYS[key])
        and not _is_usual(key, getattr(settings, KEYS[key]), settings)
    ]


def unknown_keys(text: str) -> list[str]:
    """Return a sentence for each key in the text of a config.toml that nobody knows."""
    found = []
    for key in leaves(text):
        if key in KEYS or key == POLICY:
            continue
        near = difflib.get_close_matches(key, KEYS, 1)
        end = f"; did you mean {near[0]}?" if near else ""
        found.append(f"{key} has no effect: there is no such key{end}")
    return found


def _is_usual(key: str, value: object, settings: Config) -> bool:
    """Return whether a value says what holds anyway."""
    if key == "nvidia-container-cli.ldconfig":
        root = settings.driver_root.rstrip("/")
        places = ("/sbin/ldconfig", f"{root}/sbin/ldconfig")
        return value in ("", *(f"@{path}{end}" for path in places for end in ("", ".real")))
    if key in _PROGRAMS:
        folders = {posixpath.dirname(path) for path in (settings.hook_path, paths.HOOK_PATH)}
        return value in ("", *(f"{folder}/{_PROGRAMS[key]}" for folder in folders))
    return value in ("", _USUAL.get(key))
