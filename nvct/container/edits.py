# SPDX-License-Identifier: Apache-2.0
"""The compiled edits for a request, from its plans; checks requirements and conflicts.

Hot; loaded only if there is a request.
"""

from __future__ import annotations

from nvct.container.plan import model
from nvct.container.request.model import OWN_KIND, RUNTIME_KIND
from nvct.container.request.visible_devices import plain_bus_id
from nvct.errors import CdiConflictError, NvctError, StaleSpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nvct.config.model import Config
    from nvct.container.host import Host
    from nvct.container.request.model import Request

    T = TypeVar("T")


def stored_or_fresh(make: Callable[[bool], T]) -> T:
    """Return the result of `make` for stored plans; for fresh plans if the stored ones are stale.

    A missing file may exist now, so a refusal is checked again; a success is not.
    """
    try:
        return make(False)  # noqa: FBT003  stored
    except (model.StalePlanError, StaleSpecError):
        pass
    return make(True)  # noqa: FBT003  fresh


def collect(request: Request, config: Config, host: Host, *, fresh: bool) -> list[model.Edits]:
    """Return the compiled edits for a request.

    Raises StalePlanError, and NvctError if a device is missing.
    """
    capabilities, compat = request.capabilities, config.wants_compat(request.mode)
    ids = request.ids
    request.plans = []
    extra_edits: list[model.Edits] = []
    if request.extras:
        from nvct.container import extras  # few containers request any

        ids, extra_edits = extras.collect(request, host, fresh=fresh)
    if not ids:
        plan, kind = plan_of(request, host, request.kind, fresh=fresh, without_gpus=True)
        request.plans.append(model.fingerprint(plan))
        _check_requirements(request, plan, [], host)
        return [*model.common(plan, kind, capabilities, compat=compat), *extra_edits]
    edits: list[model.Edits] = []
    for plan, names in plans_of(request, ids, host, fresh=fresh):
        request.plans.append(model.fingerprint(plan))
        _refuse_conflicts(plan, names)
        if request.mode == "csv":
            request.notes += [text for text in plan["problems"] if text not in request.notes]
        _check_requirements(request, plan, names, host)
        edits.extend(model.collect(plan, names, capabilities, compat=compat))
    return [*edits, *extra_edits]


def plans_of(
    request: Request, ids: list[str], host: Host, *, fresh: bool = False
) -> list[tuple[model.Plan, list[str]]]:
    """Return the plans that define ids, each with the full CDI names to look up in it."""
    answers: dict[str, tuple[model.Plan, str]] = {}
    groups: dict[int, tuple[model.Plan, list[str]]] = {}
    for word in ids:
        requested_kind, equals, device = word.partition("=")
        if not equals:
            requested_kind, device = request.kind, word
        if requested_kind not in answers:
            answers[requested_kind] = plan_of(request, host, requested_kind, fresh=fresh)
        plan, kind = answers[requested_kind]
        groups.setdefault(id(plan), (plan, []))[1].append(name_in(plan, kind, device))
    return list(groups.values())


def name_in(plan: model.Plan, kind: str, device: str) -> str:
    """Return the full CDI name of a device in a plan, which has one form of each PCI bus id."""
    name = f"{kind}={device}"
    return name if name in plan["devices"] else f"{kind}={plain_bus_id(device)}"


def _check_requirements(request: Request, plan: model.Plan, names: list[str], host: Host) -> None:
    if not request.requirements:
        return
    from nvct.container.request.requirements import check, undecided

    check(request.requirements, plan["host"])
    if names and undecided(request.requirements, plan["host"]):
        from nvct.container import extras

        extras.check_gpus(request, plan["host"], names, host)


def _refuse_conflicts(plan: model.Plan, names: list[str]) -> None:
    for name in names:
        files = plan.get("conflicts", {}).get(name)
        if files:
            raise CdiConflictError(
                f"{name} is defined by {' and '.join(files)}",
                hint="remove it from all but one of them",
            )


def plan_of(
    request: Request, host: Host, kind: str, *, fresh: bool = False, without_gpus: bool = False
) -> tuple[model.Plan, str]:
    """Return the plan that defines a kind, and the kind's name in the plan.

    If the registry has no nvidia.com/gpu spec, nvct's own spec defines the kind. `without_gpus` is
    true if no GPU is requested.
    """
    if kind != RUNTIME_KIND:
        plan = host.plan("registry", fresh=fresh)
        if kind in plan["kinds"] or kind != OWN_KIND:
            return plan, kind
    plan_name = "own-csv-all" if request.extras.csv_all else "own"
    if without_gpus and plan_name == "own":
        plan_name = "own-none"  # needs no NVML; the host may have a driver but no GPU
    try:
        return host.plan(plan_name, fresh=fresh), OWN_KIND
    except NvctError as error:
        if not error.hint:
            error.hint = "is the NVIDIA driver installed and loaded? try nvidia-smi"
        raise
