# SPDX-License-Identifier: Apache-2.0
"""Checks the CDI specifications in force. Cold; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from nvct.cdi.check import drift
from nvct.cdi.check.conflicts import Drift, Kind
from nvct.cdi.check.drift import Report
from nvct.cdi.read import registry
from nvct.compile import farm_plan, live_host
from nvct.config.model import Config
from nvct.doctor.model import Finding, Severity
from nvct.doctor.reasons import Reason
from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.discovery_options import DiscoveryOptions
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
"""The kinds of difference: their reasons and severities."""


def look(settings: Config, *, required: bool) -> tuple[Inventory | None, str]:
    """Return the inventory of the host and "", or None and the reason if it has no driver.

    If the driver on disk was replaced, a view of the loaded driver takes its place.

    Args:
        required: whether somebody named a driver root, which then must have a driver.

    Raises:
        HostError: there is no driver, and it is required.
    """
    try:
        return live_host.discover(settings), ""
    except HostError as error:
        if required:
            raise
        view = farm_plan.loaded_view(settings, live_host.roots_of(settings), DiscoveryOptions())
        return view, "; ".join([error.message, *(view.warnings if view else ())])


def compare(settings: Config, inventory: Inventory | None, folders: Sequence[str] = ()) -> Report:
    """Compare the specifications in some folders, by default config.toml's, with the host."""
    host = drift.HostState(
        live=inventory,
        loaded=procfs.driver_version(live_host.roots_of(settings)),
        stat_node=live_host.stat_node(settings),
    )
    return drift.check(registry.scan(folders or settings.spec_dirs), host)


def findings(report: Report) -> list[Finding]:
    """Return a finding for each difference of a report, in its order."""
    return [_finding(difference, report.loaded) for difference in report.drift]


def _finding(difference: Drift, loaded: str) -> Finding:
    reason, severity = REASONS[difference.kind]
    if difference.kind == "driver-version" and not loaded:
        reason = Reason.DriverNotLoaded
    return Finding(reason, severity, difference.text)
