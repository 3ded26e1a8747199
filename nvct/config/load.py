# SPDX-License-Identifier: Apache-2.0
"""Parses config.toml into a Config. Cold side: a TOML parser is too slow for the create lane.

The file overrides the defaults key by key. Unknown keys are ignored, as in the incumbent
(nvidia-container-toolkit v1.20), but a value of the wrong type is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from nvct.config import rules, toml
from nvct.config.model import (
    DRIVER_CAPABILITIES,
    FIELDS,
    LOG_LEVELS,
    SIZE_LIMIT,
    Config,
    check,
    path_from,
)
from nvct.errors import ConfigError, DocumentError
from nvct.linux.files import read_bytes

__all__ = ["KEYS", "check", "from_toml", "load", "path_from"]

CORRECT = "correct the file"

KEYS: dict[str, str] = {
    "disable-require": "disable_require",
    "swarm-resource": "swarm_resource",
    "accept-nvidia-visible-devices-envvar-when-unprivileged": "accept_envvar_when_unprivileged",
    "accept-nvidia-visible-devices-as-volume-mounts": "accept_volume_mounts",
    "supported-driver-capabilities": "supported_driver_capabilities",
    "nvidia-container-cli.root": "driver_root",
    "nvidia-container-cli.path": "cli_path",
    "nvidia-container-cli.environment": "cli_environment",
    "nvidia-container-cli.debug": "cli_debug",
    "nvidia-container-cli.ldcache": "cli_ldcache",
    "nvidia-container-cli.load-kmods": "cli_load_kmods",
    "nvidia-container-cli.no-pivot": "cli_no_pivot",
    "nvidia-container-cli.no-cgroups": "cli_no_cgroups",
    "nvidia-container-cli.user": "cli_user",
    "nvidia-container-cli.ldconfig": "cli_ldconfig",
    "nvidia-ctk.path": "ctk_path",
    "nvidia-container-runtime.debug": "debug",
    "nvidia-container-runtime.log-level": "log_level",
    "nvidia-container-runtime.runtimes": "runtimes",
    "nvidia-container-runtime.mode": "mode",
    "nvidia-container-runtime.modes.csv.mount-spec-path": "csv_mount_spec_path",
    "nvidia-container-runtime.modes.csv.compat-container-root": "csv_compat_container_root",
    "nvidia-container-runtime.modes.cdi.spec-dirs": "spec_dirs",
    "nvidia-container-runtime.modes.cdi.default-kind": "default_kind",
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": "annotation_prefixes",
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": "jit_feature_flags",
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": "jit_disable_hooks",
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": "cuda_compat_mode",
    "nvidia-container-runtime-hook.path": "runtime_hook_path",
    "nvidia-container-runtime-hook.skip-mode-detection": "skip_mode_detection",
    "features.allow-cuda-compat-libs-from-container": "allow_cuda_compat_libs_from_container",
    "features.allow-ldconfig-from-container": "allow_ldconfig_from_container",
    "features.allow-unknown-oci-spec-fields": "allow_unknown_oci_spec_fields",
    "features.disable-cuda-compat-lib-hook": "disable_cuda_compat_lib_hook",
    "features.disable-imex-channel-creation": "disable_imex_channel_creation",
    "features.ignore-imex-channel-requests": "ignore_imex",
    "features.no-additional-gids-for-device-nodes": "no_additional_gids",
    "nvct.layout": "layout",
    "nvct.farm-dir": "farm_dir",
    "nvct.params-mask": "params_mask",
    "nvct.hook-path": "hook_path",
    "nvct.dev-root": "dev_root",
    "nvct.proc-root": "proc_root",
    "nvct.sys-root": "sys_root",
    "nvct.plain-nodes": "plain_nodes",
}
"""Supported key of the file → attribute of Config."""

POLICY = "nvct.policy"  # A table that `rules` parses as a whole

COMMA_LISTS = ("swarm_resource", "supported_driver_capabilities")
"""List attributes whose file values are strings with commas."""

SWITCHES = ("params_mask",)  # String attributes whose file values may be true or false

_ABSENT = object()


def load(path: str, *, required: bool = False) -> Config:
    """Return the configuration in a config.toml; the default one if the file does not exist.

    ConfigError if the file cannot be read, is not TOML, has a value of the wrong type, or is
    `required` and does not exist.
    """
    data = read(path)
    if data is None:
        if required:
            raise ConfigError(f"{path} does not exist", hint="create it, or name another")
        return Config()
    return from_toml(data, path)


def in_force(
    path: str | None,
    env: Mapping[str, str],
    driver_root: str | None = None,
    dev_root: str | None = None,
) -> Config:
    """Return the configuration in a file, by default the environment's; roots override its values.

    ConfigError as `load`, or if a `path` is given and does not exist.
    """
    settings = load(path or path_from(env), required=bool(path))
    return settings.replaced(
        driver_root=driver_root or settings.driver_root, dev_root=dev_root or settings.dev_root
    )


def read(path: str) -> bytes | None:
    """Return the bytes of a config.toml, None if it does not exist; /dev/null counts as empty.

    ConfigError if it cannot be read, is too large, or is not a regular file.
    """
    if path == os.devnull:
        return b""
    try:
        return read_bytes(path, SIZE_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="make it a file that root can read"
        ) from error
    except DocumentError as error:  # for example a FIFO, which would block every create
        raise ConfigError(error.message, hint="replace it by a file of settings") from error


def text(data: bytes) -> str:
    """Return a config.toml's text, without byte order mark; UnicodeDecodeError if not UTF-8."""
    return data.decode("utf-8-sig")


