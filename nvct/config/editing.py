# SPDX-License-Identifier: Apache-2.0
"""Edits the text of a config.toml; comments, order and all other text are preserved.

Cold. Implements `--set KEY[=VALUE]` of `nvidia-ctk config` with the rules of
nvidia-container-toolkit v1.20, without its bug in lists with commas. A key that exists as comment
(`#root = "/run/nvidia/driver"`) replaces the comment.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nvct import paths
from nvct.config import toml, toml_file
from nvct.config.load import COMMA_LISTS, KEYS, POLICY, from_toml, leaves, sets
from nvct.config.model import Config, check
from nvct.config.tables import ABSENT, KeyEdit
from nvct.config.toml_source import HEADERS, statements, value_text
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


NIL = "nil"
SEPARATOR = ":"
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.\-]+)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")
_COMMENTED = re.compile(r"\s*#\s*([A-Za-z0-9_\-]+)\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key and its new value; None removes it."""

    key: str
    value: bool | str | list[str] | None


def parse(options: list[str], separator: str = SEPARATOR) -> list[Setting]:
    """Parse the values of --set.

    A word may contain several settings separated by commas, as in the incumbent; text after a
    comma that does not start with a key belongs to the previous value. UsageError if a key is
    unknown or a table, or its value has the wrong type.
    """
    return [_setting(word, separator) for text in options for word in _split(text)]


def _split(text: str) -> list[str]:
    settings: list[str] = []
    for part in text.split(","):
        key = part.partition("=")[0].strip()
        if settings and key not in KEYS:
            settings[-1] += f",{part}"
        else:
            settings.append(part)
    return settings


def _setting(word: str, separator: str) -> Setting:
    key, equals, value = word.partition("=")
    key = key.strip()
    if key not in KEYS:
        if any(known.startswith(f"{key}.") for known in KEYS):
            raise UsageError(f"{key} is a table", hint="set one of its keys")
        raise UsageError(
            f"{key!r:.80} is no key of config.toml",
            hint="nvidia-ctk config default lists all keys",
        )
    if value == NIL and key.startswith("features."):
        return Setting(key=key, value=None)
    default = getattr(Config(), KEYS[key])
    if isinstance(default, bool):
        return Setting(key=key, value=_truth(key, value) if equals else True)
    if not equals:
        raise UsageError(f"{key} needs a value", hint=f"write --set {key}=VALUE")
    if isinstance(default, tuple) and KEYS[key] not in COMMA_LISTS:
        return Setting(key=key, value=_list(value, separator))
    return Setting(key=key, value=value)


def _truth(key: str, value: str) -> bool:
    if value not in TRUE + FALSE:
        raise UsageError(
            f"{value!r:.80} is not a boolean value of {key}", hint="write true or false"
        )
    return value in TRUE


def _list(value: str, separator: str) -> list[str]:
    delimiter = separator if separator in value else ","
    return [part for part in value.split(delimiter) if part]


def change(text: str, settings: list[Setting], path: str) -> str:
    """Return the text with new settings.

    ConfigError if the text is not TOML, or no container can be created with the result.
    `settings`: in order; the last one of a key wins.
    """
    _read(text, path)
    for setting in settings:
        text = _change(text, setting, path)
    if settings:
        check(_read(text, path))
    return text


def complete(text: str, path: str) -> str:
    """Return the default file with the keys of a text; a text with all keys unchanged.

    The incumbent also prints all effective values, and scripts read them. ConfigError if the text
    is not TOML.
    """
    _read(text, path)
    current = leaves(text)
    if leaves(DEFAULT_TEXT).keys() <= current.keys():
        return text
    completed, tables = DEFAULT_TEXT, toml.loads(text)
    for key, value in current.items():
        index = _commented(completed, key)
        if index is not None and isinstance(value, bool | str | list):
            completed = _uncomment(completed, index, Setting(key=key, value=value))
    policy = _policy(text)
    if policy and toml.loads(policy)["nvct"]["policy"] == tables["nvct"]["policy"]:
        del tables["nvct"]["policy"]
    else:
        policy = ""
    edits: list[KeyEdit] = [((name,), value) for name, value in tables.items()]
    return _edited(completed, edits, path) + policy


def _policy(text: str) -> str:
    """Return the tables of the policy as they are written after an empty line, "" if none is."""
    lines, inside, text = "", False, f"{text}\n"
    for node in statements(text):
        inside = node.table[:2] == ("nvct", "policy") if node.kind in HEADERS else inside
        lines += text[node.start : node.end] if inside else ""
    return f"\n{lines.rstrip()}\n" if lines else ""


def _read(text: str, path: str) -> Config:
    return from_toml(text.encode(), path)


def _change(text: str, setting: Setting, path: str) -> str:
    if setting.value is None:
        return _edited(text, [(tuple(setting.key.split(".")), ABSENT)], path)
    if not sets(text, setting.key):
        index = _commented(text, setting.key)
        if index is not None:
            return _uncomment(text, index, setting)
    return _edited(text, [(tuple(setting.key.split(".")), setting.value)], path)


def _edited(text: str, edits: list[KeyEdit], path: str) -> str:
    try:
        return toml_file.edit(text.encode(), edits, path).decode()
    except EngineConfigError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line index, table, line) of a config.toml; multi-line strings are not recognized."""
    table = ""
    for number, line in enumerate(text.splitlines(keepends=True)):
        header = _HEADER.match(line)
        if header:
            table = header[1]
        yield number, table, line


def line_of(text: str, key: str) -> int | None:
    """Return the number, from 1, of the line that sets a key; None if there is none."""
    for number, table, line in lines(text):
        match = _KEY.match(line)
        if match and f"{table}.{match[1]}".lstrip(".") == key:
            return number + 1
    return None


def _commented(text: str, key: str) -> int | None:
    for number, table, line in lines(text):
        match = _COMMENTED.match(line)
        if match and f"{table}.{match[1]}".lstrip(".") == key:
            return number
    return None


def _uncomment(text: str, index: int, setting: Setting) -> str:
    rows = text.splitlines(keepends=True)
    end = rows[index][len(rows[index].rstrip("\r\n")) :]
    value = value_text(setting.value)
    rows[index] = f"{setting.key.rpartition('.')[2]} = {value}{end}"
    return "".join(rows)


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


def unread_warnings(settings: Config) -> list[str]:
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
