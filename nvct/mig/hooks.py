# SPDX-License-Identifier: Apache-2.0
"""The hooks file of nvidia-mig-parted, version v1: commands around a change."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from nvct.errors import DocumentError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    Hooks: TypeAlias = Mapping[str, Sequence["Hook"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A command."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""


def parse(text: str) -> Hooks:
    """Return the hooks of a file by their names.

    Raises:
        DocumentError: the file is malformed.
    """
    import yaml

    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise DocumentError(f"it is not YAML: {' '.join(str(error).split())}") from error
    try:
        return {
            str(name): tuple(_hook(item) for item in items)
            for name, items in (document.get("hooks") or {}).items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise DocumentError(
            "it is not a map `hooks` of names to lists of command, args, envs and workdir"
        ) from error


def run(hooks: Hooks, name: str, env: Mapping[str, str], *, shows_output: bool = False) -> None:
    """Run the hooks of a name in their order; each gets only its own variables and those of `env`.

    Raises:
        HostError: a command fails or cannot be started; the others are not run.
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
        except OSError as error:
            raise HostError(f"error running {name} hook: {hook.command}: {error}") from error


def _hook(item: Mapping[str, object]) -> Hook:
    args, envs = item.get("args") or [], item.get("envs") or {}
    if not isinstance(args, list) or not isinstance(envs, dict):
        raise TypeError
    return Hook(
        command=str(item["command"]),
        args=tuple(map(str, args)),
        envs={str(key): str(value) for key, value in envs.items()},
        workdir=str(item.get("workdir") or ""),
    )
