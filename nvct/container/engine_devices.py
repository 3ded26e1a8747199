# SPDX-License-Identifier: Apache-2.0
"""The devices that an engine put into config.json, as a request of origin `engine`.

Hot; loaded only where config.toml has rules and says engine-devices = "checked".
"""

from __future__ import annotations

from nvct.container.device_access import GPU_MINORS, Access, Removal, close
from nvct.container.plan_devices import PlanDevices
from nvct.container.request import device_numbers
from nvct.container.request.case import EXTRA_NAMES, IMEX_KIND, Case, extras_of
from nvct.container.request.device_numbers import NVIDIA_MAJOR, is_gpu
from nvct.container.request.model import BY_ANNOTATION, BY_ENGINE, Request
from nvct.container.request.origin import Origin
from nvct.container.request.policy import admits
from nvct.container.request.resolve import CAP_SYS_ADMIN, given_by, parse_env
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.host import Host
    from nvct.container.request.device_numbers import Nodes, Number
    from nvct.container.request.kubelet_record import Answer
    from nvct.container.request.model import Env
    from nvct.oci.bundle import Bundle

EVERYTHING = "management.nvidia.com/gpu=all"
"""The name that stands for a device rule for every device of the host."""


class EngineCase(Case):
    """A request of origin `engine`; `given_nodes` are the device numbers that the kubelet gave."""

    __slots__ = ("given_nodes",)

    def __init__(
        self, request: Request, nodes: Nodes, config: Config, origin: Origin, *, privileged: bool
    ) -> None:
        super().__init__(request, BY_ENGINE, {}, config, origin, privileged=privileged)
        self._injected = nodes
        self.given_nodes: set[Number] = set()

    @property
    def is_given(self) -> bool:
        """Whether the kubelet gave every device."""
        is_narrow = bool(self.given_nodes) and EVERYTHING not in self.names
        return is_narrow and set(self.injected) <= self.given_nodes


def check(
    bundle: Bundle,
    config: Config,
    host: Host,
    origin: Origin | None,
    request: Request | None,
    *,
    devices: list[str],
    notes: list[str],
    trouble: NvctError | None,
) -> Removal | None:
    """Apply the policy to the devices of an engine; return their removal, None if all stay.

    `request` is what the container itself asks for, which the policy allows. The names of the
    devices that the engine gave are added to `devices`.

    Raises:
        NotPermittedError: the policy denies the devices.
        NvctError: `trouble`, the error of config.toml, if the engine gave any devices.
    """
    plans = PlanDevices(config, host)
    origin = origin or Origin(bundle, plans)
    access = Access(bundle, origin, plans.drivers())
    if access.is_open:
        close(bundle, access)
    if not access.nodes and not access.wide:
        return None
    nodes, requested = _remaining(access, plans, request)
    asked = _request(access, nodes, plans, requested)
    if not (asked.extras or asked.ids):
        return None
    devices += [*asked.ids, *extras_of(asked)]
    if trouble is not None:
        raise trouble
    case = EngineCase(asked, nodes, config, origin, privileged=CAP_SYS_ADMIN in bundle.bounding)
    variables = parse_env(bundle.env)
    case.way = [*access.wide, *(access.ways[n] for n in nodes if n in access.ways)][0]
    case.parse = lambda answer: _given(case, answer, plans, variables)
    before, origin.results = origin.results, []
    try:
        is_allowed = admits(case, notes)
    finally:
        for result in origin.results:
            result.rule += f" ({BY_ENGINE})"
        origin.results = before + origin.results
    return None if is_allowed else Removal(access, case.given_nodes | requested)


def _remaining(
    access: Access, plans: PlanDevices, request: Request | None
) -> tuple[Nodes, set[Number]]:
    """Return the nodes that an allowed request does not give anyway, and those that it gives."""
    if access.wide:
        for minor in GPU_MINORS:
            access.nodes.setdefault(("c", NVIDIA_MAJOR, minor), f"/dev/nvidia{minor}")
    try:
        access.keep_known(plans.gpus())
        access.capabilities.update(*(device.capabilities for device in plans.devices()))
        same = plans.injected(request) if request is not None else {}
    except NvctError:
        same = {}
    return {n: path for n, path in access.nodes.items() if n not in same}, set(same)


def _request(access: Access, nodes: Nodes, plans: PlanDevices, requested: set[Number]) -> Request:
    """Return a request for nodes, which names devices where plans have them, else paths.

    A MIG device is in it if its capability is among the nodes, even if `requested` has its GPU.
    """
    numbers, names, named, seen = set(nodes), [], set(), []
    try:
        for device in plans.devices():
            own = device.gpus | (device.capabilities if device.is_mig else set())
            if own in seen:  # the same device, of another kind
                continue
            if own & numbers and own <= numbers | requested and not device.is_all:
                seen.append(own)
                names.append(device.names[0].partition("=")[2])
                named |= own
    except NvctError:
        pass
    names += [
        path for number, path in nodes.items()
        if (is_gpu(number) or number in access.capabilities) and number not in named
    ]  # fmt: skip
    request = Request([EVERYTHING] if access.wide else names, BY_ENGINE)
    attributes = {name: attribute for attribute, name in EXTRA_NAMES.items()}
    for extra in plans.extras(nodes):
        kind, _, channel = extra.partition("=")
        if kind == IMEX_KIND:
            request.extras.imex.append(int(channel))
        elif extra in attributes:
            setattr(request.extras, attributes[extra], True)
    request.none = False
    return request


def _given(case: EngineCase, answer: Answer, plans: PlanDevices, variables: Env) -> Request | None:
    """Note in `case` which devices an answer of a device plugin gives; return it as a request.

    Raises:
        NvctError: the answer is malformed, or has an unknown device.
    """
    nodes: Nodes = {}
    for path in answer.nodes:
        device_numbers.add_mounted(nodes, path, 0)
    request = given_by(
        answer, BY_ANNOTATION, variables, case.config, [], privileged=case.privileged, defined=None
    )
    named = Request(answer.names, BY_ENGINE) if answer.names else None
    if named is not None:
        named.mode = "cdi"
    for part in (request, named):
        if part is not None:
            nodes.update(plans.injected(part))
    case.given_nodes = set(nodes)
    return request or named or (Request(answer.nodes, BY_ENGINE) if nodes else None)
