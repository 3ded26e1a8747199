# SPDX-License-Identifier: Apache-2.0
"""Compares the CDI specifications in force with this host. Cold; changes nothing.

Each difference is a finding; differences with the same cause share a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nvct.cdi.check.conflicts import Drift, Kind
from nvct.cdi.check.coverage import NOT_GIVEN
from nvct.cdi.check.drift import HostState, Report, check
from nvct.cdi.read import registry
from nvct.compile import live_host
from nvct.config.model import Config
from nvct.doctor.model import Finding, Severity, listed
from nvct.doctor.reasons import Reason
from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.model import Inventory

REASONS: dict[Kind, tuple[Reason, Severity]] = {
    "unreadable": (Reason.SpecificationUnreadable, "error"),
    "conflict": (Reason.SpecificationConflict, "error"),
    "shadowed": (Reason.SpecificationShadowed, "warning"),
    "driver-version": (Reason.SpecificationStale, "error"),
    "file-gone": (Reason.SpecificationStale, "error"),
    "file-changed": (Reason.SpecificationStale, "error"),
    "node-gone": (Reason.DeviceNodesMissing, "error"),
    "node-changed": (Reason.SpecificationStale, "error"),
    "node-missing": (Reason.SpecificationIncomplete, "error"),
    "hook-gone": (Reason.HookMissing, "error"),
    "hook-no-program": (Reason.HookMissing, "error"),
    "hook-no-env": (Reason.HookWithoutEnvironment, "error"),
    "gpu-gone": (Reason.SpecificationStale, "error"),
    "gpu-moved": (Reason.SpecificationStale, "error"),
    "gpu-missing": (Reason.SpecificationIncomplete, "error"),
    "mig-gone": (Reason.SpecificationStale, "error"),
    "mig-moved": (Reason.SpecificationStale, "error"),
    "mig-missing": (Reason.SpecificationIncomplete, "error"),
}
"""Reason and severity by the kind of a difference."""


def look(settings: Config, *, required: bool) -> tuple[Inventory | None, str]:
    """Return the inventory of the host and "", or None and the reason if it has no driver.

    If the driver on disk was replaced, the inventory is that of a view of the loaded driver.
    HostError without a driver if it is `required`, because an option names its root.
    """
    try:
        return live_host.discover(settings), ""
    except HostError as error:
        if required:
            raise
        view = live_host.loaded_view(settings)
        return view, "; ".join([error.message, *(view.warnings if view else ())])


def compare(settings: Config, inventory: Inventory | None, folders: Sequence[str] = ()) -> Report:
    """Compare the specifications in some folders, by default config.toml's, with the host."""
    host = HostState(
        live=inventory,
        loaded=procfs.driver_version(live_host.roots_of(settings)),
        stat_node=live_host.stat_node(settings),
    )
    return check(registry.scan(folders or settings.spec_dirs), host)


def findings(report: Report) -> list[Finding]:
    """Return a finding for each difference of a report, in its order."""
    found = []
    for difference in report.drift:
        reason, severity = REASONS[difference.kind]
        if difference.kind == VERSION and not report.loaded:
            reason = Reason.DriverNotLoaded
        found.append(Finding(reason, severity, difference.text))
    return found


VERSION = "driver-version"
OF_DRIVER = ("file-gone", "file-changed", "node-", "gpu-", "mig-")
"""Prefixes of kinds that another version of the driver, or its absence, causes."""
MANY = {
    "file-gone": "files are gone",
    "file-changed": "files have changed since the spec was made",
    "node-gone": "device nodes are gone",
    "node-missing": "device nodes are missing",
}
NODES = "run nvidia-ctk system create-device-nodes --all"
BY_HAND = {
    "unreadable": "correct or remove",
    "conflict": "remove either the other file or",
    "shadowed": "remove",
}
"""What to do with the files for kinds that no command mends."""
UNLISTED = ("gpu-missing", "mig-missing")
GPU_NODE = re.compile(r"/nvidia\d+$")
NAMED = 3  # Paths that a line names; further ones are counted


def lines(drifts: Sequence[Drift]) -> list[str]:
    """Return a line for each cause, in the order of the differences."""
    return [_line(group, members) for group, members in _groups(drifts)]


def advice(drifts: Sequence[Drift], command: str) -> str:
    """Return how to remove the differences; `command` writes NVIDIA's specification."""
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
    """Return the name and the differences of each cause."""
    groups: dict[tuple[str, str], list[Drift]] = {}
    versions = {drift.source for drift in drifts if drift.kind == VERSION}
    without_gpu = {drift.source for drift in drifts if drift.kind == "gpu-gone"}
    for number, drift in enumerate(drifts):
        group = str(number)
        is_node = drift.kind == "node-gone" and GPU_NODE.search(drift.path)
        if drift.kind == VERSION or (
            drift.kind.startswith(OF_DRIVER) and drift.source in versions
        ):
            group = VERSION
        elif (is_node or drift.kind == "gpu-gone") and drift.source in without_gpu:
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


def _line(group: str, drifts: Sequence[Drift]) -> str:
    first, more = drifts[0], len(drifts) - 1
    if not more:
        return first.text
    if group in (VERSION, "gpu"):
        return f"{first.text}; {more} more difference{'s' if more > 1 else ''} with this cause"
    if group in UNLISTED:
        names = [drift.sentence.removeprefix(NOT_GIVEN) for drift in drifts]
        return f"{NOT_GIVEN}{len(names)} devices of this host: {listed(names, NAMED)}"
    paths = [drift.path for drift in drifts]
    return f"{first.source}: {len(paths)} {MANY[group]}: {listed(paths, NAMED)}"
