# SPDX-License-Identifier: Apache-2.0
"""Checks of each part of a node. Cold; they change nothing and raise nothing."""

from __future__ import annotations

import subprocess

from nvct import paths
from nvct.cdi import registry
from nvct.compile import live_host
from nvct.config import unread
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import Store
from nvct.doctor import causes
from nvct.doctor.model import Part
from nvct.errors import DriverNotFoundError, NvctError
from nvct.host import procfs
from nvct.host.gpu import nodes
from nvct.linux import device_nodes
from nvct.spec import drift

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nvct.config.model import Config
    from nvct.container.plan.model import Farm
    from nvct.doctor.model import Health
    from nvct.engine.control.status import Status
    from nvct.host.model import Inventory

UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
LINES = 8
SYSTEMCTL_TIMEOUT_S = 5


def configuration(settings: Config) -> Part:
    """Check config.toml; a key without effect is reported, but is not a fault."""
    if not settings.path:
        return _part("config", "absent", ["no config.toml: the defaults hold"])
    health: Health = "attention" if settings.warnings else "ok"
    lines = [settings.path, *settings.warnings, *unread.warnings(settings)]
    return _part("config", health, lines)


def driver(settings: Config) -> tuple[Part, Inventory | None]:
    """Check the driver; return the inventory as well, None if discovery fails."""
    roots = live_host.roots_of(settings)
    try:
        inventory = live_host.discover(settings)
    except DriverNotFoundError as error:
        if procfs.driver_version(roots):
            return _part("driver", "attention", [_text(error)]), None
        return _part("driver", "absent", [error.message]), None
    except NvctError as error:
        return _part("driver", "attention", [_text(error)]), None
    mig = sum(len(gpu.mig) for gpu in inventory.gpus)
    text = f"{inventory.driver_version or 'of this board'}, {_count(len(inventory.gpus), 'GPU')}"
    text += f", {_count(mig, 'MIG device')}" if mig else ""
    health: Health = "attention" if inventory.warnings else "ok"
    return _part("driver", health, [text, *inventory.warnings]), inventory


def specs(settings: Config, inventory: Inventory | None) -> Part:
    """Compare the CDI specs in force with the host."""
    roots = live_host.roots_of(settings)
    host = drift.HostState(
        live=inventory,
        loaded=procfs.driver_version(roots),
        stat_node=nodes.named_nodes(roots) if settings.plain_nodes else device_nodes.node,
    )
    report = drift.check(registry.scan(settings.spec_dirs), host)
    if not report.specs:
        folders = " and ".join(settings.spec_dirs)
        return _part("specs", "absent", [f"none in {folders}; nvct publish writes one"])
    count = f"{_count(report.specs, 'spec')}, {_count(report.devices, 'device')}"
    if not report.drift:
        return _part("specs", "ok", [f"{count}, no difference from the host"])
    number = _count(len(report.drift), "difference")
    lines = [f"{count}, {number} from the host; {causes.advice(report.drift, 'nvct publish')}"]
    return _part("specs", "attention", [*lines, *causes.lines(report.drift)])


def plans(run_dir: str) -> Part:
    """Check the plans that the next create will use."""
    store = Store(run_dir)
    if store.fd < 0:
        return _part("plans", "absent", ["none yet: the first container makes them"])
    lines = [
        f"{name.removesuffix(paths.PLAN_SUFFIX)}: {_plan(store.read_json(name) or {})}"
        for name in (paths.REGISTRY_PLAN, paths.OWN_PLAN)
        if store.read(name) is not None
    ]
    if not lines:
        return _part("plans", "absent", ["none yet: the first container makes them"])
    return _part("plans", "ok", lines)


