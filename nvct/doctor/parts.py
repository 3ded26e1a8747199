# SPDX-License-Identifier: Apache-2.0
"""Checks of each part of a node, for `nvct status`. Cold; changes nothing, raises nothing."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nvct import paths
from nvct.cdi.check import engines
from nvct.cdi.check.drift import Report
from nvct.cdi.read.registry import Registry
from nvct.compile import live_host
from nvct.config import editing, load
from nvct.config.model import UNCHECKED, Config, check
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import Store
from nvct.container.request import capabilities
from nvct.container.shim import main as shim
from nvct.doctor import causes, refusals, specifications
from nvct.doctor.engine_access import CDI_NAMES, older_remedy, spec_folders
from nvct.doctor.model import Finding, Health, Part, Severity, count
from nvct.doctor.reasons import Reason
from nvct.engine.status import Status
from nvct.errors import (
    ConfigError,
    DriverNotFoundError,
    NvctError,
    RuntimeNotFoundError,
)
from nvct.host import procfs
from nvct.host.model import Inventory, warning_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Farm


UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result", "FragmentPath", "ExecStart")
START = re.compile(r"argv\[\]=(.*?) ;")
"""A command line, as `systemctl show` prints ExecStart."""
OWN_START = "nvct publish"
LINES = 8
SYSTEMCTL_TIMEOUT_S = 5
STALE = "; the next container replaces it"


def configuration(settings: Config, others: Sequence[str] = ()) -> Part:
    """Check config.toml as a create does; a key without effect is reported, but is no fault.

    Args:
        others: engines that start containers by another runtime than NVIDIA's.
    """
    data = (load.read(settings.path) or b"") if settings.path else b""
    ignored = [*editing.unread_warnings(settings), *editing.unknown_keys(load.text(data))]
    findings = [
        *_refused_values(settings),
        *findings_of(Reason.ConfigurationInvalid, "warning", settings.warnings),
        *findings_of(Reason.ConfigurationKeyIgnored, "note", ignored),
        *findings_of(Reason.EngineDevicesUnchecked, "note", _unchecked(settings, others)),
    ]
    if not settings.path and not findings:
        return part_of("config", ["no config.toml: the defaults hold"], health="absent")
    return part_of("config", [settings.path or "the defaults", *_evidence(findings)], findings)


def _unchecked(settings: Config, others: Sequence[str]) -> list[str]:
    """Return which devices of engines the policy does not see."""
    if not settings.policy:
        return []
    if settings.engine_devices == UNCHECKED:
        ways = "--gpus of Docker 29.2, --device, --privileged and CDI"
        return [f"the policy does not apply to devices that engines give: {ways}"]
    return [
        f"the policy sees no devices of {name}'s containers unless they name the runtime nvidia"
        for name in others
    ]


def _refused_values(settings: Config) -> Iterator[Finding]:
    """Yield a finding for a value with which creates fail, or some of them."""
    try:
        check(settings)
    except ConfigError as error:
        yield refusals.of_error(error, otherwise=Reason.ConfigurationInvalid)
    try:
        capabilities.resolve(None, settings.supported_driver_capabilities, legacy_image=True)
    except ConfigError as error:
        yield refusals.of_error(error, otherwise=Reason.ConfigurationInvalid)


def low_level_runtime(settings: Config, path: str) -> list[Finding]:
    """Return a finding if none of the configured low-level runtimes is installed."""
    try:
        shim.find_runtime(settings.runtimes, path)
    except RuntimeNotFoundError as error:
        return [
            Finding(
                reason=Reason.RuntimeProgramMissing,
                severity="error",
                evidence=error.message,
                remedy=error.hint,
            )
        ]
    return []


def driver(settings: Config) -> tuple[Part, Inventory | None]:
    """Check the driver; return the inventory as well, None if discovery fails."""
    try:
        inventory = live_host.discover(settings)
    except DriverNotFoundError as error:
        if procfs.driver_version(live_host.roots_of(settings)):
            return refused("driver", error), None
        absent = findings_of(Reason.DriverNotFound, "note", [error.message])
        return part_of("driver", [error.message], absent, health="absent"), None
    except NvctError as error:
        return refused("driver", error), None
    mig = sum(len(gpu.mig) for gpu in inventory.gpus)
    text = f"{inventory.driver_version or 'of this board'}, {count(len(inventory.gpus), 'GPU')}"
    text += f", {count(mig, 'MIG device')}" if mig else ""
    lines = [text, *inventory.warnings]
    found = [of_warning(text) for text in inventory.warnings]
    if inventory.mode == "nvml" and not inventory.gpus:
        none = "the driver is loaded and lists no GPU"
        found += findings_of(Reason.GpuNotFound, "note", [none])
    return part_of("driver", lines, found), inventory


def of_warning(text: str) -> Finding:
    """Return the finding of a warning of discovery."""
    kind = warning_kind(text)
    if kind == "node":
        return Finding(reason=Reason.DeviceNodesMissing, severity="error", evidence=text)
    reason = Reason.DeviceUnhealthy if kind == "gpu" else Reason.DriverIncomplete
    return Finding(reason=reason, severity="warning", evidence=text)


def specs(settings: Config, report: Report) -> Part:
    """Compare the CDI specs in force with the host; their hooks are another part."""
    if not report.specs and all(drift.kind != "unreadable" for drift in report.drift):
        text = f"none in {' and '.join(settings.spec_dirs)}; nvct publish writes one"
        missing = findings_of(Reason.SpecificationMissing, "note", [text])
        return part_of("specs", [text], missing, health="absent")
    report = _only(report, hooks=False)
    things = f"{count(report.specs, 'spec')}, {count(report.devices, 'device')}"
    if not report.drift:
        return part_of("specs", [f"{things}, no difference from the host"])
    number = count(len(report.drift), "difference")
    lines = [f"{things}, {number} from the host; {causes.advice(report.drift, 'nvct publish')}"]
    return part_of("specs", [*lines, *causes.lines(report.drift)], specifications.findings(report))


def hooks(report: Report, programs: Sequence[Finding] = ()) -> Part:
    """Check the hooks of the CDI specs in force: their programs and their environment."""
    if not report.specs:
        return part_of("hooks", ["no specification"], health="absent")
    differences = _only(report, hooks=True)
    lines = [*causes.lines(differences.drift), *_evidence(programs)]
    found = [*specifications.findings(differences), *programs]
    if not any(finding.is_fault for finding in found):
        lines.insert(0, "each hook has its program and an environment of its own")
    return part_of("hooks", lines, found)


def _only(report: Report, *, hooks: bool) -> Report:
    drift = tuple(one for one in report.drift if one.kind.startswith("hook-") == hooks)
    return replace(report, drift=drift)


def plans(run_dir: str) -> Part:
    """Check the plans that the next create will use."""
    store = Store(run_dir)
    states = {
        name.removesuffix(paths.PLAN_SUFFIX): _plan(store.read_json(name) or {})
        for name in (paths.REGISTRY_PLAN, paths.OWN_PLAN)
        if store.fd >= 0 and store.read(name) is not None
    }
    if not states:
        return part_of("plans", ["none yet: the first container makes them"], health="absent")
    lines = [f"{name}: {text}" for name, text in states.items()]
    stale = [line for line in lines if line.endswith(STALE)]
    return part_of("plans", lines, findings_of(Reason.PlanStale, "note", stale))


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


def farm(settings: Config, run_dir: str) -> Part:
    """Check the views of the driver's files."""
    from nvct.farm import collect, of_host

    try:
        need = of_host.needs_in_force(settings, live_host.roots_of(settings), run_dir)
        views = collect.statuses(of_host.farm_of(settings), need, strict=False)
    except (NvctError, OSError) as error:
        text = f"layout {settings.layout}: {error}"
        return part_of("farm", [text], findings_of(Reason.DriverViewDamaged, "warning", [text]))
    chosen = of_host.describe_layout(settings, _table(run_dir))
    if not views:
        return part_of("farm", [f"{chosen}; no view of the driver"], health="absent")
    problems = [f"{view.manifest.name}: {text}" for view in views for text in view.problems]
    lines = [f"{chosen}; {count(len(views), 'view')} of the driver", *problems]
    return part_of("farm", lines, findings_of(Reason.DriverViewDamaged, "warning", problems))


