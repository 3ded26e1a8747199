# SPDX-License-Identifier: Apache-2.0
"""The create lane: request -> plan -> config.json.

Hot. One resolver for every source of a request; nothing is written unless something changes.
"""

from __future__ import annotations

import time

from nvct import paths
from nvct.container.plan import fingerprints, inject, model
from nvct.container.request.model import OWN_KIND, RUNTIME_KIND
from nvct.errors import CdiConflictError, HostError, NvctError, RequestError, StaleSpecError
from nvct.oci import bundle as bundles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.plan.store import Store
    from nvct.container.request.model import Request
    from nvct.container.request.origin import Origin
    from nvct.oci.argv import Invocation

LAYOUT = "NVIDIA_DRIVER_LAYOUT"
LAYOUTS = ("auto", "classic", "farm")


class Host:
    """What the create lane needs of the machine: run directory, environment, door and procfs."""

    __slots__ = ("cold", "env", "proc_root", "store")

    def __init__(
        self, store: Store, env: dict[str, str], cold: str, proc_root: str = "/proc"
    ) -> None:
        """Keep them."""
        self.store = store
        self.env = env
        self.cold = cold
        self.proc_root = proc_root

    def plan(self, which: str, config_path: str, *, anew: bool = False) -> model.Plan:
        """Return a plan, compiled anew where its facts do not hold.

        Args:
            which: "registry", "own", or another word that `nvct.compile` knows.
            config_path: of the config.toml in force.
            anew: what is kept does not do.

        Raises:
            NvctError: it cannot be compiled; the reason is the cold side's.
        """
        name = which + paths.PLAN_SUFFIX

        asked = time.time_ns()

        def kept() -> model.Plan | None:
            plan = self.store.read_plan(name)
            if plan is None or plan.get("config") != config_path or not model.is_current(plan):
                return None
            if _settle(plan):
                self.store.write_json(name, plan)
            return plan  # type: ignore[return-value]  # what our own compiler wrote

        def made_meanwhile() -> model.Plan | None:
            plan = kept()
            return plan if plan is not None and plan.get("made", 0) >= asked else None

        def made() -> model.Plan:
            from nvct.container.shim import cold_process

            args = [which, config_path, self.store.path]
            return cold_process.run(self.cold, args, self.env)  # type: ignore[return-value]  # a plan

        found = None if anew else kept()
        if found is not None:
            return found
        from nvct.container.shim import cold_process, negative_cache

        known = negative_cache.Failures(self.store, which, config_path, self.proc_root)
        return cold_process.under_lock(
            self.store, made_meanwhile if anew else kept, made, failures=known
        )

    def defines(self, name: str) -> bool:
        """Tell whether a CDI spec defines a device, as far as that can be learned."""
        from nvct.config.model import path_from

        try:
            plan = self.plan("registry", path_from(self.env))
        except NvctError:
            return False
        return name in plan["devices"] or name in plan.get("conflicts", {})


def _settle(plan: dict[str, object]) -> bool:
    """Exchange facts of young files for cheaper ones; tell whether there were any."""
    now = time.time_ns()
    settled = fingerprints.settle(plan["facts"], now)  # type: ignore[arg-type]  # our compiler's
    farm = plan.get("farm")
    if isinstance(farm, dict):
        settled = fingerprints.settle(farm["facts"], now) or settled
    return settled


def create(
    said: Invocation, config: Config, host: Host, trouble: NvctError | None
) -> tuple[Request | None, list[str], list[model.Edits]]:
    """Edit the bundle of a create or run command for what the container asks for.

    Returns what was decided: the request, notes about it, and the edits that were made.

    Args:
        said: the command line.
        config: the configuration in force, the defaults where `trouble` is set.
        host: the machine.
        trouble: why config.toml could not be read; raised only when a GPU is asked for.

    Raises:
        NvctError: a GPU was asked for that cannot be had, and why.
    """
    from nvct.config.model import check
    from nvct.container.request.resolve import decide
    from nvct.linux.kernel import KERNEL

    bundle = bundles.load(bundles.config_path(said.bundle, said.config))
    origin = origin_of(bundle, config, host)
    request, notes = decide(
        bundle.env, bundle.mounts, bundle.annotations, bundle.bounding, config,
        origin=origin, defined=host.defines,
    )  # fmt: skip
    if request is not None:
        if trouble is not None:
            raise trouble
        check(config)
    if request is not None or config.mode != "legacy" or config.policy:
        # In legacy mode the incumbent leaves it: it is what delivers there.
        inject.remove_nvidia_hooks(bundle)
    edits: list[model.Edits] = []
    if request is not None:
        edits = _edits_in_place(bundle, said.bundle, request, config, host, notes=notes)
        inject.apply(bundle, edits)
    bundle.save(KERNEL)
    return request, notes, edits


