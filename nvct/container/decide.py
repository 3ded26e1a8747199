# SPDX-License-Identifier: Apache-2.0
"""The decision about one container: what it gets, and why.

Hot. The shim delivers a decision to config.json; the prestart hook and nvidia-container-cli
deliver it into a live container; `nvct explain` prints it. Contract: deciding writes only compiled
plans.
"""

from __future__ import annotations

from nvct.config.model import CHECKED, LAYOUTS, check
from nvct.container.request import resolve
from nvct.errors import NvctError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.config.model import Config
    from nvct.container.deliver.bundle_root import Layout
    from nvct.container.device_access import Removal
    from nvct.container.host import Host
    from nvct.container.plan.model import Edits
    from nvct.container.request.model import Request
    from nvct.container.request.origin import Origin
    from nvct.linux.kernel import Kernel
    from nvct.oci.bundle import Bundle

LAYOUT = "NVIDIA_DRIVER_LAYOUT"


class Decision:
    """What a container gets, and why."""

    __slots__ = (
        "edits", "engine", "error", "layout", "leases", "notes", "origin", "removal", "request",
    )  # fmt: skip

    def __init__(self, request: Request | None) -> None:
        # None if the container requests nothing, or starts without what it requests
        self.request = request
        # of the container, and the results of the policy's rules; None without rules
        self.origin: Origin | None = None
        self.notes: list[str] = []
        self.edits: list[Edits] = []
        # changes the container's root before the start; None if nothing changes
        self.layout: Layout | None = None
        # takes out the devices that the engine gave and the policy ignores; None if all stay
        self.removal: Removal | None = None
        # names of the devices that the engine gave, if the policy decides about them
        self.engine: list[str] = []
        # folder of the leases and program of the hook that keeps them, if free devices were chosen
        self.leases: tuple[str, str] | None = None
        self.error: NvctError | None = None

    @property
    def gives(self) -> bool:
        """Whether the container starts with devices that it asks for or that the engine gave."""
        return self.request is not None or bool(self.engine and self.removal is None)

    def into(self, bundle: Bundle, config: Config, kernel: Kernel | None) -> None:
        """Edit config.json in memory and, with a kernel, the container's root.

        Raises NvctError.
        """
        if self.error is not None:
            raise self.error
        from nvct.container.plan import inject

        if self.request is not None or config.mode != "legacy" or config.policy:
            # In legacy mode the incumbent keeps its hook, which delivers the devices there.
            inject.remove_nvidia_hooks(bundle)
        if self.removal is not None:
            self.removal.apply(bundle)
        if self.layout is not None:
            if kernel is not None:
                self.layout.write(kernel)
            self.edits = self.layout.edits
            self.notes.append(self.layout.summary)
        if self.request is not None:
            inject.apply(bundle, self.edits)
        if self.leases and self.request is not None:
            from nvct.container import leases

            leases.add_hook(bundle, *self.leases, len(self.request.ids))


def decide(
    bundle: Bundle,
    config: Config,
    host: Host,
    *,
    folder: str | None = None,
    trouble: NvctError | None = None,
    request: Request | None = None,
    accept: Callable[[Request], None] | None = None,
) -> Decision:
    """Return what a container gets, and why.

    A `request` takes the place of what config.json asks for. `trouble` is the error of a
    config.toml that cannot be read: `config` then has the defaults, and a request fails with that
    error. The bundle's `folder` is None if no layout can put files into the root. `accept` is
    called with the request before its plans are read, and raises NvctError to refuse it.
    """
    decision = Decision(request)
    try:
        if request is None:
            _ask(decision, bundle, config, host, trouble)
        elif request.free is not None:
            _choose(decision, request, bundle, config, host)
        if decision.request is not None:
            if accept is not None:
                accept(decision.request)
            if trouble is not None:
                raise trouble
            check(config)
            _answer(decision, decision.request, bundle, config, host, folder=folder)
    except NvctError as error:
        decision.error = error
    return decision


