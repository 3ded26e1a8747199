# SPDX-License-Identifier: Apache-2.0
"""Edits the text of a config.toml; comments, order and all other text are preserved.

Cold side. Implements `--set KEY[=VALUE]` of `nvidia-ctk config` with the rules of
nvidia-container-toolkit v1.20, without its bug in lists with commas. If a key is in a comment
(`#root = "/run/nvidia/driver"`), its line replaces the comment.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nvct import paths
from nvct.config import toml, toml_file
from nvct.config.load import COMMA_LISTS, KEYS, POLICY, from_toml, leaves, sets
from nvct.config.model import Config, check
from nvct.config.tables import ABSENT, KeyEdit, Path
from nvct.config.toml_source import HEADERS, Node, pair, statements, value_text
from nvct.errors import ConfigError, EngineConfigError, UsageError
from nvct.paths import FALSE, TRUE

DEFAULT_TEXT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"

[nvct]
#layout = "auto"
#farm-dir = "/var/lib/nvct/farm"
#params-mask = "auto"
"""


Value: TypeAlias = bool | str | Sequence[str] | None  # None removes the key

NIL = "nil"
SEPARATOR = ":"
_COMMENTED = re.compile(r"\s*#\s*([A-Za-z0-9_\-]+)\s*=")


def parse(options: Sequence[str], separator: str = SEPARATOR) -> dict[str, Value]:
    """Return the values of --set by their keys.

    A word may contain several settings separated by commas, as in the incumbent; text after a
    comma that does not start with a key belongs to the previous value. UsageError if a key is
    unknown or a table, or its value has the wrong type.
    """
    return dict(_setting(word, separator) for text in options for word in _split(text))


def _split(text: str) -> list[str]:
    settings: list[str] = []
    for part in text.split(","):
        key = part.partition("=")[0].strip()
        if settings and key not in KEYS:
            settings[-1] += f",{part}"
        else:
            settings.append(part)
    return settings


def _setting(word: str, separator: str) -> tuple[str, Value]:
    key, equals, value = word.partition("=")
    key = key.strip()
    if key not in KEYS:
        if any(known.startswith(f"{key}.") for known in KEYS):
            raise UsageError(f"{key} is a table", hint="set one of its keys")
        raise UsageError(
            f"config.toml has no key {key!r:.80}",
            hint="nvidia-ctk config default lists all keys",
        )
    if value == NIL and key.startswith("features."):
        return key, None
    default = getattr(Config(), KEYS[key])
    if isinstance(default, bool):
        return key, _truth(key, value) if equals else True
    if not equals:
        raise UsageError(f"{key} needs a value", hint=f"write --set {key}=VALUE")
    if isinstance(default, tuple) and KEYS[key] not in COMMA_LISTS:
        return key, _list(value, separator)
    return key, value


def _truth(key: str, value: str) -> bool:
    if value not in TRUE + FALSE:
        raise UsageError(
            f"{value!r:.80} is not a boolean value of {key}", hint="write true or false"
        )
    return value in TRUE


def _list(value: str, separator: str) -> list[str]:
    delimiter = separator if separator in value else ","
    return [part for part in value.split(delimiter) if part]


def change(text: str, settings: Mapping[str, Value], path: str) -> str:
    """Return the text with settings changed.

    ConfigError if the text is not TOML, or no container could be created with the result.
    """
    _read(text, path)
    for key, value in settings.items():
        text = _changed(text, key, value, path)
    if settings:
        check(_read(text, path))
    return text


def complete(text: str, path: str) -> str:
    """Return the default file with the settings of a text; a text that has all keys stays.

    The incumbent also prints all values in force, and scripts read them. ConfigError if the text
    is not TOML.
    """
    _read(text, path)
    current = leaves(text)
    if leaves(DEFAULT_TEXT).keys() <= current.keys():
        return text
    completed, tables = DEFAULT_TEXT, toml.loads(text)
    for key, value in current.items():
        comment = _comment(completed, key)
        if comment and isinstance(value, bool | str | list):
            completed = _uncommented(completed, comment, key, value)
    policy = _policy(text)
    if policy and toml.loads(policy)["nvct"]["policy"] == tables["nvct"]["policy"]:
        del tables["nvct"]["policy"]
    else:
        policy = ""
    edits: list[KeyEdit] = [((name,), value) for name, value in tables.items()]
    return _edited(completed, edits, path) + policy


