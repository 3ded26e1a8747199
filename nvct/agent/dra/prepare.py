# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims for the kubelet, and compares the journal with the API server.

A claim is in the journal before anything is made for it, and until all of that is removed: if the
agent is killed, the next call ends in the old or the new state. Slow work is done without the
journal's lock: MPS control daemons start at the same time, and each GPU makes one MIG device at a
time. The kubelet gets the same answer when it repeats a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from nvct.agent.core.logs import Log, sentence
from nvct.agent.core.resources_mode import ResourcesMode
from nvct.agent.dra import claims, sharing
from nvct.agent.dra.claim_specs import ClaimSpecs, cdi_devices
from nvct.agent.dra.classic import Classic
from nvct.agent.dra.devices import Device
from nvct.agent.dra.instances import Instances, Uuids, key, with_uuids
from nvct.agent.dra.journal import Journal, Prepared, UnpreparedError, check_kept, gpus_of
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.dra.settings import MIXED, Settings
from nvct.agent.kubelet.dra_service import ClaimRef, PreparedDevice
from nvct.agent.kubernetes.cluster import Object
from nvct.errors import HostError, NvctError

FindClaim = Callable[[ClaimRef], Awaitable[Object | None]]

TASK = "dra"
COMPLAINTS = 1000
"""The most claims whose last failure is remembered, so that it is logged once."""


