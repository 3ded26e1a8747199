# SPDX-License-Identifier: Apache-2.0
"""The differences between CDI specs and a host as lines of text: one line per cause. Pure."""

from __future__ import annotations

import re

from nvct.spec.coverage import NOT_GIVEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.cdi.conflicts import Drift

VERSION = "driver-version"
OF_DRIVER = ("file-gone", "file-changed", "node-", "gpu-", "mig-")
"""Prefixes of the kinds that follow from a changed or missing driver."""
MANY = {
    "file-gone": "files are gone",
    "file-changed": "files are not those that the spec was made of",
    "node-gone": "device nodes are gone",
    "node-missing": "device nodes are missing",
}
UNLISTED = ("gpu-missing", "mig-missing")
GPU_NODE = re.compile(r"/nvidia\d+$")
NAMED = 3
"""The number of paths in a line; the other paths are counted."""


def lines(drifts: Sequence[Drift]) -> list[str]:
    """Return a line for each cause, in the order of the differences."""
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
    return [_line(group, drifts) for (_, group), drifts in groups.items()]


def advice(drifts: Sequence[Drift], command: str) -> str:
    """Return the advice about differences; `command` writes NVIDIA's specification."""
    if all(drift.kind == "shadowed" for drift in drifts):
        return f"remove {' and '.join(dict.fromkeys(drift.source for drift in drifts))}"
    return f"run {command} to update NVIDIA's"


def _is_lost_gpu(drift: Drift) -> bool:
    """Return whether a difference is a missing GPU, or its missing device node."""
    is_node = drift.kind == "node-gone" and bool(GPU_NODE.search(drift.path))
    return is_node or drift.kind == "gpu-gone"


def _line(group: str, drifts: Sequence[Drift]) -> str:
    first, more = drifts[0], len(drifts) - 1
    if not more:
        return first.text
    if group in (VERSION, "gpu"):
        kind = VERSION if group == VERSION else "gpu-gone"
        cause = next(drift for drift in drifts if drift.kind == kind)
        return f"{cause.text}; {more} more difference{'s' if more > 1 else ''} with it"
    if group in UNLISTED:
        names = [drift.sentence.removeprefix(NOT_GIVEN) for drift in drifts]
        return f"{NOT_GIVEN}{len(names)} devices of this host: {_shortened(names)}"
    paths = [drift.path for drift in drifts]
    return f"{first.source}: {len(paths)} {MANY[group]}: {_shortened(paths)}"


def _shortened(words: Sequence[str]) -> str:
    rest = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + rest