def _plan(plan: dict[str, Any]) -> str:
    try:
        broken = fingerprints.broken(plan["facts"])
        fresh, number = model.is_current(plan), len(plan["devices"])
    except (ValueError, KeyError, TypeError, NvctError):
        return "damaged; the next container replaces it"
    if broken is not None:
        return f"{broken[1]} has changed; the next container replaces it"
    if not fresh:
        return "the view of the driver has changed; the next container replaces it"
    return f"{_count(number, 'device name')}, fresh"


def farm(settings: Config, run_dir: str) -> Part:
    """Check the views of the driver's files."""
    from nvct.compile import farm_plan
    from nvct.farm import collect

    loaded = procfs.driver_version(live_host.roots_of(settings))
    try:
        need = collect.read_needs(loaded, [f"{run_dir}/{paths.OWN_PLAN}"])
        views = collect.statuses(farm_plan.farm_of(settings), need, strict=False)
    except (NvctError, OSError) as error:
        return _part("farm", "attention", [f"layout {settings.layout}: {error}"])
    chosen = farm_plan.describe_layout(settings, _table(run_dir))
    if not views:
        return _part("farm", "absent", [f"{chosen}; no view of the driver"])
    problems = [f"{view.manifest.name}: {text}" for view in views for text in view.problems]
    lines = [f"{chosen}; {_count(len(views), 'view')} of the driver", *problems]
    return _part("farm", "attention" if problems else "ok", lines)


def _table(run_dir: str) -> Farm | None:
    """Return the farm table of nvct's own plan, None if there is no plan."""
    plan = Store(run_dir).read_json(paths.OWN_PLAN)
    table = (plan or {}).get("farm")
    return table if isinstance(table, dict) else None  # type: ignore[return-value]  # our compiler's


def engines(statuses: Sequence[Status]) -> Part:
    """Report the runtimes that are registered with each engine of the host."""
    local = [status for status in statuses if not status.engine.foreign]
    others = f"{len(statuses) - len(local)} of a container or another user"
    if not local:
        more = f", {others}" if statuses else ""
        return _part("engines", "absent", [f"none on this host{more}"])
    lines, health = [], "ok"
    for status in local:
        name = " ".join(word for word in (status.engine.engine, status.engine.version) if word)
        registered = ", ".join(status.registered) or "no runtime of NVIDIA's"
        lines.append(f"{name}: {registered}{', the default' if status.is_default else ''}")
        problems = [status.problem] if status.problem else []
        problems += status.differences
        problems += [f"the program of its runtime {word} is not there" for word in status.missing]
        lines += [f"{name}: {text}" for text in problems]
        health = "attention" if problems else health
    if len(statuses) > len(local):
        lines.append(f"{others}, not looked at")
    return _part("engines", "attention" if health == "attention" else "ok", lines)


def units(*, booted: bool, systemctl: str = "systemctl") -> Part:
    """Check the systemd units that keep the published spec up to date."""
    if not booted:
        return _part("units", "absent", ["systemd does not run here"])
    lines, health = [], "ok"
    for unit in UNITS:
        state = _shown(systemctl, unit)
        if state.get("LoadState") != "loaded":
            lines.append(f"{unit}: not installed")
            continue
        failed = state.get("ActiveState") == "failed"
        off = unit.endswith(".path") and state.get("ActiveState") != "active"
        health = "attention" if failed or off else health
        result = f", result {state.get('Result')}" if failed else ""
        lines.append(f"{unit}: {state.get('ActiveState')}, {state.get('UnitFileState')}{result}")
    return _part("units", "attention" if health == "attention" else "ok", lines)


def _shown(systemctl: str, unit: str) -> dict[str, str]:
    words = ["show", "--property=LoadState,ActiveState,UnitFileState,Result", unit]
    try:
        completed = subprocess.run(
            [systemctl, *words], capture_output=True, text=True, check=False,
            timeout=SYSTEMCTL_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)


def _part(name: str, health: Health, lines: Sequence[str]) -> Part:
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more"]
    return Part(name=name, health=health, lines=tuple(lines))


def _text(error: NvctError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