def _edits_in_place(
    bundle: bundles.Bundle,
    folder: str,
    request: Request,
    config: Config,
    host: Host,
    *,
    notes: list[str],
) -> list[model.Edits]:
    """Return the edits for a request, all of whose files are there.

    A plan stands on few facts, so that a library may go and its plan still hold. Looked at last
    of all: what goes from here on is the low-level runtime's to tell.

    Raises:
        NvctError: a device cannot be had.
    """
    gone = ""
    for anew in (False, True):
        said: list[str] = []  # of the last attempt alone
        classic = edits_for(request, config, host, anew=anew)
        edits = classic
        if wants_view(bundle, config, said):
            edits = _by_view(bundle, folder, classic, said)
        gone = model.missing_source(edits)
        if not gone:
            notes += said
            if edits is not classic:
                return edits
            return _without_hook(bundle, folder, edits, config, notes)
    raise _gone_error(gone)


def edits_that_exist(request: Request, config: Config, host: Host) -> list[model.Edits]:
    """Return the edits for a request, none of whose files is missing; a plan is rebuilt once.

    Raises:
        NvctError: a device cannot be had, or a file is missing of a new plan as well.
    """
    gone = ""
    for anew in (False, True):
        edits = edits_for(request, config, host, anew=anew)
        gone = model.missing_source(edits)
        if not gone:
            return edits
    raise _gone_error(gone)


def _gone_error(path: str) -> HostError:
    return HostError(
        f"{path} went away meanwhile", hint="is the driver being installed? try again"
    )


def wants_view(bundle: bundles.Bundle, config: Config, notes: list[str]) -> bool:
    """Tell whether a container gets the driver by a view, if there is one that fits it.

    Its variable can only choose among the layouts that config.toml leaves open.

    Raises:
        RequestError: the variable names no layout.
    """
    prefix = f"{LAYOUT}="
    layout = ([e[len(prefix) :] for e in bundle.env if e.startswith(prefix)] or [""])[-1]
    if layout not in ("", *LAYOUTS):
        raise RequestError(
            f"{LAYOUT} cannot be {layout!r:.80}", hint=f"use one of: {', '.join(LAYOUTS)}"
        )
    if layout == "classic" and config.wants_view:
        notes.append(f"layout classic: {LAYOUT} asks for it")
        return False
    if layout == "farm" and not config.wants_view:
        notes.append("layout classic: config.toml leaves no other")
    return config.wants_view


def _without_hook(
    bundle: bundles.Bundle,
    folder: str,
    edits: list[model.Edits],
    config: Config,
    notes: list[str],
) -> list[model.Edits]:
    """Return edits without a hook of our own plan, if its work can be done beforehand."""
    if config.params_mask == "true" or not any("hook" in one for one in edits):
        return edits
    from nvct.container.deliver import (
        layout_classic as classic,  # nobody else loads what writes into a root
    )

    return classic.without_hook(bundle, folder, edits, notes.append)


def _by_view(
    bundle: bundles.Bundle, folder: str, edits: list[model.Edits], notes: list[str]
) -> list[model.Edits]:
    """Return edits with the driver by its view, if this host has one that fits the container."""
    table = next((one["farm"]["table"] for one in edits if "farm" in one), None)
    if table is None:
        return edits
    if not table["view"]:
        notes.append(f"layout classic: {table['why']}")
        return edits
    from nvct.container.deliver import (
        layout_farm as farm,  # nobody else loads what writes into a root
    )

    return farm.instead(bundle, folder, edits, notes.append)


def origin_of(bundle: bundles.Bundle, config: Config, host: Host) -> Origin | None:
    """Return where a container comes from, for the rules of the policy; None without rules."""
    if not config.policy:
        return None
    from nvct.container.request.origin import Origin
    from nvct.container.shim.plan_devices import PlanDevices

    plans = PlanDevices(config, host)
    return Origin(
        bundle, plans.count, check_known=plans.check_known, aliases=plans.aliases, plans=plans
    )