def _table(run_dir: str) -> Farm | None:
    """Return the farm table of nvct's own plan, None if there is no plan."""
    plan = Store(run_dir).read_json(paths.OWN_PLAN)
    table = (plan or {}).get("farm")
    return table if isinstance(table, dict) else None  # type: ignore[return-value]  # our compiler's


def units(*, booted: bool, systemctl: str = "systemctl") -> Part:
    """Check the systemd units that keep the published spec up to date."""
    if not booted:
        return part_of("units", ["systemd does not run here"], health="absent")
    lines: list[str] = []
    findings: list[Finding] = []
    for unit in UNITS:
        state = _shown(systemctl, unit)
        if state.get("LoadState") != "loaded":
            lines.append(f"{unit}: not installed")
            continue
        active = state.get("ActiveState")
        result = f", result {state.get('Result')}" if active == "failed" else ""
        lines.append(f"{unit}: {active}, {state.get('UnitFileState')}{result}")
        if active == "failed":
            findings += findings_of(Reason.RefreshUnitFailed, "warning", lines[-1:])
        elif unit.endswith(".path") and active != "active":
            findings += findings_of(Reason.RefreshUnitInactive, "warning", lines[-1:])
        runs = START.search(state.get("ExecStart", ""))
        if runs and OWN_START not in runs[1]:
            lines.append(f"{unit}: {state.get('FragmentPath')} runs {runs[1]}, not {OWN_START}")
            findings += findings_of(Reason.RefreshUnitReplaced, "warning", lines[-1:])
    return part_of("units", lines, findings)


