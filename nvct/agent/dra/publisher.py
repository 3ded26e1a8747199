# SPDX-License-Identifier: Apache-2.0
"""Keeps the ResourceSlices of a node on the API server up to date.

It compares them at the start, when the devices change, when another program changes them (the
kubelet deletes a node's slices when it starts), and after each watch. It writes only differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from nvct.agent.core.logs import Log, Problem
from nvct.agent.core.waiting import Backoff, unless, until_set
from nvct.agent.dra import slices
from nvct.agent.dra.devices import DRIVER, Offer
from nvct.agent.kubernetes.cluster import NOT_FOUND, Cluster, ClusterError, Listing, Object
from nvct.agent.kubernetes.node_watch import find_node
from nvct.errors import HostError

MANAGER = "nvct-dra"
"""The field manager of the slices."""
APART_S = 1.0
"""The fewest seconds between two writes while another program changes the slices, too."""
WATCH_S = 600.0
"""How long a watch lasts. After each, three requests compare and watch again: 18 an hour."""
INVALID = 422
"""HTTP's status for an object that breaks a rule of its kind."""


class Publisher:
    """The slices of one node.

    Attributes:
        version: of the API, "" before the API server has answered.
        is_current: whether the slices on the API server are those of the offer.
        lacks_counters: whether the API server knows no shared counters.
        lacks_taints: whether it knows no taints of devices.
        lacks_shares: whether it knows no devices that several claims share.
        lacks_marks: whether it refuses taints without an effect.

    Args:
        is_alone: reports whether no other driver of this name serves the kubelet.
    """

    def __init__(
        self, cluster: Cluster, node: str, log: Log, is_alone: Callable[[], Awaitable[bool]]
    ) -> None:
        self.version = ""
        self.written = 0
        self.problem = Problem(log.warning)
        self.is_current = False
        self.lacks_counters = False
        self.lacks_taints = False
        self.lacks_shares = False
        self.lacks_marks = False
        self._cluster = cluster
        self._node = node
        self._fields = {"spec.nodeName": node, "spec.driver": DRIVER}
        self._log = log
        self._is_alone = is_alone
        self._offer: Offer | None = None
        self._changed = asyncio.Event()
        self._versions: dict[str, str] = {}
        self._since = ""
        self._wrote_at = 0.0

    def offer(self, offer: Offer) -> None:
        """Set what the node offers from now on."""
        if offer != self._offer:
            self._offer = offer
            self.is_current = False
            self._changed.set()

    @property
    def offers_nothing(self) -> bool:
        """Return whether no device is offered."""
        return self._offer == Offer()

    async def run(self) -> None:
        """Keep the slices until canceled."""
        backoff = Backoff(spread=(0.8, 1.2))
        while True:
            if self._offer is None:
                await self._changed.wait()
            self._changed.clear()
            self.is_current = False
            try:
                await self._write()
                self.is_current = not self._changed.is_set()
                backoff.reset()
                self.problem.clear()
                await unless(self._changed, self._other_changes())
                # Two drivers that do not agree, as during an update, must not flood the server.
                await until_set(self._changed, self._wrote_at + APART_S - time.monotonic())
            except HostError as error:
                if isinstance(error, ClusterError) and error.status == NOT_FOUND:
                    self.version = ""  # the server may have another now
                self.problem.tell(error)
                await until_set(self._changed, backoff.next_s())

    async def _write(self) -> None:
        """Write and delete slices, so that they are those of the offer."""
        node = await find_node(self._cluster, self._node)
        version = await self.find_version()
        found = await self._list(version)
        others = slices.others(found.objects, self._node)
        await self._remove_others(version, others)
        own = [one for one in found.objects if name_of(one) not in others]
        contents = slices.contents(self._offer or Offer(), version)
        changes = slices.changes(own, contents, node)
        self._versions = {name_of(one): version_of(one) for one in own}
        for manifest in changes.apply:
            applied = await self._apply(version, manifest)
            self._versions[name_of(applied)] = version_of(applied)
        for name in changes.delete:
            await self._cluster.delete(slices.kind(version), name)
            self._versions.pop(name, None)
        count = len(changes.apply) + len(changes.delete)
        if count:
            are = "s were" if count > 1 else " was"
            self._log.info(f"{count} ResourceSlice{are} written or deleted for Node {self._node}")
            self._wrote_at = time.monotonic()
        self.written += count
        self._since = found.version

    async def _remove_others(self, version: str, names: Iterable[str]) -> None:
        """Delete the slices of another driver of this name; HostError if it serves the kubelet.

        The kubelet deletes them only if no driver of this name registers within 30 s of its end.
        """
        for name in names:
            if not await self._is_alone():
                raise HostError(
                    f"another driver {DRIVER} offers the GPUs of Node {self._node} by "
                    f"ResourceSlice {name}",
                    hint="remove NVIDIA's DRA driver from this node",
                )
            await self._cluster.delete(slices.kind(version), name)
            self._log.info(f"ResourceSlice {name} was deleted: its driver is gone")

    async def _apply(self, version: str, manifest: Object) -> Object:
        has_counters = "sharedCounters" in manifest["spec"]
        try:
            applied = await self._cluster.apply(slices.kind(version), manifest, MANAGER)
        except ClusterError as error:
            self.lacks_counters |= has_counters and error.status == INVALID
            self.lacks_marks |= error.status == INVALID and any(
                taint["effect"] == slices.NO_EFFECT
                for device in manifest["spec"].get("devices", ())
                for taint in device.get("taints", ())
            )
            raise
        if has_counters and "sharedCounters" not in applied["spec"]:
            self.lacks_counters = True
            raise ClusterError(
                "the API server knows no shared counters: MIG devices are not made on demand",
                hint="use Kubernetes 1.36 or later, or set feature gate DRAPartitionableDevices",
            )
        self.lacks_taints |= _is_dropped("taints", manifest, applied)
        if _is_dropped("allowMultipleAllocations", manifest, applied):
            self.lacks_shares = True
            raise ClusterError(
                "the API server does not let several claims share a device, so the memory of GPUs "
                "is not shared",
                hint="use Kubernetes 1.36 or later, or set feature gate DRAConsumableCapacity",
            )
        return applied

    async def find_version(self) -> str:
        """Return the newest version of the API that the server has; ClusterError if none."""
        if self.version:
            return self.version
        try:
            self.version, _ = await slices.newest(self._list)
        except ClusterError as error:
            if error.status != NOT_FOUND:
                raise
            raise ClusterError(
                f"the API server does not serve {' or '.join(slices.VERSIONS)} of {slices.GROUP}",
                hint="dynamic resource allocation needs Kubernetes 1.32 or later; before 1.34 "
                "enable it: --feature-gates=DynamicResourceAllocation=true "
                f"--runtime-config={slices.GROUP}/v1beta1=true",
            ) from error
        is_old = self.version != slices.VERSIONS[0]
        self.lacks_taints |= is_old
        self.lacks_shares |= is_old
        return self.version

    async def check_version(self, version: str) -> None:
        """Raise ClusterError if the server no longer has this version, or does not answer."""
        try:
            await self._list(version)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                self.version = ""
            raise

    async def _other_changes(self) -> None:
        """Wait until another program changes a slice, or the watch ends."""
        kind = slices.kind(await self.find_version())
        watch = self._cluster.watch(kind, self._fields, self._since, WATCH_S)
        async with contextlib.aclosing(watch) as changes:
            async for what, found in changes:
                known = self._versions.get(name_of(found))
                if what == "DELETED" and known is None:
                    continue  # deleted here
                if what == "DELETED" or is_newer(version_of(found), known):
                    return

    async def _list(self, version: str) -> Listing:
        return await self._cluster.list(slices.kind(version), fields=self._fields)


def _is_dropped(field: str, manifest: Object, applied: Object) -> bool:
    """Return whether the API server has dropped a field of devices that it does not know."""
    has, keeps = (
        any(field in device for device in one["spec"].get("devices", ()))
        for one in (manifest, applied)
    )
    return has and not keeps


def name_of(found: Object) -> str:
    """Return the name of an object."""
    return str(found["metadata"]["name"])


def version_of(found: Object) -> str:
    """Return the resourceVersion of an object."""
    return str(found["metadata"]["resourceVersion"])


def is_newer(version: str, known: str | None) -> bool:
    """Return whether a resourceVersion is newer than the known one; a watch can send old ones."""
    if known is None:
        return True
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known
