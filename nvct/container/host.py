# SPDX-License-Identifier: Apache-2.0
"""The host that a container is created on: access to its plans. Hot."""

from __future__ import annotations

import posix
import time

from nvct import paths
from nvct.config.model import path_from
from nvct.errors import HostError, NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Plan
    from nvct.container.plan.store import Store
    from nvct.container.request.model import Want


class Host:
    """Run directory, environment, interpreter of the cold side, and procfs."""

    __slots__ = ("cold", "config_path", "env", "keeper", "proc_root", "store")

    def __init__(
        self, store: Store, env: dict[str, str], cold: str, proc_root: str = "/proc"
    ) -> None:
        self.store = store
        self.env = env
        self.cold = cold
        # PID of the process that holds leases of free devices; at first this one
        self.keeper = posix.getpid()
        self.proc_root = proc_root
        self.config_path = path_from(env)

    def has_gpu(self, sys_root: str) -> bool:
        """Report whether an NVIDIA GPU is on the PCI bus, also without a driver."""
        folder = f"{sys_root}/bus/pci/devices"
        try:
            return any(_is_gpu(f"{folder}/{name}") for name in posix.listdir(folder))
        except OSError:
            return False

    def plan(self, name: str, *, fresh: bool = False) -> Plan:
        """Return a plan; compile it again if a fingerprint does not match.

        A `fresh` plan is not older than this call. Raises NvctError, which says why the plan
        cannot be compiled.
        """
        start = time.time_ns()

        def stored() -> Plan | None:
            plan = self.stored(name)
            if plan is not None and _settle(plan):
                self.store.write_json(name + paths.PLAN_SUFFIX, plan)
            return plan

        def stored_since_start() -> Plan | None:
            plan = stored()
            return plan if plan is not None and plan.get("made", 0) >= start else None

        def compiled() -> Plan:
            args = [name, self.config_path, self.store.path]
            return cold_process.run(self.cold, args, self.env)  # type: ignore[return-value]  # a plan

        plan = None if fresh else stored()
        if plan is not None:
            return plan
        from nvct.container import cold_process

        failures = cold_process.Failures(self.store, name, self.config_path, self.proc_root)
        look_up = stored_since_start if fresh else stored
        return cold_process.under_lock(self.store, look_up, compiled, failures=failures)

    def stored(self, name: str) -> Plan | None:
        """Return the plan in the run directory, None if missing or stale; write nothing."""
        from nvct.container.plan.model import is_current

        plan = self.store.read_plan(name + paths.PLAN_SUFFIX)
        if plan is None or plan.get("config") != self.config_path or not is_current(plan):
            return None
        return plan  # type: ignore[return-value]  # what our own compiler wrote

    def choose(self, want: Want, source: str) -> tuple[list[str], str]:
        """Return the UUIDs of free devices, with leases of `keeper`, and the path of the hook.

        Raises HostError if too few are free, with who has the others, or if no lease can be made.
        """
        from nvct.container import leases

        found, program = self.free(want, source)
        folder = leases.folder_of(self.env)
        held = leases.claim(folder, want, list(found), self.keeper)
        return [found[device] for device in held], program

    def free(self, want: Want, source: str) -> tuple[dict[str, str], str]:
        """Return the fitting free devices, those with the least memory in use first, and the hook.

        The devices are UUIDs by their names in leases, the hook is a path. Raises HostError if
        too few are free, with who has the others, or if the cold side does not answer.
        """
        from nvct.container import cold_process, leases

        folder = leases.folder_of(self.env)
        args = ["free", self.config_path, folder, str(want.memory), want.profile]
        answer = cold_process.run(self.cold, args, self.env, module="nvct.doctor.free_gpus")
        devices: dict[str, str] = answer["devices"]  # type: ignore[assignment]  # from our cold side
        used: list[str] = answer["used"]  # type: ignore[assignment]
        asks = f"{source} asks for {want.word}"
        if len(devices) >= want.count:
            return devices, str(answer["hook"])
        fitting: int = answer["fitting"]  # type: ignore[assignment]
        if fitting < want.count:
            kind = "MIG devices" if want.profile else "GPUs outside MIG mode"
            raise HostError(f"{asks}, but {fitting} {kind} fit: {answer['there']}")
        free = f"{len(devices) or 'none'} of {fitting} are free"
        raise HostError(f"{asks}, but {free}; {'; '.join(used)}", hint=leases.HINT)

    def give_back(self) -> None:
        """End the leases of `keeper`."""
        from nvct.container import leases

        leases.release(leases.folder_of(self.env), self.keeper)

    def defines(self, name: str) -> bool:
        """Report whether a CDI spec defines a device; False if the specs cannot be read."""
        try:
            plan = self.plan("registry")
        except NvctError:
            return False
        return name in plan["devices"] or name in plan.get("conflicts", {})


def _is_gpu(folder: str) -> bool:
    """Report whether a PCI device of sysfs is a display controller (class 03h) of NVIDIA."""
    from nvct.linux.files import read_bytes

    vendor, base = (read_bytes(f"{folder}/{name}") for name in ("vendor", "class"))
    return vendor.strip() == b"0x10de" and base.startswith(b"0x03")


def _settle(plan: Plan) -> bool:
    """Replace hash fingerprints of young files by cheaper ones; report whether any changed."""
    from nvct.container.plan import fingerprints

    now = time.time_ns()
    groups = [plan["facts"], plan["farm"]["facts"]] if "farm" in plan else [plan["facts"]]
    return True in [fingerprints.settle(facts, now) for facts in groups]
