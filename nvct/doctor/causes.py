# SPDX-License-Identifier: Apache-2.0
"""The differences between CDI specs and a host as lines of text: one line per cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nvct.cdi.conflicts import Drift
from nvct.spec.coverage import NOT_GIVEN

VERSION = "driver-version"
OF_DRIVER = ("file-gone", "file-changed", "node-", "gpu-", "mig-")
"""Prefixes of the kinds that follow from a changed or missing driver."""
MANY = {
    "file-gone": "files are gone",
    "file-changed": "files are not those that the spec was made of",
    "node-gone": "device nodes are gone",
    "node-missing": "device nodes are missing",
}
NODES = "run nvidia-ctk system create-device-nodes --all"
BY_HAND = {
    "unreadable": "correct or remove",
    "conflict": "remove either the other file or",
    "shadowed": "remove",
}
"""Kinds that no command mends, and what to do with the files."""
UNLISTED = ("gpu-missing", "mig-missing")
GPU_NODE = re.compile(r"/nvidia\d+$")
NAMED = 3
"""The number of paths in a line; the other paths are counted."""


def lines(drifts: Sequence[Drift]) -> list[str]:
    """Return a line for each cause, in the order of the differences."""
    return [_line(group, members) for group, members in _groups(drifts)]


def advice(drifts: Sequence[Drift], command: str) -> str:
    """Return what removes the differences; `command` writes NVIDIA's specification."""
    groups = _groups(drifts)
    kinds = [members[0].kind for _, members in groups]
    steps = [NODES] if "node-gone" in kinds else []
    if any(kind not in (*BY_HAND, "node-gone") for kind in kinds):
        steps.append(f"run {command} to update NVIDIA's")
    for kind, verb in BY_HAND.items():
        sources = dict.fromkeys(drift.source for drift in drifts if drift.kind == kind)
        if sources:
            steps.append(f"{verb} {' and '.join(sources)}")
    return ", ".join(steps)


def _groups(drifts: Sequence[Drift]) -> list[tuple[str, list[Drift]]]:
    """Return the differences by cause: a name of the cause, and its differences."""
    groups: dict[tuple[str, str], list[Drift]] = {}
    versions = {drift.source for drift in drifts if drift.kind == VERSION}
    without_gpu = {drift.source for drift in drifts if drift.kind == "gpu-gone"}
    for number, drift in enumerate(drifts):
        group = str(number)
        if drift.kind == VERSION or (
            drift.kind.startswith(OF_DRIVER) and drift.source in versions
        ):
            group = VERSION
        elif _is_lost_gpu(drift) and drift.source in without_gpu:
            group = "gpu"
        elif drift.kind in UNLISTED and not drift.source:
            group = UNLISTED[0]
        elif drift.kind in MANY and drift.path:
            group = drift.kind
        groups.setdefault((drift.source, group), []).append(drift)
    return [(group, _cause_first(group, members)) for (_, group), members in groups.items()]


def _cause_first(group: str, drifts: list[Drift]) -> list[Drift]:
    cause = {VERSION: VERSION, "gpu": "gpu-gone"}.get(group, drifts[0].kind)
    return sorted(drifts, key=lambda drift: drift.kind != cause)


def _is_lost_gpu(drift: Drift) -> bool:
    """Return whether a difference is a missing GPU, or its missing device node."""
    is_node = drift.kind == "node-gone" and bool(GPU_NODE.search(drift.path))
    return is_node or drift.kind == "gpu-gone"


def _line(group: str, drifts: Sequence[Drift]) -> str:
    first, more = drifts[0], len(drifts) - 1
    if not more:
        return first.text
    if group in (VERSION, "gpu"):
        return f"{first.text}; {more} more difference{'s' if more > 1 else ''} with it"
    if group in UNLISTED:
        names = [drift.sentence.removeprefix(NOT_GIVEN) for drift in drifts]
        return f"{NOT_GIVEN}{len(names)} devices of this host: {_shortened(names)}"
    paths = [drift.path for drift in drifts]
    return f"{first.source}: {len(paths)} {MANY[group]}: {_shortened(paths)}"


def _shortened(words: Sequence[str]) -> str:
    rest = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + rest