def _ask(
    decision: Decision, bundle: Bundle, config: Config, host: Host, trouble: NvctError | None
) -> None:
    if config.policy:
        from nvct.container.plan_devices import PlanDevices  # only where config.toml has rules
        from nvct.container.request.origin import Origin

        decision.origin = Origin(bundle, PlanDevices(config, host))
    decision.request, decision.notes = resolve.resolve_request(
        bundle.env, bundle.mounts, bundle.annotations, bundle.bounding, config,
        origin=decision.origin, defined=host.defines,
        choose=lambda request: _choose(decision, request, bundle, config, host),
    )  # fmt: skip
    if decision.leases and (decision.request is None or decision.request.free is None):
        host.give_back()  # a rule ignores the request
        decision.leases = None
    if config.engine_devices == CHECKED and (config.policy or trouble is not None):
        from nvct.container import engine_devices  # only where config.toml says so

        decision.removal = engine_devices.check(
            bundle, config, host, decision.origin, decision.request,
            devices=decision.engine, notes=decision.notes, trouble=trouble,
        )  # fmt: skip


def _choose(
    decision: Decision, request: Request, bundle: Bundle, config: Config, host: Host
) -> None:
    """Put free devices into a request and lease them.

    Raises RequestError in a pod, and HostError if too few are free.
    """
    from nvct.container import leases
    from nvct.container.request.case import Case
    from nvct.container.request.origin import Origin

    want = request.free
    if want is None:
        return
    origin = Origin(bundle)
    case = Case(request, request.source, bundle.annotations, config, origin, privileged=False)
    if case.kubernetes:
        raise RequestError(
            f"{request.source} asks for {want.word} in a pod, where the kubelet chooses",
            hint="ask for GPUs in resources.limits",
        )
    request.ids, program = host.choose(want, request.source)
    decision.leases = leases.folder_of(host.env), program
    request.notes.append(f"{want.word} is {', '.join(request.ids)}")


def _answer(
    decision: Decision,
    request: Request,
    bundle: Bundle,
    config: Config,
    host: Host,
    *,
    folder: str | None,
) -> None:
    """Choose edits and layout from plans whose mount sources all exist.

    A plan has few fingerprints, so a library can be removed and its plan still match. The mount
    sources are checked last; the low-level runtime reports those that are removed later.
    """
    from nvct.container.edits import collect, stored_or_fresh
    from nvct.container.plan.model import check_mount_sources

    def attempt(fresh: bool) -> list[str]:  # noqa: FBT001  stored, then fresh
        notes: list[str] = []  # of this attempt alone
        decision.edits = collect(request, config, host, fresh=fresh)
        decision.layout = None
        if folder is not None and wants_view(bundle, config, notes):
            decision.layout = _view(bundle, folder, decision.edits, notes)
        check_mount_sources((decision.layout or decision).edits)
        return notes

    decision.notes += stored_or_fresh(attempt)
    if (
        folder is not None
        and decision.layout is None
        and config.params_mask != "true"
        and any("hook" in edit for edit in decision.edits)
    ):
        from nvct.container.deliver import layout_classic  # loads what writes into a root

        decision.layout = layout_classic.decide(
            bundle, folder, decision.edits, decision.notes.append
        )


def wants_view(bundle: Bundle, config: Config, notes: list[str]) -> bool:
    """Report whether a container gets the driver as a view, if a view fits it.

    The container's variable can only choose among the layouts that config.toml allows. Raises
    RequestError if the variable names no layout.
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
        notes.append("layout classic: config.toml allows no other")
    return config.wants_view


def _view(bundle: Bundle, folder: str, edits: list[Edits], notes: list[str]) -> Layout | None:
    """Return the driver's view as a layout; None if this host has no view for the container."""
    table = next((edit["farm"]["table"] for edit in edits if "farm" in edit), None)
    if table is None:
        return None
    if not table["view"]:
        notes.append(f"layout classic: {table['why']}")
        return None
    from nvct.container.deliver import layout_farm  # loads what writes into a root

    return layout_farm.decide(bundle, folder, edits, notes.append)