def _shown(systemctl: str, unit: str) -> dict[str, str]:
    words = ["show", f"--property={','.join(PROPERTIES)}", unit]
    try:
        completed = subprocess.run(
            [systemctl, *words], capture_output=True, text=True, check=False,
            timeout=SYSTEMCTL_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)


def findings_of(reason: Reason, severity: Severity, texts: Sequence[str]) -> list[Finding]:
    """Return a finding of one reason for each sentence."""
    return [Finding(reason=reason, severity=severity, evidence=text) for text in texts]


def _evidence(findings: Sequence[Finding]) -> list[str]:
    return [finding.evidence for finding in findings]


def unseen(name: str, reason: Reason, path: str) -> Part | None:
    """Return the part that this user may not look at; None if the path can be looked at."""
    try:
        os.stat(path)
        if os.access(path, os.R_OK, effective_ids=True):
            return None
    except PermissionError:
        pass
    except OSError:
        return None
    text = f"{path} cannot be read: {os.strerror(errno.EACCES)}"
    return part_of(name, [text], findings_of(reason, "unknown", [text]), health="absent")


def refused(name: str, error: NvctError) -> Part:
    """Return the part that could not be checked because of an error."""
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    finding = refusals.of_error(error, otherwise=Reason.DriverNotFound)
    return part_of(name, [text], [finding])


def part_of(
    name: str,
    lines: Sequence[str],
    findings: Sequence[Finding] = (),
    *,
    health: Health = "ok",
) -> Part:
    """Return a part; a fault among its findings makes it one to look at."""
    if any(finding.is_fault for finding in findings):
        health = "attention"
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more"]
    return Part(name=name, health=health, lines=tuple(lines), findings=tuple(findings))


def versions_of(statuses: Sequence[Status], registry: Registry, folders: Sequence[str]) -> Part:
    """Check each local engine's release against each specification that it reads."""
    local = [status for status in statuses if not status.engine.foreign and status.engine.version]
    found = [*_refused(local, registry), *_ignored(folders)]
    if not found and not (local and registry.specs):
        text = "no engine whose release is known" if registry.specs else "no specification"
        return part_of("versions", [text], health="absent")
    names = ", ".join(f"{one.engine.engine} {one.engine.version}" for one in local)
    lines = [finding.evidence for finding in found]
    return part_of(
        "versions", lines or [f"{names}: {count(len(registry.specs), 'spec')} can be read"], found
    )


def _refused(statuses: Sequence[Status], registry: Registry) -> Iterator[Finding]:
    for status in statuses:
        engine = CDI_NAMES.get(status.engine.engine, status.engine.engine)
        folders = spec_folders(status)
        for file in registry.specs:
            if os.path.dirname(file.path) not in folders:
                continue
            if text := engines.refusal(file.spec, engine, status.engine.version):
                yield Finding(
                    reason=Reason.SpecificationTooNew,
                    # An engine that gives GPUs by a runtime of NVIDIA's does not need it.
                    severity="note" if status.registered else "warning",
                    evidence=f"{file.path}: {text}",
                    remedy=older_remedy(file, engine, status.engine.version),
                )


def _ignored(folders: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each file that engines ignore because of its name."""
    for folder in folders:
        for name in procfs.list_directory(folder):
            if engines.is_ignored(name):
                path = f"{folder}/{name}"
                yield Finding(
                    reason=Reason.SpecificationTooNew,
                    severity="error",
                    evidence=f"{path}: engines do not read .yml",
                    remedy=f"Rename it to {os.path.splitext(path)[0]}.yaml.",
                )
