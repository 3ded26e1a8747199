# SPDX-License-Identifier: Apache-2.0
"""Writes the installed config.toml: the defaults, the paths, and the settings of the request."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from nvct import paths
from nvct.config import editing, toml
from nvct.config.load import KEYS
from nvct.errors import DocumentError, HostError, OSErrorsAs, UsageError
from nvct.installer.request import Request
from nvct.linux.files import read_bytes, write_atomic

LDCONFIG = "sbin/ldconfig"
FEATURE = re.compile(r"[a-z][a-z0-9-]*")
POLICY_LIMIT = 1 << 20


def text(request: Request, runtimes: Sequence[str]) -> str:
    """Return the new config.toml; UsageError, or ConfigError if it would prevent every create."""
    settings: dict[str, editing.Value] = {
        "nvidia-container-cli.root": request.driver_root,
        "nvidia-container-cli.path": request.program(paths.CONTAINER_CLI_PROGRAM),
        "nvidia-container-cli.ldconfig": _ldconfig(request),
        "nvidia-ctk.path": request.program(paths.CTK_PROGRAM),
        "nvidia-container-runtime-hook.path": request.program(paths.RUNTIME_HOOK_PROGRAM),
        "nvidia-container-runtime.runtimes": runtimes,
        "nvct.hook-path": request.program(paths.HOOK_PROGRAM),
    }
    if request.dev_root:
        settings["nvct.dev-root"] = request.dev_root
    settings |= dict(request.settings)
    changed = editing.change(editing.DEFAULT_TEXT, settings, request.config_toml)
    if not request.policy:
        return changed
    return editing.change(f"{changed}\n{request.policy}", {}, request.config_toml)


def read_policy(path: str) -> str:
    """Return the text of a file that has only the table [nvct.policy]; else UsageError."""
    option = f"--policy-file {path}"
    try:
        text = read_bytes(path, POLICY_LIMIT).decode("utf-8-sig")
        tables = toml.loads(text)
    except (OSError, UnicodeDecodeError, DocumentError) as error:
        raise UsageError(f"{option} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not TOML: {error}") from error
    others = [f"nvct.{key}" for key in tables.pop("nvct", {}) if key != "policy"]
    if others := [*tables, *others]:
        raise UsageError(
            f"{option} has {', '.join(others)}", hint="it must have only the table [nvct.policy]"
        )
    return text


def features(names: Sequence[str]) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return settings that switch features on, and warnings; UsageError for a bad name."""
    switches, warnings = [], []
    for name in names:
        if not FEATURE.fullmatch(name):
            raise UsageError(f"{name!r:.60} cannot name a feature", hint="see --opt-in-features")
        key = f"features.{name}"
        if key not in KEYS:
            warnings.append(f"the feature {name} is unknown: it is set, but has no effect")
        switches.append((key, True))
    return switches, warnings


def write(request: Request, data: str) -> None:
    """Write config.toml. Raises HostError if that fails."""
    path = request.config_toml
    with OSErrorsAs(HostError, f"{path} cannot be written"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, data.encode(), mode=0o644)


def _ldconfig(request: Request) -> str:
    """Return the driver root's ldconfig; on Ubuntu that is a script, ldconfig.real the program."""
    real = os.path.exists(f"{request.driver_root_mount.rstrip('/')}/{LDCONFIG}.real")
    root = request.driver_root.rstrip("/")
    return f"@{root}/{LDCONFIG}{'.real' if real else ''}"
