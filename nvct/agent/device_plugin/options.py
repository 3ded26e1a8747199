# SPDX-License-Identifier: Apache-2.0
"""The options of `nvidia-device-plugin`: a table of flags, variables, keys of the config file.

Names, aliases and precedence are those of NVIDIA's device plugin 0.20, whose flags are Go's: one
dash equals two, and a switch takes a value only after an equals sign. Unlike there, a word that
belongs to no flag is refused: after `--fail-on-init-error false` the incumbent ignores all flags.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from nvct.agent.device_plugin.settings import (
    DISCOVERY,
    ID_STRATEGIES,
    MIG_STRATEGIES,
    POLICIES,
    STRATEGIES,
    Settings,
)
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["text", "switch", "words", "numbers"]

PROGRAM = "nvidia-device-plugin"
TRUE = ("1", "t", "T", "true", "TRUE", "True")  # strconv.ParseBool
FALSE = ("0", "f", "F", "false", "FALSE", "False")
PLUGIN = "flags.plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Attributes:
        flags: without dashes; the first one is the documented name.
        env: variables; the first one that is set counts.
        field: of Settings, "" for one that is used elsewhere.
        key: of the config file, with dots; "" if it has none.
        choices: the possible values, empty if there are no others to refuse.
    """

    flags: tuple[str, ...]
    env: tuple[str, ...]
    field: str
    help: str
    kind: Kind = "text"
    key: str = ""
    choices: tuple[str, ...] = ()


OPTIONS = (
    Option(
        flags=("mig-strategy",), env=("MIG_STRATEGY",), field="mig_strategy",
        key="flags.migStrategy", choices=MIG_STRATEGIES, help="How MIG devices are offered",
    ),
    Option(
        flags=("fail-on-init-error",), env=("FAIL_ON_INIT_ERROR",), field="fail_on_init_error",
        key="flags.failOnInitError", kind="switch",
        help="End if there is no driver; else wait for it",
    ),
    Option(
        flags=("driver-root", "nvidia-driver-root"), env=("NVIDIA_DRIVER_ROOT",),
        field="driver_root", key="flags.nvidiaDriverRoot", help="The driver's root on the host",
    ),
    Option(
        flags=("dev-root", "nvidia-dev-root"), env=("NVIDIA_DEV_ROOT",), field="dev_root",
        key="flags.nvidiaDevRoot", help="The root of /dev on the host; default: the driver's root",
    ),
    Option(
        flags=("pass-device-specs",), env=("PASS_DEVICE_SPECS",), field="pass_device_specs",
        key=f"{PLUGIN}.passDeviceSpecs", kind="switch",
        help="Give the kubelet the device nodes too",
    ),
    Option(
        flags=("device-list-strategy",), env=("DEVICE_LIST_STRATEGY",),
        field="device_list_strategy", key=f"{PLUGIN}.deviceListStrategy", kind="words",
        choices=STRATEGIES, help="How the runtime is told which devices; may be repeated",
    ),
    Option(
        flags=("device-id-strategy",), env=("DEVICE_ID_STRATEGY",), field="device_id_strategy",
        key=f"{PLUGIN}.deviceIDStrategy", choices=ID_STRATEGIES,
        help="How the runtime is told which device",
    ),
    Option(
        flags=("gdrcopy-enabled",), env=("GDRCOPY_ENABLED",), field="gdrcopy_enabled",
        key="flags.gdrcopyEnabled", kind="switch", help="Give containers GDRCopy",
    ),
    Option(
        flags=("gds-enabled",), env=("GDS_ENABLED",), field="gds_enabled",
        key="flags.gdsEnabled", kind="switch", help="Give containers GPUDirect Storage",
    ),
    Option(
        flags=("mofed-enabled",), env=("MOFED_ENABLED",), field="mofed_enabled",
        key="flags.mofedEnabled", kind="switch", help="Give containers MOFED",
    ),
    Option(
        flags=("cdi-annotation-prefix",), env=("CDI_ANNOTATION_PREFIX",),
        field="cdi_annotation_prefix", key=f"{PLUGIN}.cdiAnnotationPrefix",
        help="The prefix of annotations with CDI names",
    ),
    Option(
        flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"), field="hook_path",
        key=f"{PLUGIN}.nvidiaCTKPath", help="The program of hooks on the host",
    ),
    Option(
        flags=("driver-root-ctr-path", "container-driver-root"),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"), field="container_driver_root",
        key=f"{PLUGIN}.containerDriverRoot", help="Where the driver's root is mounted here",
    ),
    Option(
        flags=("mps-root",), env=("MPS_ROOT",), field="", key="flags.mpsRoot",
        help="No effect: MPS is not available yet",
    ),
    Option(
        flags=("shared-devices-allocation-policy",), env=("SHARED_DEVICES_ALLOCATION_POLICY",),
        field="shared_devices_allocation_policy", key=f"{PLUGIN}.sharedDevicesAllocationPolicy",
        choices=POLICIES, help="Which GPU a replica or MIG device is taken from",
    ),
    Option(
        flags=("device-discovery-strategy",), env=("DEVICE_DISCOVERY_STRATEGY",),
        field="device_discovery_strategy", key="flags.deviceDiscoveryStrategy", choices=DISCOVERY,
        help="How devices are found",
    ),
    Option(
        flags=("imex-channel-ids",), env=("IMEX_CHANNEL_IDS",), field="imex_channel_ids",
        key="imex.channelIDs", kind="numbers", help="IMEX channels of every container: none or 0",
    ),
    Option(
        flags=("imex-required",), env=("IMEX_REQUIRED",), field="imex_required",
        key="imex.required", kind="switch", help="End if a channel is missing",
    ),
    Option(
        flags=("kubelet-socket",), env=("KUBELET_SOCKET",), field="kubelet_socket",
        help="The kubelet's socket; empty: serve without registration",
    ),
    Option(
        flags=("config-file",), env=("CONFIG_FILE",), field="", help="A config file, v1",
    ),
    Option(
        flags=("cdi-feature-flags",), env=("CDI_FEATURE_FLAGS",), field="cdi_feature_flags",
        kind="words", help="Feature flags of CDI specifications",
    ),
    Option(
        flags=("cdi-disable-hooks",), env=("CDI_DISABLE_HOOKS",), field="cdi_disable_hooks",
        kind="words", help="Hooks that CDI specifications leave out, or all",
    ),
)  # fmt: skip
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
CONFIG_FILE = "config-file"


