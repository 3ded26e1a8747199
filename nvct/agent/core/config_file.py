# SPDX-License-Identifier: Apache-2.0
"""The config file of the agent's programs, schema v1: names of resources, sharing, flags.

The device plugin and the feature labels share a file. An unknown key is a warning. Unlike
NVIDIA's programs 0.20, these obey `resources`, and `rename` and `devices` of shared resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from nvct.agent.core.settings import CONFIG_FILE, Kind, Option, Program, options_of, typed
from nvct.agent.task_table import TASKS
from nvct.errors import DocumentError, UsageError
from nvct.host.model import Gpu

PREFIX = "nvidia.com/"
VERSION = "v1"
NAME_LIMIT = 63
REPLICAS_LIMIT = 32768
"""Replicas of one device: each is an entry of a message to the kubelet, which takes 4 MiB."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain, as Kubernetes requires after the slash."""
DEVICE = re.compile(
    r"\d+(:\d+)?|GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36}|MIG-GPU-[0-9a-f-]{36}/\d+/\d+"
)
TABLES = (
    "version", "resources.gpus", "resources.mig", "resources.exclude", "sharing.timeSlicing",
    "sharing.mps",
)  # fmt: skip
"""Keys that do not belong to a flag."""
SLICING, MPS = "time-slicing", "mps"
STRATEGIES = {"mps": MPS, "timeSlicing": SLICING}
"""Sharing strategies by key. If a file has both, the first one counts, as in NVIDIA's plugin."""
SHARING_KEYS = {"renameByDefault", "failRequestsGreaterThanOne", "resources"}
RESOURCE_KEYS = {"name", "rename", "devices", "replicas"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """A resource's name for GPU models or MIG profiles that match a pattern with asterisks."""

    pattern: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How the devices of a resource are shared: each is offered `replicas` times."""

    name: str
    replicas: int
    rename: str = ""  # the name of the shared resource, "" for the same one
    devices: str | int | tuple[str, ...] = "all"  # "all", how many, or their indices and UUIDs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How resources are shared; `one_each` refuses a container that asks for more than one."""

    strategy: str = ""
    replicas: tuple[Replicas, ...] = ()
    one_each: bool = False

    @property
    def uses_mps(self) -> bool:
        """Return whether devices are shared by MPS."""
        return self.strategy == MPS


UNSHARED = Sharing()


@cache
def flags() -> Mapping[str, Kind]:
    """Return the kind of each key that is a flag of the device plugin or of the labels.

    Each of the two programs checks the keys of both, because they share a file.
    """
    both = (TASKS[name].module("settings").Settings for name in ("device-plugin", "labels"))
    options = (option for settings in both for option in options_of(settings))
    return {option.key: option.kind for option in options if option.key}


@cache
def _keys() -> tuple[frozenset[str], frozenset[str]]:
    """Return the dotted keys of schema v1, and the tables above them.

    Keys of shared resources are not among them.
    """
    keys = (*TABLES, *flags())
    parents = (key[:end] for key in keys for end, char in enumerate(key) if char == ".")
    return frozenset(keys), frozenset(parents)


def name_of(text: str, patterns: Sequence[NamePattern]) -> str:
    """Return the name of the first pattern that a model or profile matches, or ""."""
    return next((each.name for each in patterns if _matches(text, each.pattern)), "")


def is_excluded(gpu: Gpu, words: Sequence[str]) -> bool:
    """Return whether one of the words of `resources.exclude` names a GPU."""
    return any(word in (str(gpu.index), gpu.uuid) or _matches(gpu.model, word) for word in words)


def _matches(text: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return bool(re.fullmatch(".*".join(parts), text))


def resolve(
    program: Program, words: Sequence[str], env: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return values for a program's settings, and a sentence for each key without effect.

    The command line takes precedence over the environment, and the environment over the config
    file. UsageError or DocumentError if a value is malformed.
    """
    of_env, of_words = program.from_environment(env), program.from_command_line(words)
    values = {**of_env, **of_words}
    path = values.get(CONFIG_FILE, "")
    of_file, unknown = load(path, program) if path else ({}, ())
    warnings = tuple(
        f"{path}: {option.key} has no effect: {_name_of(option, of_words, env)} is set"
        for option in program.options
        if of_file.get(name := option.field, values.get(name)) != values.get(name)
        and name in values
    )
    return program.checked({**of_file, **values}), (*unknown, *warnings)


def _name_of(option: Option, of_words: Mapping[str, Any], env: Mapping[str, str]) -> str:
    if option.field in of_words:
        return f"--{option.flags[0]}"
    return next(name for name in option.env if name in env)


def load(path: str, program: Program) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a program's settings from a config file, and a sentence for each unknown key.

    DocumentError if it cannot be read, is malformed or has another version; UsageError if a flag
    has a value of another type.
    """
    from nvct.agent.core import yaml_file  # 2 MB, only with a config file

    content = yaml_file.read(path, "config file")  # first, so that no later change is missed
    document = yaml_file.load(path, "config file")
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise DocumentError(f"config file {path} is not a table of settings")
    document = _canonical(document)
    version = document.get("version") or VERSION
    if version != VERSION:
        raise DocumentError(f"config file {path} has the unknown version {version!r}, not v1")
    try:
        others = {
            "gpu_names": _names(document, "gpus"),
            "mig_names": _names(document, "mig"),
            "excluded": _excluded(document),
            "sharing": _sharing(document),
            "config_content": content,
        }
    except DocumentError as error:
        raise DocumentError(f"{error.message}, in config file {path}", hint=error.hint) from error
    _check_types(document, path)
    unknown = tuple(f"{path}: unknown key {key} has no effect" for key in _unknown(document))
    names = {each.name for each in fields(program.settings)}
    has = {name: value for name, value in others.items() if name in names}
    return {**program.from_file(document, path), **has}, unknown


def _check_types(document: Mapping[str, Any], path: str) -> None:
    """Raise UsageError if a key's value has the wrong type, also for keys of the other program."""
    for name, value in _leaves(document):
        if value is None:
            continue
        if kind := flags().get(name):
            typed(kind, value, f"{name} in {path}")
        elif any(each.startswith(f"{name}.") for each in flags()):
            raise UsageError(f"{name} in {path} must be a table, not {value!r}")


def _leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key with its value, except tables that have known keys below them."""
    _, parents = _keys()
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path in parents:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _canonical(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a document with keys in the schema's spelling, because their case does not matter.

    NVIDIA's programs read the file by Go's encoding/json, which takes `timeslicing` for
    `timeSlicing`, except below `sharing.timeSlicing` and `sharing.mps`.
    """
    keys, parents = _keys()
    known = {key[len(prefix) :].partition(".")[0] for key in keys if key.startswith(prefix)}
    by_case = {name.lower(): name for name in known}
    result: dict[str, Any] = {}
    for key, value in document.items():
        name = by_case.get(str(key).lower(), key)
        if name != key and name in document:
            name = key  # the document has both spellings: the exact one counts
        path = f"{prefix}{name}"
        has_keys = isinstance(value, dict) and path in parents
        result[name] = _canonical(value, f"{path}.") if has_keys else value
    return result


def _names(document: Mapping[str, Any], kind: str) -> tuple[NamePattern, ...]:
    resources = _table(document.get("resources"), "resources")
    patterns = []
    for rule in _list(resources.get(kind), f"resources.{kind}"):
        pattern, name = rule.get("pattern"), rule.get("name")
        if not isinstance(pattern, str) or not isinstance(name, str):
            raise DocumentError(f"each entry of resources.{kind} needs a pattern and a name")
        patterns.append(NamePattern(pattern=pattern, name=resource_name(name)))
    return tuple(patterns)


def _excluded(document: Mapping[str, Any]) -> tuple[str, ...]:
    words = _table(document.get("resources"), "resources").get("exclude")
    words = [] if words is None else words
    is_list = isinstance(words, list)
    if not is_list or any(type(word) not in (int, str) or word == "" for word in words):
        raise DocumentError(
            f"resources.exclude must be a list, not {words!r}",
            hint="it lists indices, UUIDs, and patterns of models with asterisks",
        )
    return tuple(str(word) for word in words)


def _sharing(document: Mapping[str, Any]) -> Sharing:
    sharing = _table(document.get("sharing"), "sharing")
    for key, strategy in STRATEGIES.items():
        if sharing.get(key) is None:
            continue
        place = f"sharing.{key}"
        table = _table(sharing[key], place)
        rules = _list(table.get("resources"), f"{place}.resources")
        if not rules:
            raise DocumentError(f"{place}: no resources specified")
        renames = _switch(table, "renameByDefault", place)
        return Sharing(
            strategy=strategy,
            replicas=tuple(_replicas(rule, place, renames=renames) for rule in rules),
            one_each=_switch(table, "failRequestsGreaterThanOne", place, default=strategy == MPS),
        )
    return UNSHARED


def _replicas(rule: Mapping[str, Any], place: str, *, renames: bool) -> Replicas:
    name, replicas, rename = rule.get("name"), rule.get("replicas"), rule.get("rename")
    if not isinstance(name, str):
        raise DocumentError(f"{place}.resources: no resource name specified")
    if replicas is None:
        raise DocumentError(f"sharing of {name}: no replicas specified")
    if type(replicas) is not int or replicas < 2:
        raise DocumentError(f"sharing of {name}: number of replicas must be >= 2")
    if replicas > REPLICAS_LIMIT:
        raise DocumentError(f"sharing of {name}: number of replicas must be <= {REPLICAS_LIMIT}")
    if rename is not None and not isinstance(rename, str):
        raise DocumentError(f"sharing of {name}: rename must be a string")
    name = resource_name(name)
    default = f"{name}.shared" if renames else ""
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
    """Return the full name of a resource; DocumentError if it is malformed."""
    full = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
    if len(full) > NAME_LIMIT or not NAME.fullmatch(full.removeprefix(PREFIX)):
        raise DocumentError(
            f"{full!r} is not a resource name",
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


def _switch(table: Mapping[str, Any], key: str, place: str, *, default: bool = False) -> bool:
    value = table.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise DocumentError(f"{place}.{key} must be true or false, not {value!r}")
    return value


def _unknown(document: Mapping[str, Any]) -> Iterator[str]:
    keys, parents = _keys()
    for path, value in _leaves(document):
        if path not in keys and (value is not None or path not in parents):
            yield path
    for strategy in STRATEGIES:
        table = (document.get("sharing") or {}).get(strategy)
        if not isinstance(table, dict):
            continue
        rules = table.get("resources")
        for key in table.keys() - SHARING_KEYS:
            yield f"sharing.{strategy}.{key}"
        for rule in rules if isinstance(rules, list) else ():
            names = rule.keys() if isinstance(rule, dict) else set()
            for key in names - RESOURCE_KEYS:
                yield f"sharing.{strategy}.resources.{key}"
