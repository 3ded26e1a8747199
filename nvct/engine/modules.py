# SPDX-License-Identifier: Apache-2.0
"""The engines by name: their modules, and their default files, sockets and programs."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from nvct.engine.model import Change, EngineOptions, Files, State
from nvct.engine.syntax import Syntax
from nvct.errors import UsageError


class Module(Protocol):
    """An engine's module; its functions have no side effects."""

    SYNTAX: Syntax

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        """Return what the files say."""

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        """Return the smallest edit that configures the options."""

    @staticmethod
    def removal(options: EngineOptions, files: Files) -> Change:
        """Return the smallest edit that removes our handlers."""


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
    """Return an engine's module: state, plan and removal.

    Raises:
        UsageError: there is no such engine.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}", hint=f"one of {', '.join(ENGINES)}")
    module = importlib.import_module(f"nvct.engine.{engine}")
    return cast("Module", module)
