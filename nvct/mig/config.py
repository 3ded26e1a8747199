# SPDX-License-Identifier: Apache-2.0
"""The files of nvidia-mig-parted, version v1: configurations, and hooks around a change.

The messages are those of NVIDIA's program, so that scripts which look for them keep working.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nvct.errors import DocumentError, HostError, UsageError
from nvct.mig import layout

Configs: TypeAlias = Mapping[str, tuple["Spec", ...]]

ALL = "all"
FIELDS = ("devices", "mig-enabled", "mig-devices", "device-filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceId:
    """A filter for GPUs by their PCI ids, with the device in the upper 16 bits."""

    device: int
    subsystem: int | None = None  # the board's id; None if every board matches

    def matches(self, device: int, subsystem: int) -> bool:
        """Report whether a GPU with these PCI ids matches."""
        return self.device == device and self.subsystem in (None, subsystem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """An entry of a configuration."""

    devices: tuple[int, ...] | None
    enabled: bool
    wish: Mapping[str, int] = field(default_factory=dict)
    filters: tuple[DeviceId, ...] = ()  # the GPU matches one of them; empty for all
    # the error of a malformed filter; the file's other configurations can be used
    fault: DocumentError | None = None


def parse(text: str) -> Configs:
    """Return a file's configurations by name; DocumentError with the place if it is malformed."""
    return of_document(_load(text, "error converting YAML to JSON"))