def _policy(text: str) -> str:
    """Return the text of the policy's tables after an empty line; "" if there are none."""
    lines, inside, text = "", False, f"{text}\n"
    for node in statements(text):
        inside = node.table[:2] == ("nvct", "policy") if node.kind in HEADERS else inside
        lines += text[node.start : node.end] if inside else ""
    return f"\n{lines.rstrip()}\n" if lines else ""


def _read(text: str, path: str) -> Config:
    return from_toml(text.encode(), path)


def _changed(text: str, key: str, value: Value, path: str) -> str:
    if value is not None and not sets(text, key) and (comment := _comment(text, key)):
        return _uncommented(text, comment, key, value)
    return _edited(text, [(_path(key), ABSENT if value is None else value)], path)


def _path(key: str) -> Path:
    return tuple(key.split("."))


def _edited(text: str, edits: list[KeyEdit], path: str) -> str:
    try:
        return toml_file.edit(text.encode(), edits, path).decode()
    except EngineConfigError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def line_of(text: str, key: str) -> int | None:
    """Return the line number, from 1, at which a key is set; None if it is not set."""
    node = pair(statements(f"{text}\n"), _path(key))
    return text.count("\n", 0, node.start) + 1 if node else None


def _comment(text: str, key: str) -> Node | None:
    """Return the comment that contains a setting of a key, None if there is none."""
    table: Path = ()
    for node in statements(f"{text}\n"):
        table = node.table if node.kind in HEADERS else table
        match = _COMMENTED.match(text, node.start) if node.kind == "comment" else None
        if match and (*table, match[1]) == _path(key):
            return node
    return None


def _uncommented(text: str, comment: Node, key: str, value: Value) -> str:
    line = text[comment.start : comment.end]
    new = f"{_path(key)[-1]} = {value_text(value)}{line[len(line.rstrip()) :]}"
    return text[: comment.start] + new + text[comment.end :]


_NO_PROGRAM = "nvct does not run nvidia-container-cli; its prestart hook does that work itself"
_NO_LDCONFIG = "nvct does not run ldconfig; it writes a container's ld.so.cache itself"
_OWN_CACHE = "nvct reads ld.so.cache of the driver root"

UNREAD = {
    "nvidia-container-cli.path": _NO_PROGRAM,
    "nvidia-container-cli.environment": _NO_PROGRAM,
    "nvidia-container-cli.debug": f"{_NO_PROGRAM}; see nvidia-container-runtime.debug",
    "nvidia-container-cli.user": _NO_PROGRAM,
    "nvidia-container-cli.no-pivot": f"{_NO_PROGRAM} and never calls pivot_root",
    "nvidia-container-cli.ldcache": _OWN_CACHE,
    "nvidia-container-cli.ldconfig": f"{_NO_LDCONFIG}; a path without @ is refused",
    "nvidia-ctk.path": "containers get the hook in nvct.hook-path",
    "nvidia-container-runtime-hook.path": "the runtime never adds a prestart hook",
    "features.allow-ldconfig-from-container": f"{_NO_LDCONFIG}, so the container's never runs",
    "features.allow-unknown-oci-spec-fields": "unknown fields of config.json always stay",
}
"""Key without effect → the reason."""

_PROGRAMS = {
    "nvidia-container-cli.path": paths.CONTAINER_CLI_PROGRAM,
    "nvidia-ctk.path": paths.CTK_PROGRAM,
    "nvidia-container-runtime-hook.path": paths.RUNTIME_HOOK_PROGRAM,
}
_DEFAULTS: dict[str, object] = {
    "nvidia-container-cli.user": "root:video",
    "nvidia-container-cli.ldcache": "/etc/ld.so.cache",
}


def unread_warnings(settings: Config) -> list[str]:
    """Return a message for each key whose value has no effect."""
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
        messages.append(f"{key} has no effect: no such key exists{suggestion}")
    return messages


def _is_redundant(key: str, value: object, settings: Config) -> bool:
    """Report whether a value says what nvct does in any case."""
    if key == "nvidia-container-cli.ldconfig":
        root = settings.driver_root.rstrip("/")
        programs = ("/sbin/ldconfig", f"{root}/sbin/ldconfig")
        return value in ("", *(f"@{path}{end}" for path in programs for end in ("", ".real")))
    if key in _PROGRAMS:
        folders = {posixpath.dirname(path) for path in (settings.hook_path, paths.HOOK_PATH)}
        return value in ("", *(f"{folder}/{_PROGRAMS[key]}" for folder in folders))
    return value in ("", _DEFAULTS.get(key))
