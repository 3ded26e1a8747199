# SPDX-License-Identifier: Apache-2.0
"""The host that a container is created on: access to its plans. Hot."""

from __future__ import annotations

import time

from nvct import paths
from nvct.config.model import path_from
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Plan
    from nvct.container.plan.store import Store


class Host:
    """Run directory, environment, interpreter of the cold side, and procfs.

    Attributes:
        config_path: of the config.toml in force.
    """

    __slots__ = ("cold", "config_path", "env", "proc_root", "store")

    def __init__(
        self, store: Store, env: dict[str, str], cold: str, proc_root: str = "/proc"
    ) -> None:
        self.store = store
        self.env = env
        self.cold = cold
        self.proc_root = proc_root
        self.config_path = path_from(env)

    def plan(self, which: str, *, fresh: bool = False) -> Plan:
        """Return a plan; compile it again if a fingerprint does not match.

        Args:
            which: "registry", "own", or another task of `nvct.compile`.
            fresh: whether to ignore plans that are older than this call.

        Raises:
            NvctError: the cold side cannot compile the plan, and why.
        """
        asked = time.time_ns()
        name = which + paths.PLAN_SUFFIX

        def kept() -> Plan | None:
            plan = self.kept(which)
            if plan is not None and _settle(plan):
                self.store.write_json(name, plan)
            return plan

        def made_meanwhile() -> Plan | None:
            plan = kept()
            return plan if plan is not None and plan.get("made", 0) >= asked else None

        def made() -> Plan:
            args = [which, self.config_path, self.store.path]
            return cold_process.run(self.cold, args, self.env)  # type: ignore[return-value]  # a plan

        found = None if fresh else kept()
        if found is not None:
            return found
        from nvct.container import cold_process, negative_cache

        known = negative_cache.Failures(self.store, which, self.config_path, self.proc_root)
        again = made_meanwhile if fresh else kept
        return cold_process.under_lock(self.store, again, made, failures=known)

    def kept(self, which: str) -> Plan | None:
        """Return the plan in the run directory, None if it is stale; write nothing."""
        from nvct.container.plan.model import is_current

        plan = self.store.read_plan(which + paths.PLAN_SUFFIX)
        if plan is None or plan.get("config") != self.config_path or not is_current(plan):
            return None
        return plan  # type: ignore[return-value]  # what our own compiler wrote

    def defines(self, name: str) -> bool:
        """Report whether a CDI spec defines a device; False if the specs cannot be read."""
        try:
            plan = self.plan("registry")
        except NvctError:
            return False
        return name in plan["devices"] or name in plan.get("conflicts", {})


def _settle(plan: Plan) -> bool:
    """Replace hash fingerprints of young files by cheaper ones; report whether any changed."""
    from nvct.container.plan import fingerprints

    now = time.time_ns()
    groups = [plan["facts"], plan["farm"]["facts"]] if "farm" in plan else [plan["facts"]]
    return True in [fingerprints.settle(facts, now) for facts in groups]
