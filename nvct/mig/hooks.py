# SPDX-License-Identifier: Apache-2.0
"""The hooks file of nvidia-mig-parted, version v1: commands around a change."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.errors import DocumentError, HostError

Hooks: TypeAlias = Mapping[str, Sequence["Hook"]]

VERSION = "v1"
NAMES = ("apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit")


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
        DocumentError: the file is malformed, or has an unknown word: its command would never run.
    """
    import yaml

    from nvct.host.yaml_aliases import Loader

    try:
        document = yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise DocumentError(f"it is not YAML: {' '.join(str(error).split())}") from error
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
