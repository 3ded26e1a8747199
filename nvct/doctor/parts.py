# SPDX-License-Identifier: Apache-2.0
"""Checks of each part of a node, for `nvct status`. Cold; changes nothing, raises nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nvct import paths
from nvct.cdi.check import conflicts, engines
from nvct.cdi.check.drift import Report
from nvct.cdi.read.registry import Registry
from nvct.config import editing, load
from nvct.config.model import UNCHECKED, Config, check
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import Store, run_dir
from nvct.container.request import capabilities
from nvct.container.shim import main as shim
from nvct.doctor import incumbent, inside, messages, specifications
from nvct.doctor.engine_access import specs_read
from nvct.doctor.messages import refused
from nvct.doctor.model import Finding, Part, Severity, count, listed
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.status import Status
from nvct.errors import ConfigError, DriverNotFoundError, NvctError, RuntimeNotFoundError
from nvct.host import procfs
from nvct.host.model import warning_kind

UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result", "FragmentPath", "ExecStart")
START = re.compile(r"argv\[\]=(.*?) ;")  # The command line in ExecStart of `systemctl show`
OWN_START = "nvct publish"
SYSTEMCTL_TIMEOUT_S = 5
NAMED = 4  # Devices that a line names; further ones are counted
STALE = "; the next container replaces it"


def configuration(node: Node) -> Part:
    """Check config.toml as a create does; a key without effect is reported, but is no fault."""
    if node.trouble is not None:
        return refused(node.trouble)
    settings = node.settings
    data = (load.read(settings.path) or b"") if settings.path else b""
    ignored = [*editing.unread_warnings(settings), *editing.unknown_keys(load.text(data))]
    findings = [
        *_refused_values(settings),
        *Finding.each(Reason.ConfigurationInvalid, "warning", settings.warnings),
        *Finding.each(Reason.ConfigurationKeyIgnored, "note", ignored),
        *Finding.each(Reason.EngineDevicesUnchecked, "note", _unchecked(node)),
    ]
    missing = []
    try:
        if any(not engine.foreign for engine in node.engines):
            shim.find_runtime(settings.runtimes, node.env.get("PATH", ""))
    except RuntimeNotFoundError as error:
        missing = [Finding(Reason.RuntimeProgramMissing, "error", error.message, error.hint)]
    if settings.path or findings:
        return Part.of(settings.path or "the defaults", *findings, *missing)
    return Part.of("no config.toml: the defaults hold", *missing, health="absent")


def _unchecked(node: Node) -> list[str]:
    if not node.settings.policy:
        return []
    if node.settings.engine_devices == UNCHECKED:
        ways = "--gpus of Docker 29.2, --device, --privileged and CDI"
        return [f"the policy does not apply to devices that engines give by {ways}"]
    return [
        f"the policy applies to {status.engine.engine}'s containers only if they name the runtime "
        "nvidia"
        for status in node.statuses
        if not (status.engine.foreign or status.is_default)
    ]


def _refused_values(settings: Config) -> Iterator[Finding]:
    try:
        check(settings)
    except ConfigError as error:
        yield messages.of_error(error, otherwise=Reason.ConfigurationInvalid)
    try:
        capabilities.resolve(None, settings.supported_driver_capabilities, legacy_image=True)
    except ConfigError as error:
        yield messages.of_error(error, otherwise=Reason.ConfigurationInvalid)


def driver(node: Node) -> Part:
    """Check the driver that discovery finds."""
    inventory = node.discovery
    if isinstance(inventory, NvctError):
        is_absent = isinstance(inventory, DriverNotFoundError)
        if is_absent and not procfs.driver_version(node.roots):
            return Part.absent(Finding(Reason.DriverNotFound, "note", inventory.message))
        return refused(inventory)
    mig = sum(len(gpu.mig) for gpu in inventory.gpus)
    text = f"{inventory.driver_version or 'of this board'}, {count(len(inventory.gpus), 'GPU')}"
    text += f", {count(mig, 'MIG device')}" if mig else ""
    none = Finding(Reason.GpuNotFound, "note", "the driver is loaded, but lists no GPU")
    more = [none] if inventory.mode == "nvml" and not inventory.gpus else []
    part = Part.of(text, *map(of_warning, inventory.warnings), findings=more)
    return inside.of_own_gpus(part, node)


def of_warning(text: str) -> Finding:
    """Return the finding of a warning of discovery."""
    kind = warning_kind(text)
    if kind == "node":
        return Finding(Reason.DeviceNodesMissing, "error", text)
    reason = Reason.DeviceUnhealthy if kind == "gpu" else Reason.DriverIncomplete
    return Finding(reason, "warning", text)


def specs(node: Node) -> Part:
    """Compare the CDI specs in force, without their hooks, with the host."""
    report = node.report
    if not report.specs and all(drift.kind != "unreadable" for drift in report.drift):
        text = f"none in {' and '.join(node.settings.spec_dirs)}; nvct publish writes one"
        return Part.absent(Finding(Reason.SpecificationMissing, "note", text))
    report = _only(report, hooks=False)
    things = f"{count(report.specs, 'spec')}, {count(report.devices, 'device')}"
    names = [name.partition(" (")[0] for name in report.held_back]
    text = f"held back by `nvct publish --devices`: {listed(names, NAMED)}"
    held = [*([text] if names else []), *report.choices]
    if not report.drift:
        return Part.of(f"{things}, no difference from the host", *held)
    number = count(len(report.drift), "difference")
    advice = specifications.advice(report.drift, "nvct publish")
    lines = [*specifications.lines(report.drift), *held]
    line = f"{things}, {number} from the host; {advice}"
    return Part.of(line, *lines, findings=specifications.findings(report))


def hooks(node: Node) -> Part:
    """Check the hooks of the CDI specs in force: their programs and their environment."""
    if not node.report.specs:
        return Part.absent("no specification")
    programs = list(incumbent.hook_programs(conflicts.in_force(node.registry)))
    differences = _only(node.report, hooks=True)
    found = specifications.findings(differences)
    is_well = not any(finding.is_fault for finding in (*found, *programs))
    well = ["each hook has its program and an environment of its own"] if is_well else []
    return Part.of(*well, *specifications.lines(differences.drift), *programs, findings=found)


def _only(report: Report, *, hooks: bool) -> Report:
    drift = tuple(one for one in report.drift if one.kind.startswith("hook-") == hooks)
    return replace(report, drift=drift)


def plans(node: Node) -> Part:
    """Check the plans that the next create will use."""
    store = Store(run_dir(node.env))
    states = {
        name.removesuffix(paths.PLAN_SUFFIX): _plan(store.read_json(name) or {})
        for name in (paths.REGISTRY_PLAN, paths.OWN_PLAN)
        if store.fd >= 0 and store.read(name) is not None
    }
    if not states:
        return Part.absent("none yet: the first container makes them")
    lines = [f"{name}: {text}" for name, text in states.items()]
    stale = Finding.each(Reason.PlanStale, "note", [one for one in lines if one.endswith(STALE)])
    return Part.of(*lines, findings=stale)


def _plan(plan: dict[str, Any]) -> str:
    try:
        broken = fingerprints.broken(plan["facts"])
        fresh, number = model.is_current(plan), len(plan["devices"])
    except (ValueError, KeyError, TypeError, NvctError):
        return f"damaged{STALE}"
    if broken is not None:
        return f"{broken[1]} has changed{STALE}"
    if not fresh:
        return f"the view of the driver has changed{STALE}"
    return f"{count(number, 'device name')}, fresh"


def farm(node: Node) -> Part:
    """Check the views of the driver's files."""
    from nvct.farm import collect, of_host

    settings, folder = node.settings, run_dir(node.env)
    try:
        need = of_host.needs_in_force(settings, node.roots, folder)
        views = collect.statuses(of_host.farm_of(settings), need, strict=False)
    except (NvctError, OSError) as error:
        text = f"layout {settings.layout}: {error}"
        return Part.of(Finding(Reason.DriverViewDamaged, "warning", text))
    table = (Store(folder).read_json(paths.OWN_PLAN) or {}).get("farm")
    of_plan: model.Farm | None = table if isinstance(table, dict) else None  # type: ignore[assignment]  # our compiler's
    chosen = of_host.describe_layout(settings, of_plan)
    if not views:
        return Part.absent(f"{chosen}; no view of the driver")
    problems = [f"{view.manifest.name}: {text}" for view in views for text in view.problems]
    found = Finding.each(Reason.DriverViewDamaged, "warning", problems)
    return Part.of(f"{chosen}; {count(len(views), 'view')} of the driver", *found)