def edits_for(
    request: Request, config: Config, host: Host, *, anew: bool = False
) -> list[model.Edits]:
    """Return the compiled edits for a request, from the plans in force.

    Args:
        request: what is asked for.
        config: the configuration in force.
        host: the machine.
        anew: whatever is kept does not describe it.

    Raises:
        NvctError: a device cannot be had.
    """
    from nvct.config.model import path_from

    path = path_from(host.env)
    for last in (True,) if anew else (False, True):
        try:
            return _collect(request, config, host, path, anew=last)
        except model.StalePlanError as error:
            if last:
                raise HostError(
                    f"{error} keeps changing while it is being read",
                    hint="is the driver being installed, or MIG being configured? try again",
                ) from error
        except StaleSpecError:
            # What was missing may be there now: a refusal is looked at again, a success is not.
            if last:
                raise
        except (LookupError, TypeError, AttributeError):  # of a kept plan that is damaged
            if last:
                raise
    raise AssertionError


def _collect(
    request: Request, config: Config, host: Host, path: str, *, anew: bool
) -> list[model.Edits]:
    wanted, compat = request.capabilities, config.wants_compat(request.mode)
    ids = request.ids
    more: list[model.Edits] = []
    if request.extras:
        from nvct.container.shim import extras  # few containers ask for any

        ids, more = extras.collect(request, host, path, anew=anew)
    if not ids:
        plan, kind = plan_of(request, host, request.kind, path, anew=anew, bare=True)
        _check_requirements(request, plan, [], host, path)
        return [*model.common(plan, kind, wanted, compat=compat), *more]
    edits: list[model.Edits] = []
    for plan, names in plans_of(request, ids, host, path, anew=anew):
        _refuse_conflicts(plan, names)
        if request.mode == "csv":
            request.notes += [text for text in plan["problems"] if text not in request.notes]
        _check_requirements(request, plan, names, host, path)
        edits.extend(model.collect(plan, names, wanted, compat=compat))
    return [*edits, *more]


def plans_of(
    request: Request, ids: list[str], host: Host, path: str, *, anew: bool
) -> list[tuple[model.Plan, list[str]]]:
    """Return the plans that answer for ids, each with the full names that it is asked for."""
    answers: dict[str, tuple[model.Plan, str]] = {}
    groups: dict[int, tuple[model.Plan, list[str]]] = {}
    for word in ids:
        asked, equals, device = word.partition("=")
        if not equals:
            asked, device = request.kind, word
        if asked not in answers:
            answers[asked] = plan_of(request, host, asked, path, anew=anew)
        plan, kind = answers[asked]
        groups.setdefault(id(plan), (plan, []))[1].append(f"{kind}={device}")
    return list(groups.values())


def _check_requirements(
    request: Request, plan: model.Plan, names: list[str], host: Host, path: str
) -> None:
    if not request.requirements:
        return
    from nvct.container.request.requirements import check, undecided

    check(request.requirements, plan["host"])
    if names and undecided(request.requirements, plan["host"]):
        from nvct.container.shim import extras

        extras.check_gpus(request, plan["host"], names, host, path)


def _refuse_conflicts(plan: model.Plan, names: list[str]) -> None:
    for name in names:
        files = plan.get("conflicts", {}).get(name)
        if files:
            raise CdiConflictError(
                f"{name} is defined by {' and '.join(files)}",
                hint="remove it from all but one of them",
            )


def plan_of(
    request: Request, host: Host, kind: str, path: str, *, anew: bool, bare: bool = False
) -> tuple[model.Plan, str]:
    """Return the plan that answers for a kind, and the kind's name in it.

    A registry without any nvidia.com/gpu spec is no reason to fail: nvct's own spec answers.
    `bare` says that no GPU is asked for.
    """
    if kind != RUNTIME_KIND:
        plan = host.plan("registry", path, anew=anew)
        if kind in plan["kinds"] or kind != OWN_KIND:
            return plan, kind
    own = "own-csv-all" if request.extras.csv_all else "own"
    if bare and own == "own":
        own = "own-none"  # without NVML, and of a host that has a driver and no GPU to give
    try:
        return host.plan(own, path, anew=anew), OWN_KIND
    except NvctError as error:
        if not error.hint:
            error.hint = "is the NVIDIA driver installed and loaded? try nvidia-smi"
        raise
