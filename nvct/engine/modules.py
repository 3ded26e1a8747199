# SPDX-License-Identifier: Apache-2.0
"""The engines by name: modules, usual files, sockets, programs; our runtimes and hook file."""

from __future__ import annotations

import importlib
import json
import posixpath
from typing import Protocol, cast

from nvct.engine.model import Change, EngineOptions, Files, Handler, State
from nvct.engine.syntax import Syntax
from nvct.errors import UsageError
from nvct.paths import DEFAULT_PATH_DIRS, SHIM_PROGRAM


class Module(Protocol):
    """An engine's module; its functions have no side effects."""

    SYNTAX: Syntax

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        """Return what the files say."""

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        """Return the smallest edit that configures the options."""


ENGINES = ("docker", "containerd", "crio", "podman")
CONFIG = {
    "docker": "/etc/docker/daemon.json",
    "containerd": "/etc/containerd/config.toml",
    "crio": "/etc/crio/crio.conf",
    "podman": "/etc/containers/containers.conf",
}
DROP_IN = {
    "containerd": "/etc/containerd/conf.d/99-nvidia.toml",
    "crio": "/etc/crio/crio.conf.d/99-nvidia.toml",
    "podman": "/etc/containers/containers.conf.d/99-nvidia.conf",
}
SOCKET = {
    "docker": "/run/docker.sock",
    "containerd": "/run/containerd/containerd.sock",
    "crio": "/var/run/crio/crio.sock",
    "podman": "/run/podman/podman.sock",
}
PROGRAM = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman"}


def of(engine: str) -> Module:
    """Return an engine's module: state and plan.

    Raises:
        UsageError: there is no such engine.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}", hint=f"one of {', '.join(ENGINES)}")
    return cast("Module", importlib.import_module(f"nvct.engine.{engine}"))


SUITS_ENGINE = "RUNTIME_SPECIFIC_DEFAULT"
"""Value of an option that stands for the engine's own default, as in NVIDIA's installer."""
NAME = "nvidia"
SHIM_PATH = f"/usr/bin/{SHIM_PROGRAM}"
# Name of a runtime and suffix of its program, as in NVIDIA's installer.
VARIANTS = ((NAME, ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))


def handlers(program: str, first: str = NAME) -> tuple[Handler, ...]:
    """Return the three runtimes of a program and its variants; `first` names the first one."""
    return tuple(
        Handler(name=first if name == NAME else name, path=program + suffix)
        for name, suffix in VARIANTS
    )


def check_absolute(option: str, path: str) -> None:
    """Refuse a path that is not absolute.

    Raises:
        UsageError: it is not.
    """
    if not posixpath.isabs(path):
        raise UsageError(f"{option} {path!r} is not an absolute path", hint="begin it with /")


def check_drop_in(engine: str, drop_in: str | None) -> None:
    """Refuse a drop-in for an engine that reads none.

    Raises:
        UsageError: Docker reads none.
    """
    if engine == "docker" and drop_in:
        raise UsageError("docker does not support drop-in configs", hint="use --config")


def drop_in(engine: str, option: str) -> str | None:
    """Return the drop-in that an option of the command line names, None if it leaves the choice.

    Raises:
        UsageError: the engine reads no drop-in, or the path is not absolute.
    """
    if option == SUITS_ENGINE:
        return "" if engine == "docker" else None
    check_drop_in(engine, option)
    if option:
        check_absolute("the drop-in's path", option)
    return option


def check_name(name: str | None, option: str) -> None:
    """Refuse a runtime without a name; None stands for the default name.

    Raises:
        UsageError: the name is empty.
    """
    if name == "":
        raise UsageError("the runtime's name is empty", hint=f"{option}={NAME}")


def hook_file(program: str) -> bytes:
    """Return a hook file that runs a program before every container's start."""
    folder = posixpath.dirname(program)
    dirs = DEFAULT_PATH_DIRS if folder in DEFAULT_PATH_DIRS else (*DEFAULT_PATH_DIRS, folder)
    content = {
        "version": "1.0.0",
        "hook": {
            "path": program,
            "args": [posixpath.basename(program), "prestart"],
            "env": ["PATH=" + ":".join(dirs)],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(content, indent=2) + "\n").encode()