def sets(text: str, key: str) -> bool:
    """Report whether the text of a valid config.toml sets a key of KEYS."""
    return _find(toml.loads(text), key, "") is not _ABSENT


def leaves(text: str) -> dict[str, object]:
    """Return key -> value of the text of a valid config.toml; the policy is one key."""

    def walk(table: dict[str, object], prefix: str) -> Iterator[tuple[str, object]]:
        for name, value in table.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict) and key != POLICY:
                yield from walk(value, f"{key}.")
            else:
                yield key, value

    return dict(walk(toml.loads(text), ""))


def from_toml(data: bytes, path: str) -> Config:
    """Return the configuration in the bytes of a config.toml; ConfigError as `load`."""
    try:
        document = toml.loads(text(data))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint=CORRECT) from error
    values: dict[str, object] = {"path": path}
    for key, name in KEYS.items():
        value = _find(document, key, path)
        if value is not _ABSENT:
            values[name] = _typed(value, FIELDS[name], name, f"{path}: {key}")
    policy = _find(document, POLICY, path)
    if policy is not _ABSENT:
        values["policy"], values["engine_devices"] = rules.parse(policy, path)
    config = Config(**values)
    return config.replaced(**_normalized(config))


def _find(document: dict[str, object], key: str, path: str) -> object:
    *tables, last = key.split(".")
    table = document
    for depth, name in enumerate(tables):
        inner = table.get(name, _ABSENT)
        if inner is _ABSENT:
            return _ABSENT
        if not isinstance(inner, dict):
            where = ".".join(tables[: depth + 1])
            raise ConfigError(f"{path}: {where} is {inner!r:.80}, not a table", hint=CORRECT)
        table = inner
    return table.get(last, _ABSENT)


def _typed(value: object, default: object, name: str, where: str) -> object:
    if name in COMMA_LISTS:
        if not isinstance(value, str):
            raise ConfigError(f"{where} is {value!r:.80}, not a string", hint=CORRECT)
        return [word for word in (part.strip() for part in value.split(",")) if word]
    if name in SWITCHES and isinstance(value, bool):
        return str(value).lower()
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} is {value!r:.80}, not an array of strings", hint=CORRECT)
        return list(value)
    if type(value) is not type(default):
        kind = "true or false" if isinstance(default, bool) else "a string"
        raise ConfigError(f"{where} is {value!r:.80}, not {kind}", hint=CORRECT)
    return value


def _normalized(config: Config) -> dict[str, object]:
    """Return the attributes whose value in the file stands for another one."""
    values: dict[str, object] = {"driver_root": config.driver_root.rstrip("/") or "/"}
    if config.debug == "/dev/null":
        values["debug"] = ""
    if "all" in config.supported_driver_capabilities:
        values["supported_driver_capabilities"] = DRIVER_CAPABILITIES
    values["log_level"] = config.log_level.lower()
    if values["log_level"] not in LOG_LEVELS:
        warning = (
            f"{config.path}: nvidia-container-runtime.log-level is {config.log_level!r:.80},"
            " which is not a level; info is used"
        )
        values |= {"log_level": "info", "warnings": [*config.warnings, warning]}
    return values