@dataclass(eq=False, kw_only=True)
class Preparer:
    """The claims of this node; each method raises NvctError if a file cannot be read or written.

    Attributes:
        devices: those of the node by name; replaced after each change of the machine.
        instances: makes MIG devices; `mps`: the daemons of claims that share by MPS.
        classic: the devices that pods have of device plugins, and the claims that pods use.
        share_sizes: the size of a GPU's shares in MiB by its UUID, without mixed sizes.
        prepared: how often a claim was prepared; `failures`: how often that failed.
    """

    settings: Settings
    journal: Journal
    specs: ClaimSpecs
    find: FindClaim
    agent_log: Log
    instances: Instances
    mps: ClaimDaemons
    classic: Classic
    mode: ResourcesMode
    devices: Mapping[str, Device] = field(default_factory=dict)
    share_sizes: Mapping[str, int] = field(default_factory=dict)
    prepared: int = 0
    failures: int = 0
    took_s: float = 0.0
    _claims: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _ending: set[str] = field(default_factory=set)
    _doubts: claims.Doubts = field(default_factory=claims.Doubts)
    _complaints: dict[str, str] = field(default_factory=dict)

    async def prepare(self, ref: ClaimRef) -> Sequence[PreparedDevice]:
        """Make the devices of a claim ready, and return them.

        Raises:
            NvctError: the claim is not allocated, a device is missing or another claim has it,
                or the API server does not answer.
        """
        began = time.monotonic()
        try:
            claim = await self._prepare(ref)
        except NvctError as error:
            self.failures += 1
            self.agent_log.refused(TASK, f"{ref.namespace}/{ref.name}", error)
            self._complain(ref, error)
            raise
        self._complaints.pop(ref.uid, None)
        self.prepared += 1
        self.took_s += time.monotonic() - began
        return [
            PreparedDevice(
                names, self.settings.node, e.device, cdi_devices(claim, e, names), share
            )
            for e in claim.entries
            for names, share in e.answers
        ]

    def _complain(self, ref: ClaimRef, error: NvctError) -> None:
        """Log why a claim cannot be prepared: once, because the kubelet asks again and again."""
        if self._complaints.get(ref.uid) == error.message:
            return
        if len(self._complaints) >= COMPLAINTS:
            self._complaints.clear()
        self._complaints[ref.uid] = error.message
        about = f"claim {ref.namespace}/{ref.name} cannot be prepared"
        self.agent_log.warning(f"{about}: {sentence(error)}")

    async def unprepare(self, ref: ClaimRef) -> None:
        """Undo `prepare`."""
        claims.check(ref)
        async with self._alone(ref.uid):
            await self._let_go(ref.uid)

    async def reconcile(self) -> None:
        """Unprepare claims that are gone or no longer allocated, and write what is missing."""
        for claim in self._doubts.next(self.journal.load(), self.classic.claims):
            about = f"claim {claim.full_name} ({claim.uid})"
            try:
                if not await self._is_gone(claim):
                    self._doubts.exists(claim.uid)
                    continue
                async with self._alone(claim.uid):
                    if await self._let_go(claim.uid, if_gone=True):
                        self.agent_log.info(f"{about} is gone: unprepared")
            except NvctError as error:  # the other claims do not wait for this one
                self.agent_log.warning(f"{about}: {error.message}")
        await self.write_specs()

    async def _is_gone(self, claim: Prepared) -> bool:
        """Return whether a claim no longer needs its devices."""
        found = await self.find(ClaimRef(claim.namespace, claim.name, claim.uid))
        return found is None or not claims.is_allocated(found)

    async def write_specs(self) -> None:
        """Write the CDI specification of each prepared claim, and remove all others."""
        there: Uuids = {}
        if any(claim.has_places for claim in self.journal.load().values()):
            with self._logged():
                there = await self.instances.uuids()
        missing = []
        async with self._locked("specifications are written") as known:
            if not self.specs.is_known:
                return  # the machine is not known yet
            await self.specs.remove_others(known)
            for claim in known.values():
                if claim.uid in self._claims:
                    continue  # the call that works on this claim writes it
                if any(key(*place) not in there for place in claim.places):
                    missing.append(claim)
                    continue
                with self._logged():
                    await self.specs.write(with_uuids(claim, there), self.devices)
        for claim in missing:
            async with self._alone(claim.uid):
                with self._logged(), contextlib.suppress(UnpreparedError):
                    await self._write(claim)

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Log an error; the other claims do not wait for this one."""
        try:
            yield
        except NvctError as error:
            self.agent_log.warning(error.message)

    @contextlib.asynccontextmanager
    async def _locked(self, why: str) -> AsyncIterator[dict[str, Prepared]]:
        """Lock the journal and yield its claims; the keeper now runs the daemons of these alone.

        All claims wait for this lock, so nothing that pods can delay is done under it.
        """
        async with self.journal.locked(why) as known:
            kept = (claim for claim in known.values() if claim.uid not in self._ending)
            self.mps.want(claim.daemon for claim in kept if claim.daemon)
            try:
                yield known
            finally:
                self.share_sizes = {
                    claim.share.gpu: claim.share.share_mib
                    for claim in known.values()
                    if claim.share and claim.daemon and claim.daemon.limits
                }

    @contextlib.asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """Lock one claim against other calls."""
        lock = self._claims.setdefault(uid, asyncio.Lock())
        async with lock:
            yield

    async def _prepare(self, ref: ClaimRef) -> Prepared:
        claims.check(ref)
        wanted = await self._wanted(ref)
        async with self._alone(ref.uid):
            # Locked even to read: after a restart, this tells the keeper all claims' daemons.
            async with self._locked(f"claim {ref.namespace}/{ref.name} is looked up") as known:
                before = known.get(ref.uid)
            claim = wanted or before
            if claim is None:
                raise HostError(f"the API server does not say what devices claim {ref.name} has")
            if before is not None and claim == before:
                await self._make(before)
                return before
            if before is not None:
                await self._let_go(ref.uid)
            with self.mode.preparing(sorted(gpus_of(claim))):
                await self._check_pods(claim)
                while holder := await self._record(claim):
                    await self._take_from(holder, claim)
            try:
                made = await self._make(claim)
            except Exception:
                with contextlib.suppress(NvctError):  # the first error counts
                    await self._let_go(ref.uid)
                raise
        names = ", ".join(f"{e.device} ({e.uuid})" for e in made.entries)
        self.agent_log.info(f"claim {claim.full_name} ({claim.uid}) has {names}")
        self.agent_log.decided(TASK, "given", claim.full_name, asked=names)
        return claim

    async def _record(self, claim: Prepared) -> Prepared | None:
        """Write a claim to the journal; if another claim has one of its devices, return that."""
        async with self._locked(f"claim {claim.full_name} is recorded") as known:
            for other in known.values():
                if other.uid != claim.uid and claim.excluded_by(other):
                    return other
            claims.check_sum(claim, known.values(), self.devices.values())
            known[claim.uid] = claim
            self.journal.save(known)
        return None

    async def _take_from(self, other: Prepared, claim: Prepared) -> None:
        """Unprepare `other`, whose device `claim` wants; HostError if `other` still exists."""
        if not await self._is_gone(other):
            raise claims.excluded(claim, other)
        async with self._alone(other.uid):
            await self._let_go(other.uid, if_gone=True)

    async def _make(self, claim: Prepared) -> Prepared:
        """Make what a claim of the journal needs; return it with the UUIDs of its MIG devices.

        Raises:
            NvctError: it fails, or a daemon is not ready in time.
        """
        if claim.daemon is not None:
            why = f"the MPS control daemon of claim {claim.full_name} is started"
            async with self.journal.gpus_locked([claim.share.gpu] if claim.share else (), why):
                await self.mps.ensure(claim.daemon)
        return await self._write(claim)

    async def _write(self, claim: Prepared) -> Prepared:
        """Make a claim's MIG devices and write its specification; return as `_make` does."""
        why, filled = f"claim {claim.full_name} is prepared", claim
        if claim.places:  # those of admin access are not made: they belong to another claim
            async with self.journal.gpus_locked({gpu for gpu, _ in claim.places}, why):
                check_kept(claim, self.journal.load())
                for gpu, place in claim.places:
                    await self.instances.make(gpu, place)
        if claim.has_places:
            filled = with_uuids(claim, await self.instances.uuids())
        async with self._locked(why) as known:
            check_kept(claim, known)
            await self.specs.write(filled, self.devices)
        return filled

    async def _check_pods(self, claim: Prepared) -> None:
        """Raise HostError if a pod has one of a claim's GPUs by a device plugin."""
        wanted = gpus_of(claim)
        if not wanted:
            return
        gpus = {device.uuid: device.gpu for device in self.devices.values()}
        for uuid, pod in (await self.classic.holders()).items():
            if gpus.get(uuid, uuid) in wanted:
                raise HostError(
                    f"pod {pod} has {uuid} by the device plugin",
                    hint="the claim is prepared when that pod has ended",
                )

    async def _wanted(self, ref: ClaimRef) -> Prepared | None:
        """Return a claim to prepare; None if it is prepared and the API server does not answer."""
        try:
            found = await self.find(ref)
        except NvctError as error:
            if ref.uid in self.journal.load():
                self.agent_log.warning(
                    f"claim {ref.namespace}/{ref.name} keeps its devices: {error.message}"
                )
                return None
            raise
        self._doubts.exists(ref.uid)
        found = claims.checked(found, ref)
        before = self.journal.load().get(ref.uid)
        devices = claims.devices(found, self.settings.node, self.devices, before)
        entries = tuple(entry for _, entry in devices)
        configs = sharing.configs(found, {name for each in entries for name in each.requests})
        used = [(name, each) for names, each in devices if not each.is_admin for name in names]
        is_mixed = self.settings.memory_shares == MIXED
        compute = {device.gpu: device.compute for device in self.devices.values()}
        daemon = sharing.daemon(configs, ref.uid, used, compute, is_mixed=is_mixed)
        if before and before.share and before.entries == entries:
            daemon = before.daemon  # of the sizes that were chosen when it was prepared
        return Prepared(
            namespace=ref.namespace, name=ref.name, uid=ref.uid, entries=entries, daemon=daemon,
            has_metadata=self.settings.device_metadata, pod_claim=claims.pod_claim(found),
        )  # fmt: skip

    async def _let_go(self, uid: str, *, if_gone: bool = False) -> bool:
        """Unprepare a claim: end its daemon and MIG devices; return whether that was done.

        Raises:
            NvctError: its daemon does not end, or a file cannot be written.
        """
        why = f"claim {uid} is unprepared"
        async with self._locked(why) as known:
            claim = known.get(uid)
            if if_gone and (claim is None or not await self._is_gone(claim)):
                return False  # the same claim may have been allocated again meanwhile
            await self.specs.remove(uid)
            if claim is None:
                return True
            self._ending.add(uid)
        try:
            async with self.journal.gpus_locked(claim.locked_gpus, why):
                if claim.daemon is not None and not self._shares(claim):
                    await self.mps.release(claim.daemon)
                for gpu, place in claim.places:
                    await self.instances.destroy(gpu, place)
                async with self._locked(why) as known:
                    await self.specs.remove(uid)
                    known.pop(uid, None)
                    self.journal.save(known)
        finally:
            self._ending.discard(uid)
        if claim.places:
            with contextlib.suppress(NvctError):  # the next look at the machine reports it
                await self.instances.uuids()
        self.agent_log.decided(
            TASK, "changed", claim.full_name, result="its devices are free again"
        )
        return True

    def _shares(self, claim: Prepared) -> bool:
        """Return whether a claim that ends shares its daemon with one that stays."""
        return claim.share is not None and any(
            other.daemon == claim.daemon and uid not in self._ending
            for uid, other in self.journal.load().items()
        )
