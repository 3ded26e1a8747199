# SPDX-License-Identifier: Apache-2.0
"""The brakes of healing: nodes that heal at once, resets a GPU in an hour, a stop of the cluster.

A node heals while it holds one of the Leases `nvct-heal-0` to `-N`. It takes one by
compare-and-swap and renews it. A Lease that nobody has renewed for as long as its holder promised
is free: this process has watched it for that time, so the clocks of nodes do not matter.

A node with a failed GPU notes that in the Lease `nvct-heal-stop`. If many nodes do so within ten
minutes, the last one stops healing in the cluster until a person allows it again: a reset does not
mend such a cause. The chart makes the Leases, because a right to create cannot be limited to
names. Without the API server, no node begins to heal, and a node that heals goes on.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from nvct import typed
from nvct.agent.core.logs import Log
from nvct.agent.health.store import Store
from nvct.agent.kubernetes.cluster import CONFLICT, Cluster, ClusterError, Kind, Object
from nvct.errors import UsageError

LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", is_namespaced=True)
STOP = "nvct-heal-stop"
FAILING, STOPPED = "nvct.dev/failing", "nvct.dev/stopped"
"""Annotations of that Lease: when nodes have failed, in seconds since 1970, by name; and why
healing is stopped."""
OPENS = f"kubectl annotate -n {{}} lease {STOP} {STOPPED}-"
TOGETHER_S = 600
"""Nodes that fail within this time fail together."""
KEPT_S = 24 * 3600
"""How long a node's failure is kept: a node whose clock is wrong must not remove others'."""
LONGEST_S = 600.0
"""The most seconds that a Lease stays taken without renewal, whatever its holder has promised."""
HOUR_S = 3600.0
TRIES = 5
"""Attempts at a write that conflicts with other nodes', with a pause of up to PAUSE_S each."""
PAUSE_S = 0.5
MANAGER = "nvct-heal"
RESETS = "heal-resets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of the brakes.

    Attributes:
        nodes: how many heal at once; 0 for any number, without Leases.
        stop: how many nodes must fail together to stop healing in the cluster; 0 for never.
        resets: how many of one GPU in an hour.
        lease_s: how long a node that has died keeps its Lease.
    """

    nodes: int = 1
    stop: int = 5
    resets: int = 2
    lease_s: int = 60


VARIABLES = {
    "nodes": "NVCT_REMEDIATION_NODES",
    "stop": "NVCT_REMEDIATION_STOP",
    "resets": "NVCT_REMEDIATION_RESETS",
}
"""The variable of each limit."""


def limits(env: Mapping[str, str]) -> Limits:
    """Return the limits that the environment sets.

    Raises:
        UsageError: a variable is not a number.
    """
    known: dict[str, int] = {}
    for name, variable in VARIABLES.items():
        text = env.get(variable, "")
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise UsageError(f"{variable}={text!r} is not a number below 100000", hint="such as 1")
        known[name] = int(text)
    return Limits(**known)


class Brakes:
    """The brakes of one node.

    Args:
        store: where the resets of this boot are kept.
    """

    def __init__(
        self, cluster: Cluster, node: str, limits: Limits, store: Store, log: Log
    ) -> None:
        self._cluster, self._node, self._limits = cluster, node, limits
        self._store, self._log = store, log
        self._renewal: asyncio.Task[None] | None = None
        self._is_counted = False
        self._seen: dict[str, tuple[str, float]] = {}
        self._refusal, self._ask_at = "", 0.0

    async def take(self) -> str:
        """Return "" if one more GPU of this node can be healed now, else why it must wait."""
        if not self._limits.nodes:
            return ""
        if time.monotonic() < self._ask_at:
            return self._refusal
        try:
            self._refusal = await self._stopped() or await self._hold()
        except ClusterError as error:
            self._refusal = f"healing waits for the API server: {error.message}"
        pause_s = self._limits.lease_s / 10 * random.uniform(0.8, 1.2)  # noqa: S311  no secret
        self._ask_at = time.monotonic() + (pause_s if self._refusal else 0)
        return self._refusal

    async def keep(self) -> None:
        """Renew the Lease of this node while it heals, also if an earlier process took it."""
        if self._renewal is None:
            await self.take()

    async def release(self) -> None:
        """Give back the Lease of this node, also if an earlier process took it.

        If the API server does not answer, the Lease becomes free when it expires.
        """
        await self.close()
        self._is_counted = False
        try:
            for name in self._names():
                lease = await self._cluster.find(LEASE, name)
                if lease and _holder(lease) == self._node:
                    await self._write(lease, {"spec": {"holderIdentity": None}})
        except ClusterError as error:
            self._log.warning(f"this node keeps its Lease until it expires: {error.message}")

    async def close(self) -> None:
        """End the renewal; the next process of this node takes the Lease over."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None

    def count_reset(self, gpus: Sequence[str]) -> str:
        """Count a reset that is about to be made; return why it must not be made, "" if it can."""
        now = time.monotonic()
        recent = {
            uuid: [at for at in ats if now - at < HOUR_S] for uuid, ats in self._resets().items()
        }
        for gpu in gpus:
            own = recent.setdefault(gpu, [])
            if len(own) >= self._limits.resets:
                return f"{gpu} was reset {len(own)} times within an hour"
            own.append(now)
        self._store.write({"resets": {uuid: [*ats] for uuid, ats in recent.items() if ats}})
        return self._store.problem

    def uncount_reset(self, gpus: Sequence[str]) -> None:
        """Take back the last reset of GPUs, which was not made."""
        resets = self._resets()
        kept = {uuid: ats[:-1] if uuid in gpus else ats for uuid, ats in resets.items()}
        self._store.write({"resets": {uuid: [*ats] for uuid, ats in kept.items()}})

    def _resets(self) -> dict[str, tuple[float, ...]]:
        """Return when GPUs were reset in this boot, by UUID."""
        document = self._store.read()
        known = document.get("resets") if isinstance(document, dict) else {}
        try:
            return typed.load(dict[str, tuple[float, ...]], known)
        except typed.MalformedError as error:
            self._log.warning(f"the former resets of GPUs are unknown: {error}")
            return {}

    async def _stopped(self) -> str:
        """Note that this node has failed; return why no node can begin to heal, "" if they can."""
        for _ in range(TRIES):
            lease = await self._cluster.find(LEASE, STOP)
            if lease is None:
                return f"there is no Lease {STOP}, which the chart makes"
            notes = lease["metadata"].get("annotations") or {}
            if STOPPED in notes:
                self._is_counted = True
                opens = OPENS.format(lease["metadata"]["namespace"])
                return f"healing is stopped in this cluster: {notes[STOPPED]}; to resume: {opens}"
            if self._is_counted or not self._limits.stop:
                return ""
            now = int(time.time())
            known = {**_recent(notes.get(FAILING, ""), now), self._node: now}
            failing = [node for node, at in known.items() if abs(now - at) < TOGETHER_S]
            changed: Object = {FAILING: json.dumps(known)}
            if len(failing) >= self._limits.stop:
                text = f"{len(failing)} nodes failed within ten minutes: {', '.join(failing)}"
                changed = {FAILING: None, STOPPED: text}
            if await self._write(lease, {"metadata": {"annotations": changed}}) is not None:
                self._is_counted = True
                if STOPPED in changed:
                    self._log.warning(f"healing stops in this cluster: {changed[STOPPED]}")
                continue  # and read the Lease as any other node does
            await asyncio.sleep(random.uniform(0, PAUSE_S))  # noqa: S311  no secret
        return "other nodes fail at the same moment"

    async def _hold(self) -> str:
        """Take a Lease unless this node has one; return why none is free, "" if it has one."""
        if self._renewal is not None:
            return ""
        holders = []
        for name in random.sample(self._names(), self._limits.nodes):
            lease = await self._cluster.find(LEASE, name)
            if lease is None:
                return f"there is no Lease {name}, which the chart makes"
            if not self._is_free(lease):
                holders.append(_holder(lease))
                continue
            spec = {"holderIdentity": self._node, "leaseDurationSeconds": self._limits.lease_s}
            taken = await self._write(
                lease, {"spec": {**spec, "acquireTime": _now(), **_renewed()}}
            )
            if taken is not None:
                self._renewal = asyncio.create_task(self._renew(taken))
                return ""
            holders.append("another node")
        return f"{self._limits.nodes} nodes heal already: {', '.join(sorted(holders))}"

    def _is_free(self, lease: Object) -> bool:
        """Return whether nobody holds a Lease, or its holder has not renewed it as promised."""
        if _holder(lease) in ("", self._node):
            return True
        name, version = lease["metadata"]["name"], lease["metadata"]["resourceVersion"]
        known, since = self._seen.get(name, ("", 0.0))
        if known != version:
            self._seen[name] = version, time.monotonic()
            return False
        promised_s = float(lease["spec"].get("leaseDurationSeconds") or self._limits.lease_s)
        return time.monotonic() - since > min(promised_s, LONGEST_S)

    async def _renew(self, lease: Object) -> None:
        while True:
            await asyncio.sleep(self._limits.lease_s / 3)
            try:
                renewed = await self._write(lease, {"spec": _renewed()})
                found = renewed or await self._cluster.find(LEASE, lease["metadata"]["name"])
            except ClusterError as error:
                self._log.warning(f"this node goes on healing without a Lease: {error.message}")
                continue
            if found is None or _holder(found) != self._node:
                holder = _holder(found) if found else "nobody"
                self._log.warning(f"this node goes on healing, but {holder} has its Lease")
                return
            lease = found

    async def _write(self, lease: Object, patch: Mapping[str, Object]) -> Object | None:
        """Change a Lease and return it; None if somebody has changed it since."""
        known = {key: lease["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
        metadata = {**patch.get("metadata", {}), **known}
        try:
            return await self._cluster.merge(LEASE, {**patch, "metadata": metadata}, MANAGER)
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            return None

    def _names(self) -> list[str]:
        return [f"nvct-heal-{number}" for number in range(self._limits.nodes)]


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _renewed() -> Object:
    return {"renewTime": _now()}


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"


def _recent(text: str, now: int) -> dict[str, int]:
    """Return when nodes have failed, by name, without old failures."""
    try:
        known = typed.load(dict[str, int], json.loads(text or "{}"))
    except (ValueError, RecursionError, typed.MalformedError):
        return {}
    return {node: at for node, at in known.items() if abs(now - at) < KEPT_S}
