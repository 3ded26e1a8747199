# SPDX-License-Identifier: Apache-2.0
"""The config file of the device plugin, schema v1: names of resources, sharing, flags.

Unknown keys are warnings. Unlike in NVIDIA's device plugin 0.20, `resources`, and `rename` and
`devices` of shared resources, have an effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from nvct.agent.device_plugin import options
from nvct.agent.device_plugin.resources import PREFIX
from nvct.agent.device_plugin.settings import NamePattern, Replicas
from nvct.errors import DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nvct.agent.device_plugin.settings import Settings

VERSION = "v1"
SHARED = ".shared"
NAME_LIMIT = 63
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain, as Kubernetes requires after the slash."""
DEVICE = re.compile(
    r"\d+(:\d+)?|GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36}|MIG-GPU-[0-9a-f-]{36}/\d+/\d+"
)
OTHER_KEYS = {
    "version", "flags.useNodeFeatureAPI", "flags.gfd.oneshot", "flags.gfd.noTimestamp",
    "flags.gfd.sleepInterval", "flags.gfd.outputFile", "flags.gfd.machineTypeFile",
    "resources.gpus", "resources.mig", "sharing.timeSlicing", "sharing.mps",
}  # fmt: skip
"""Keys that no option has; those of other programs have no effect here."""
SHARING_KEYS = {"renameByDefault", "failRequestsGreaterThanOne", "resources"}
RESOURCE_KEYS = {"name", "rename", "devices", "replicas"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A config file: the values of flags, further fields of Settings, warnings."""

    values: Mapping[str, Any]
    fields: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def load(path: str) -> Document:
    """Read a config file.

    Raises:
        DocumentError: it cannot be read, is malformed or has another version.
        UsageError: a flag has a value of another type.
    """
    import yaml  # 2 MB, which a plugin without a config file does without

    try:
        with open(path, "rb") as file:
            document = yaml.safe_load(file)
    except OSError as error:
        raise DocumentError(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise DocumentError(f"config file {path} is malformed: {text}") from error
    return parse(document, path)


def parse(document: object, path: str) -> Document:
    """Return the content of a config file from its data.

    Raises:
        DocumentError, UsageError: as `load`.
    """
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise DocumentError(f"config file {path} is no table of settings")
    version = document.get("version") or VERSION
    if version != VERSION:
        raise DocumentError(f"config file {path} has the unknown version {version!r}, not v1")
    try:
        fields = {**_names(document), **_sharing(document)}
    except DocumentError as error:
        raise DocumentError(f"{error.message}, in config file {path}", hint=error.hint) from error
    unknown = tuple(f"{path}: unknown key {key} has no effect" for key in _unknown(document))
    return Document(values=options.from_file(document, path), fields=fields, warnings=unknown)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings from command line, environment and config file, and warnings.

    The command line takes precedence over the environment, and that over the config file.

    Raises:
        UsageError, DocumentError: a value is malformed.
    """
    values = {**options.from_environment(env), **options.from_command_line(words)}
    path = values.pop(options.CONFIG_FILE, "")
    document = load(path) if path else Document(values={}, fields={})
    settings = options.settings_of({**document.values, **values}, document.fields)
    return settings, document.warnings


def _names(document: Mapping[str, Any]) -> dict[str, Any]:
    resources = _table(document.get("resources"), "resources")
    fields = {}
    for key, field in (("gpus", "gpu_names"), ("mig", "mig_names")):
        patterns = []
        for rule in _list(resources.get(key), f"resources.{key}"):
            pattern, name = rule.get("pattern"), rule.get("name")
            if not isinstance(pattern, str) or not isinstance(name, str):
                raise DocumentError(f"each of resources.{key} needs a pattern and a name")
            patterns.append(NamePattern(pattern=pattern, name=resource_name(name)))
        fields[field] = tuple(patterns)
    return fields


def _sharing(document: Mapping[str, Any]) -> dict[str, Any]:
    sharing = _table(document.get("sharing"), "sharing")
    if sharing.get("mps") is not None:
        raise DocumentError(
            "sharing.mps is not available: there is no MPS control daemon yet",
            hint="use sharing.timeSlicing",
        )
    if sharing.get("timeSlicing") is None:
        return {}
    table = _table(sharing["timeSlicing"], "sharing.timeSlicing")
    rules = _list(table.get("resources"), "sharing.timeSlicing.resources")
    if not rules:
        raise DocumentError("sharing.timeSlicing: no resources specified")
    renames = _switch(table, "renameByDefault")
    return {
        "replicas": tuple(_replicas(rule, renames=renames) for rule in rules),
        "one_each": _switch(table, "failRequestsGreaterThanOne"),
    }


def _replicas(rule: Mapping[str, Any], *, renames: bool) -> Replicas:
    name, replicas, rename = rule.get("name"), rule.get("replicas"), rule.get("rename")
    if not isinstance(name, str):
        raise DocumentError("sharing.timeSlicing.resources: no resource name specified")
    if replicas is None:
        raise DocumentError(f"sharing of {name}: no replicas specified")
    if type(replicas) is not int or replicas < 2:
        raise DocumentError(f"sharing of {name}: number of replicas must be >= 2")
    if rename is not None and not isinstance(rename, str):
        raise DocumentError(f"sharing of {name}: rename must be a string")
    name = resource_name(name)
    default = f"{name}{SHARED}" if renames else ""
    return Replicas(
        name=name,
        replicas=replicas,
        rename=resource_name(rename or default) if rename or default else "",
        devices=_devices(rule.get("devices", "all"), name),
    )


def _devices(value: object, name: str) -> str | int | tuple[str, ...]:
    if value == "all":
        return "all"
    if type(value) is int and value > 0:
        return value
    if isinstance(value, list):
        words = tuple(str(word) for word in value)
        if words and all(DEVICE.fullmatch(word) for word in words):
            return words
    raise DocumentError(
        f"sharing of {name}: devices must be all, a number or a list, not {value!r}",
        hint="a list has indices, GPU:MIG indices or UUIDs",
    )


def resource_name(name: str) -> str:
    """Return the full name of a resource.

    Raises:
        DocumentError: it is no resource name.
    """
    full = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
    if len(full) > NAME_LIMIT or not NAME.fullmatch(full.removeprefix(PREFIX)):
        raise DocumentError(
            f"{full!r} is no resource name",
            hint=f"at most {NAME_LIMIT} of the characters a-z 0-9 - .",
        )
    return full


def _table(value: object, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DocumentError(f"{name} must be a table")
    return value


def _list(value: object, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        raise DocumentError(f"{name} must be a list of tables")
    return value


def _switch(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key) or False
    if not isinstance(value, bool):
        raise DocumentError(f"sharing.timeSlicing.{key} must be true or false, not {value!r}")
    return value


def _unknown(document: Mapping[str, Any]) -> Iterator[str]:
    known = {option.key for option in options.OPTIONS} | OTHER_KEYS

    def walk(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for key, value in table.items():
            path = f"{prefix}{key}"
            if path in known:
                continue
            if isinstance(value, dict) and any(name.startswith(f"{path}.") for name in known):
                yield from walk(value, f"{path}.")
            elif value is not None or not any(name.startswith(f"{path}.") for name in known):
                yield path

    yield from walk(document, "")
    slicing = (document.get("sharing") or {}).get("timeSlicing") or {}
    for key in slicing.keys() - SHARING_KEYS:
        yield f"sharing.timeSlicing.{key}"
    for rule in slicing.get("resources") or ():
        for key in rule.keys() - RESOURCE_KEYS:
            yield f"sharing.timeSlicing.resources.{key}"
