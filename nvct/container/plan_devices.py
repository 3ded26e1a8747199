# SPDX-License-Identifier: Apache-2.0
"""Looks devices up in the plans, for the rules of the policy.

Hot; loaded only if the policy has rules.
"""

from __future__ import annotations

from nvct.container.edits import collect, name_in, plan_of, plans_of, stored_or_fresh
from nvct.container.plan import model
from nvct.container.request.model import OWN_KIND, RUNTIME_KIND, Request
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvct.config.model import Config
    from nvct.container.host import Host
    from nvct.container.request.device_numbers import Device, Nodes, Number, Selection

NUMBERS = ("devices", "driver/nvidia-caps/mig-minors")
"""Files of procfs that map the device numbers of extras to names."""


class PlanDevices:
    """The devices of this machine's plans."""

    __slots__ = ("_config", "_host")

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host

    def count(self, request: Request, kind: str) -> int:
        """Return how many devices "all" of a kind selects; NvctError if no plan has the kind."""
        plan, name = plan_of(request, self._host, kind)
        return len(names_of(plan, f"{name}=all") or [name])

    def check_known(self, request: Request) -> None:
        """Raise UnknownDeviceError if a requested device is missing, NvctError without a plan."""
        for plan, names in plans_of(request, request.ids, self._host):
            model.check_known(plan, names)

    def aliases(self, request: Request, name: str) -> list[list[str]] | None:
        """Return all names of each device that a name selects; None if they are unknown."""
        kind, _, device = name.partition("=")
        requested_kind = kind if name in request.ids else request.kind  # as plans_of does
        try:
            plan, kind = plan_of(request, self._host, requested_kind)
        except NvctError:
            return None
        return names_of(plan, name_in(plan, kind, device))

    def injected(self, request: Request) -> Nodes:
        """Return the nodes that a container would get; NvctError if a device is missing."""
        from nvct.container.request.device_numbers import nodes_of

        return nodes_of(
            stored_or_fresh(lambda fresh: collect(request, self._config, self._host, fresh=fresh))
        )

    def select(
        self, request: Request, nodes: Nodes, fits: Callable[[Sequence[str]], bool]
    ) -> Selection:
        """Return the device numbers of all devices whose names match; NvctError without a plan.

        The plan of GPUs is needed if one of the nodes, which the container would get, is a GPU.
        """
        from nvct.container.request import device_numbers

        plans = [self._host.plan("registry")]
        try:
            plans.append(plan_of(request, self._host, RUNTIME_KIND)[0])
        except NvctError:
            if any(map(device_numbers.is_gpu, nodes)):
                raise
        return device_numbers.select(plans, OWN_KIND, fits)

    def extras(self, nodes: Nodes) -> set[str]:
        """Return the CDI names of extras that own one of the nodes."""
        from nvct.container.request.device_numbers import extras_of

        return extras_of(nodes, *map(self._proc, NUMBERS))

    def _proc(self, name: str) -> str:
        from nvct.linux.files import read_bytes

        try:
            return read_bytes(f"{self._host.proc_root}/{name}").decode("ascii", "replace")
        except OSError:
            return ""

    def drivers(self) -> dict[str, int]:
        """Return the majors of character devices by the names of their drivers.

        NVIDIA's major is among them if the host has a GPU, even before its driver is loaded: a
        container keeps wide rights after that, too.
        """
        from nvct.container.request.device_numbers import NVIDIA_MAJOR
        from nvct.linux.device_nodes import parse_proc_devices

        majors = parse_proc_devices(self._proc(NUMBERS[0]))
        if NVIDIA_MAJOR not in majors.values() and self._host.has_gpu(self._config.sys_root):
            majors["nvidia"] = NVIDIA_MAJOR
        return majors

    def devices(self) -> list[Device]:
        """Return the GPUs and MIG devices of this host; NvctError without a plan."""
        from nvct.container.request.device_numbers import devices_of

        return devices_of(self._own())

    def gpus(self) -> set[Number]:
        """Return the device numbers of this host's GPUs, including those in MIG mode.

        Raises NvctError.
        """
        parents = self._own().get("parents", {}).values()
        numbers: set[Number] = {("c", major, minor) for major, minor in parents}
        return numbers.union(*(device.gpus for device in self.devices()))

    def _own(self) -> model.Plan:
        return plan_of(Request([], ""), self._host, RUNTIME_KIND)[0]


def names_of(plan: model.Plan, name: str) -> list[list[str]] | None:
    """Return all names of each device that a name selects in a plan; None if unknown.

    Devices of two specs are distinct even if their own edits are equal, because the common edits
    of the specs may differ.
    """
    kind, _, device = name.partition("=")
    devices = plan["devices"]
    names: dict[tuple[int, int], list[str]] = {}
    for device_name, entry in devices.items():
        if device_name.partition("=")[0] == kind and device_name != f"{kind}=all":
            names.setdefault((entry["spec"], entry["edits"]), []).append(device_name)
    if device == "all":
        return list(names.values()) or None
    return [names[devices[name]["spec"], devices[name]["edits"]]] if name in devices else []