def _load(text: str, failure: str) -> Any:  # noqa: ANN401  any YAML
    import yaml

    from nvct.host.yaml_aliases import Loader

    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise DocumentError(f"{failure}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise DocumentError(f"{failure}: it is nested too deeply") from error


def of_document(document: object) -> Configs:
    """Return the configurations of a parsed file by name; DocumentError as `parse`."""
    try:
        return _configs(_mapping(document or {}, "the file"))
    except DocumentError as error:
        reason = f"error unmarshaling JSON: while decoding JSON: {error.message}"
        raise DocumentError(reason, hint=error.hint) from error


def select(configs: Configs, name: str) -> tuple[Spec, ...]:
    """Return a configuration by its name; "" selects the only one.

    UsageError if none has this name, or no name is given and there are several.
    """
    hint = f"there are {', '.join(configs) or 'none'}"
    if not name and len(configs) > 1:
        raise UsageError(
            "missing required flag 'selected-config' when more than one config available",
            hint=hint,
        )
    name = name or next(iter(configs), "")
    if name not in configs:
        raise UsageError(f"selected mig-config not present: {name}", hint=hint)
    return configs[name]


def device_id(text: str) -> DeviceId:
    """Return a filter: `0x<device><vendor>`, with `:0x<subdevice><subvendor>` for one board.

    DocumentError if the text is not a filter.
    """
    parts = text.split(":")
    try:
        numbers = [int(part, 0) for part in parts]
    except ValueError as error:
        raise DocumentError(f"unable to create DeviceID from string '{text}'") from error
    if len(numbers) > 2 or not all(0 <= number < 1 << 32 for number in numbers):
        raise DocumentError(
            f"invalid DeviceID format '{text}': expected '<devicevendor>' or "
            "'<devicevendor>:<subdevicevendor>'"
        )
    return DeviceId(device=numbers[0], subsystem=numbers[1] if len(numbers) == 2 else None)


def _configs(document: Mapping[str, Any]) -> Configs:
    if "version" not in document:
        if document:
            is_object = {"apiVersion", "kind"} <= document.keys()
            hint = "it is a Kubernetes object; take the text of its key config.yaml"
            message = "unable to parse with missing 'version' field"
            raise DocumentError(message, hint=hint if is_object else "")
        raise DocumentError("unknown version: ")
    if document["version"] != "v1":
        raise DocumentError(f"unknown version: {document['version']}")
    for key in document:
        if key not in ("version", "mig-configs"):
            raise DocumentError(f"unexpected field: {key}")
    configs = _mapping(_named(document.get("mig-configs", {"": None})) or {}, "'mig-configs'")
    if not configs:
        raise DocumentError("at least one entry in 'mig-configs' is required")
    if configs == {"": None}:
        return {}
    return {name: _config(name, specs) for name, specs in configs.items()}


def _named(configs: object) -> object:
    """Return configurations with names as strings: YAML reads `on` as true, and 7 as a number."""
    if not isinstance(configs, dict):
        return configs
    return {
        json.dumps(name) if isinstance(name, int | float) else name: specs
        for name, specs in configs.items()
    }


def _config(name: str, value: object) -> tuple[Spec, ...]:
    if not isinstance(value, list):
        raise DocumentError(f"'{name}' is not a list")
    if not value:
        raise DocumentError(f"at least one entry in '{name}' is required")
    specs = []
    for number, item in enumerate(value, 1):
        hint = f"see entry {number} of '{name}'"
        try:
            spec = _spec(_mapping(item, f"an entry of '{name}'"))
        except DocumentError as error:
            raise DocumentError(error.message, hint=hint) from error
        if spec.fault:
            spec.fault.hint = hint
        specs.append(spec)
    return tuple(specs)


def _spec(fields: Mapping[str, Any]) -> Spec:
    for key in ("devices", "mig-enabled"):
        if key not in fields:
            raise DocumentError(f"missing required field: {key}")
    for key in fields:
        if key not in FIELDS:
            raise DocumentError(f"unexpected field: {key}")
    enabled = fields["mig-enabled"]
    if not isinstance(enabled, bool):
        raise DocumentError("the value of 'mig-enabled' is not true or false")
    wish = _wish(fields["mig-devices"]) if fields.get("mig-devices") is not None else None
    if enabled and wish is None:
        raise DocumentError("missing required field 'mig-devices' when 'mig-enabled' is true")
    if not enabled and wish:
        raise DocumentError("MIG devices included when 'mig-enabled' is false")
    devices, texts = _devices(fields["devices"]), _filters(fields.get("device-filter"))
    filters: tuple[DeviceId, ...] = ()
    fault = None
    try:
        filters = tuple(map(device_id, texts))
    except DocumentError as error:
        fault = error
    return Spec(devices=devices, enabled=enabled, wish=wish or {}, filters=filters, fault=fault)


def _devices(value: object) -> tuple[int, ...] | None:
    if isinstance(value, str):
        if value != ALL:
            raise DocumentError(f"invalid string input for 'devices': {value}")
        return None
    if not isinstance(value, list) or not all(type(index) is int for index in value):
        raise DocumentError("the value of 'devices' is neither all nor a list of numbers")
    return tuple(value)


def _filters(value: object) -> Sequence[str]:
    if value is None or value == "":
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DocumentError(
            "the value of 'device-filter' is neither a string nor a list of strings, such as "
            '"0x20B210DE"'
        )
    return texts


def _wish(value: object) -> dict[str, int]:
    where = "error validating values in 'mig-devices' field"
    wish = _mapping(value, "the value of 'mig-devices'")
    for name, count in wish.items():
        try:
            layout.parse_profile(name)
        except DocumentError as error:
            reason = f"{where}: invalid format for '{name}': {error.message}"
            raise DocumentError(reason) from error
        if type(count) is not int or count < 0:
            raise DocumentError(f"{where}: invalid count for '{name}': {count}")
    if wish and not any(wish.values()):
        raise DocumentError(f"{where}: all counts for all MigProfiles are 0")
    return wish


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DocumentError(f"{what} is not a map of names to values")
    return value


Hooks: TypeAlias = Mapping[str, Sequence["Hook"]]

VERSION = "v1"
NAMES = ("apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A command to run before or after a change."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""


def parse_hooks(text: str) -> Hooks:
    """Return the hooks of a file by their names.

    DocumentError if the file is malformed, or has an unknown word, whose command would never run.
    """
    document = _load(text, "it is not YAML")
    if document is None:
        return {}
    try:
        _check_words(document, ("version", "hooks"), "the file")
        hooks = document.get("hooks") or {}
        _check_words(hooks, NAMES, "hooks")
        if document.get("version", VERSION) != VERSION:
            raise DocumentError(f"unknown version: {document['version']}")
        return {name: tuple(_hook(item) for item in items or ()) for name, items in hooks.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise DocumentError(
            "it is not a map `hooks` of names to lists of command, args, envs and workdir"
        ) from error


def run_hooks(
    hooks: Hooks, name: str, env: Mapping[str, str], *, shows_output: bool = False
) -> None:
    """Run the hooks with a name in order; their environment is their own variables and `env`.

    HostError if a command fails or cannot be started; then the others are not run.
    """
    for hook in hooks.get(name, ()):
        try:
            subprocess.run(
                [hook.command, *hook.args],
                env={**hook.envs, **env},
                cwd=hook.workdir or None,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=None if shows_output else subprocess.DEVNULL,
                stderr=None if shows_output else subprocess.DEVNULL,
            )
        except subprocess.CalledProcessError as error:
            raise HostError(
                f"error running {name} hook: {hook.command}: exit status {error.returncode}"
            ) from error
        except (OSError, ValueError) as error:  # a NUL in a word, = in a variable's name
            raise HostError(f"error running {name} hook: {hook.command}: {error}") from error


def _check_words(fields: Mapping[str, object], known: Collection[str], where: str) -> None:
    unknown = [str(word) for word in fields.keys() - set(known)]
    if unknown:
        raise DocumentError(
            f"unexpected field of {where}: {min(unknown)}", hint=f"known are {', '.join(known)}"
        )


def _hook(item: Mapping[str, object]) -> Hook:
    _check_words(item, ("command", "args", "envs", "workdir"), "a hook")
    args, envs = item.get("args") or [], item.get("envs") or {}
    if not isinstance(args, list) or not isinstance(envs, dict):
        raise TypeError
    return Hook(
        command=str(item["command"]),
        args=tuple(map(str, args)),
        envs={str(key): str(value) for key, value in envs.items()},
        workdir=str(item.get("workdir") or ""),
    )