def from_command_line(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of flags, by the first name of each.

    Raises:
        UsageError: a flag is unknown or has a malformed value, or a word belongs to no flag.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.lstrip("-").partition("=")
        option = BY_FLAG.get(name) if word.startswith("-") else None
        if option is None:
            hint = "a switch takes its value after =, as --fail-on-init-error=false"
            raise UsageError(
                f"{word!r} is no option of {PROGRAM}",
                hint="see --help" if word.startswith("-") else hint,
            )
        if not equals and option.kind == "switch":
            text = "true"
        elif not equals:
            if not rest:
                raise UsageError(f"--{name} needs a value")
            text = rest.pop(0)
        value = _parsed(option, text, f"--{name}")
        if option.kind in ("words", "numbers"):
            value = (*values.get(option.flags[0], ()), *value)
        values[option.flags[0]] = value
    return values


def from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of variables, by the first flag of each option.

    Raises:
        UsageError: a variable has a malformed value.
    """
    values = {}
    for option in OPTIONS:
        for name in option.env:
            if name in env:
                empty_switch = option.kind == "switch" and not env[name]
                text = "false" if empty_switch else env[name]
                values[option.flags[0]] = _parsed(option, text, name)
                break
    return values


def from_file(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the values of a config file's flags, by the first flag of each option.

    Raises:
        UsageError: a key has a value of another type.
    """
    values = {}
    for option in OPTIONS:
        value: Any = document
        for part in option.key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if option.key and value is not None:
            values[option.flags[0]] = _typed(option, value, f"{option.key} in {path}")
    return values


def settings_of(values: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """Return settings from the values of flags, and fields that no flag sets.

    Raises:
        UsageError: a value is not one of its choices.
    """
    known: dict[str, Any] = {}
    for option in OPTIONS:
        flag = option.flags[0]
        if flag not in values or not option.field:
            continue
        value = values[flag]
        for word in value if isinstance(value, tuple) else (value,):
            if option.choices and word not in option.choices:
                raise UsageError(
                    f"invalid --{flag} option: {word!r}",
                    hint=f"it is one of {', '.join(option.choices)}",
                )
        known[option.field] = value
    if not known.get("dev_root"):
        known["dev_root"] = known.get("driver_root", "/")
    if known.get("imex_channel_ids", ()) not in ((), (0,)):
        raise UsageError("the IMEX channels must be none or 0", hint="--imex-channel-ids=0")
    return Settings(**known, **more)


def help_text() -> str:
    """Return the text of --help."""
    defaults = {field.name: field.default for field in fields(Settings)}
    lines = ["Offers NVIDIA's GPUs to the kubelet.", "", f"Usage: {PROGRAM} [OPTIONS]", ""]
    for option in OPTIONS:
        names = ", ".join(f"--{flag}" for flag in option.flags)
        default = defaults.get(option.field)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"  {names}{'' if option.kind == 'switch' else ' VALUE'}")
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        lines.append(f"        {option.help}{choices} [{option.env[0]}]")
        if shown not in (None, "", False) and option.field != "dev_root":
            lines.append(f"        default: {str(shown).lower() if shown is True else shown}")
    lines += ["  --version", "  --help", ""]
    return "\n".join(lines)


def _parsed(option: Option, text: str, name: str) -> Any:  # noqa: ANN401 - by the option's kind
    if option.kind == "switch":
        if text not in TRUE + FALSE:
            raise UsageError(f"{name} must be true or false, not {text!r}")
        return text in TRUE
    if option.kind == "text":
        return text
    words = tuple(word.strip() for word in text.split(","))
    if option.kind == "words":
        return words
    numbers = [word for word in words if word]
    if not all(word.isascii() and word.isdigit() for word in numbers):
        raise UsageError(f"{name} must be numbers, not {text!r}")
    return tuple(int(word) for word in numbers)


def _typed(option: Option, value: object, name: str) -> Any:  # noqa: ANN401 - same
    kind = {"switch": bool, "text": str, "words": str, "numbers": int}[option.kind]
    is_list = option.kind in ("words", "numbers")
    if option.kind == "words" and isinstance(value, str):
        return (value,)
    members = value if is_list and isinstance(value, list) else [value]
    if is_list is not isinstance(value, list) or any(type(one) is not kind for one in members):
        expected = {"switch": "true or false", "text": "a string", "words": "strings"}
        raise UsageError(f"{name} must be {expected.get(option.kind, 'numbers')}, not {value!r}")
    return tuple(members) if is_list else value