def units(node: Node, systemctl: str = "systemctl") -> Part:
    """Check the systemd units that keep the published spec up to date."""
    if not node.booted:
        return Part.absent("systemd does not run here")
    return Part.of(*(said for unit in UNITS for said in _unit(unit, systemctl)))


def _unit(unit: str, systemctl: str) -> Iterator[str | Finding]:
    argv = [systemctl, "show", f"--property={','.join(PROPERTIES)}", unit]
    printed = command.run(argv, SYSTEMCTL_TIMEOUT_S, env=dict(os.environ)).out
    state = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if state.get("LoadState") != "loaded":
        yield f"{unit}: not installed"
        return
    active = state.get("ActiveState")
    text = f"{unit}: {active}, {state.get('UnitFileState')}"
    if active == "failed":
        text += f", result {state.get('Result')}"
        yield Finding(Reason.RefreshUnitFailed, "warning", text)
    elif unit.endswith(".path") and active != "active":
        yield Finding(Reason.RefreshUnitInactive, "warning", text)
    else:
        yield text
    runs = START.search(state.get("ExecStart", ""))
    if runs and OWN_START not in runs[1]:
        text = f"{unit}: {state.get('FragmentPath')} runs {runs[1]}, not {OWN_START}"
        yield Finding(Reason.RefreshUnitReplaced, "warning", text)


def versions_of(node: Node) -> Part:
    """Check each local engine's release against each specification that it reads."""
    registry = node.registry
    local = [
        status for status in node.statuses if not status.engine.foreign and status.engine.version
    ]
    found = [*_refused(local, registry), *_ignored(node.settings.spec_dirs)]
    if not found and not (local and registry.specs):
        text = "no engine with a known release" if registry.specs else "no specification"
        return Part.absent(text)
    names = ", ".join(f"{one.engine.engine} {one.engine.version}" for one in local)
    text = f"{count(len(registry.specs), 'spec')} readable for {names}"
    return Part.of(*found, otherwise=text)


def _refused(statuses: Sequence[Status], registry: Registry) -> Iterator[Finding]:
    for status in statuses:
        # An engine with a runtime of NVIDIA's does not need the specification.
        severity: Severity = "note" if status.registered else "warning"
        for _, why, remedy in specs_read(status, registry):
            if why:
                yield Finding(Reason.SpecificationTooNew, severity, why, remedy)


def _ignored(folders: Sequence[str]) -> Iterator[Finding]:
    for folder in folders:
        for name in procfs.list_directory(folder):
            if engines.is_ignored(name):
                path = f"{folder}/{name}"
                text = f"{path}: engines do not read .yml"
                remedy = f"Rename it to {os.path.splitext(path)[0]}.yaml."
                yield Finding(Reason.SpecificationTooNew, "error", text, remedy)
