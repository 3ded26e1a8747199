# SPDX-License-Identifier: Apache-2.0
"""Chooses the config file of a node: by its label, the default, or a fallback."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nvct.agent.config_manager.settings import EMPTY, NAMED, SINGLE, Settings
from nvct.errors import HostError

DEFAULT_NAME = "default"
"""The file of fallback strategy `named`."""


def names(folder: str) -> list[str]:
    """Return the config files of a folder; those of a ConfigMap's volume are links.

    Raises:
        HostError: the folder cannot be read.
    """
    try:
        found = sorted(os.listdir(folder))
    except OSError as error:
        raise HostError(
            f"the folder of config files {folder}: {error.strerror}",
            hint="mount a ConfigMap there, or name another folder by CONFIG_FILE_SRCDIR",
        ) from error
    return [name for name in found if name[0] != "." and os.path.isfile(f"{folder}/{name}")]


def choose(settings: Settings, label: str | None, available: Sequence[str]) -> str:
    """Return the name of the file that a node gets, "" for an empty configuration.

    Args:
        label: the value of the node's label, None if it has none.

    Raises:
        HostError: the named file does not exist, or nothing names one.
    """
    there = f"there are: {', '.join(available)}" if available else "there is none at all"
    wanted = (
        (label, f"label {settings.node_label} of node {settings.node}"),
        (settings.default, "the default"),
    )
    for name, what in wanted:
        if name:
            if name not in available:
                raise HostError(
                    f"{what} names the config file {name!r}, which {settings.source} lacks",
                    hint=there,
                )
            return name
    for strategy in settings.fallbacks:
        if strategy == NAMED and DEFAULT_NAME in available:
            return DEFAULT_NAME
        if strategy == SINGLE and len(available) == 1:
            return available[0]
        if strategy == EMPTY:
            return ""
    raise HostError(
        f"no config file for node {settings.node}: it has no label {settings.node_label}, "
        "and there is no default",
        hint=f"label it, or set DEFAULT_CONFIG or FALLBACK_STRATEGIES; {there}",
    )
