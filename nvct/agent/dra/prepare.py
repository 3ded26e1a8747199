# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims for the kubelet, and compares the journal with the API server.

A claim is prepared when the journal has it; its CDI specification is written before the kubelet is
answered, and again at each start. Whatever the kubelet asks twice has the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from weakref import WeakValueDictionary

from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import ResourcesMode
from nvct.agent.dra import claims, sharing
from nvct.agent.dra.claim_specs import ClaimSpecs, cdi_devices
from nvct.agent.dra.devices import Device, compute
from nvct.agent.dra.instances import Instances
from nvct.agent.dra.journal import Journal, Prepared, gpus_of, ref_of
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.kubelet.dra_service import ClaimRef, PreparedDevice
from nvct.agent.kubernetes.cluster import Object
from nvct.agent.mps.daemons import Daemon
from nvct.errors import HostError, NvctError

FindClaim = Callable[[ClaimRef], Awaitable[Object | None]]

TASK = "dra"
COMPLAINTS = 1000
"""How many claims' last failures are remembered: each is logged once."""


class Preparer:
    """The claims of this node.

    Attributes:
        devices: that the node has, by name; replaced after each change of the machine.
        instances: makes MIG devices; None where none is made.
        mps: the daemons of claims that share by MPS; None where there can be none.
        holders: returns the pod that has each device of a device plugin, by the UUID.
        mode: which task offers the GPUs; None if there is no other task that does.
        prepared: how often a claim was prepared; `failures`: how often that failed.
        took_s: how long all of these took together.
    """

    def __init__(
        self, node: str, journal: Journal, specs: ClaimSpecs, find: FindClaim, log: Log
    ) -> None:
        """Prepare nothing yet.

        Args:
            node: its name, which is that of the pool.
            find: returns a claim as the API server has it.
        """
        self.devices: Mapping[str, Device] = {}
        self.instances: Instances | None = None
        self.mps: ClaimDaemons | None = None
        self.holders: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        self.mode: ResourcesMode | None = None
        self.prepared = 0
        self.failures = 0
        self.took_s = 0.0
        self._claims: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._ending: set[str] = set()
        self._node = node
        self._journal = journal
        self._specs = specs
        self._find = find
        self._log = log
        self._complaints: dict[str, str] = {}

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
            self._log.refused(TASK, f"{ref.namespace}/{ref.name}", error)
            self._complain(ref, error)
            raise
        self._complaints.pop(ref.uid, None)
        self.prepared += 1
        self.took_s += time.monotonic() - began
        return [
            PreparedDevice(e.requests, self._node, e.device, cdi_devices(claim, e))
            for e in claim.entries
        ]

    def _complain(self, ref: ClaimRef, error: NvctError) -> None:
        """Log why a claim cannot be prepared: once, as the kubelet asks again and again."""
        if self._complaints.get(ref.uid) == error.message:
            return
        if len(self._complaints) >= COMPLAINTS:
            self._complaints.clear()
        self._complaints[ref.uid] = error.message
        hint = f" ({error.hint})" if error.hint else ""
        about = f"claim {ref.namespace}/{ref.name} cannot be prepared"
        self._log.warning(f"{about}: {error.message}{hint}")

    async def unprepare(self, ref: ClaimRef) -> None:
        """Undo `prepare`.

        Raises:
            NvctError: a file cannot be written or removed.
        """
        claims.check(ref)
        async with self._alone(ref.uid):
            await self._let_go(ref.uid)

    async def reconcile(self) -> None:
        """Unprepare claims that are gone or no longer allocated, and write what is missing.

        Raises:
            NvctError: the journal cannot be read or written.
        """
        gone = [claim for claim in self._journal.load().values() if await self._is_gone(claim)]
        for claim in gone:
            about = f"claim {claim.namespace}/{claim.name} ({claim.uid})"
            try:
                async with self._alone(claim.uid):
                    if await self._let_go(claim.uid, if_gone=True):
                        self._log.info(f"{about} is gone: unprepared")
            except NvctError as error:  # the other claims do not wait for this one
                self._log.warning(error.message)
        await self.write_specs()

    async def _is_gone(self, claim: Prepared) -> bool:
        """Return whether a claim needs its devices no more; False if nobody can tell."""
        try:
            found = await self._find(ref_of(claim))
        except NvctError as error:
            self._log.debug(f"claim {claim.namespace}/{claim.name}: {error.message}")
            return False
        return found is None or not claims.is_allocated(found)

    async def write_specs(self) -> None:
        """Write the CDI specification of each prepared claim, and remove others.

        Raises:
            NvctError: the journal cannot be read.
        """
        async with self._locked() as known:
            await self._write_specs(known)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[dict[str, Prepared]]:
        """Yield the claims of the journal; the keeper then has their MPS control daemons alone.

        All claims wait for this lock: nothing is done with it that pods can delay.
        """
        async with self._journal.locked() as known:
            if self.mps is not None:
                kept = (claim for claim in known.values() if claim.uid not in self._ending)
                self.mps.want(claim.daemon for claim in kept if claim.daemon)
            yield known

    @contextlib.asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """Do one thing at a time with a claim."""
        lock = self._claims.setdefault(uid, asyncio.Lock())
        async with lock:
            yield

    async def _write_specs(self, known: Mapping[str, Prepared]) -> None:
        if not self._specs.is_known:
            return  # the machine is not known yet
        await self._specs.remove_others(known)
        for claim in known.values():
            try:
                await self._write(claim)
            except NvctError as error:
                self._log.warning(error.message)

    async def _prepare(self, ref: ClaimRef) -> Prepared:
        claims.check(ref)
        wanted = made = await self._wanted(ref)
        async with self._alone(ref.uid):
            while True:
                async with self._locked() as known:
                    claim = wanted or known.get(ref.uid)
                    if claim is None:
                        raise HostError(f"the API server does not tell what claim {ref.name} has")
                    is_new = claim != known.get(ref.uid)
                    holders = await self._gone_holders(claim, known)
                    is_other = is_new and ref.uid in known
                    if not is_other and not holders:
                        made = await self._record(claim, known, is_new=is_new)
                        break
                if is_other:
                    await self._let_go(ref.uid)
                for uid in holders:
                    async with self._alone(uid):
                        await self._let_go(uid, if_gone=True)
            if claim.daemon is not None:
                made = await self._start(claim, claim.daemon, is_new=is_new)
        if is_new:
            names = ", ".join(f"{e.device} ({e.uuid})" for e in made.entries)
            self._log.info(f"claim {claim.namespace}/{claim.name} ({claim.uid}) has {names}")
            self._log.decided(TASK, "given", f"{claim.namespace}/{claim.name}", asked=names)
        return claim

    async def _record(
        self, claim: Prepared, known: dict[str, Prepared], *, is_new: bool
    ) -> Prepared:
        """Write the journal, and the specification if the claim waits for nothing; see `_made`."""
        if is_new:
            with self._reserved(claim):
                await self._check_pods(claim)
                return await self._take(claim, known)
        return claim if claim.daemon else await self._write(claim)

    async def _take(self, claim: Prepared, known: dict[str, Prepared]) -> Prepared:
        """Make the devices of a claim, and write its specification and the journal."""
        if claim.daemon or any(entry.place for entry in claim.entries):
            # What is made from here on has an owner, also if this process ends.
            known[claim.uid] = claim
            self._journal.save(known)
        if claim.daemon:
            return claim
        try:
            made = await self._write(claim)
        except NvctError:
            with contextlib.suppress(NvctError):  # the first error counts
                await self._forget(claim.uid, known)
            raise
        known[claim.uid] = claim
        self._journal.save(known)
        return made

    async def _start(self, claim: Prepared, daemon: Daemon, *, is_new: bool) -> Prepared:
        """Start the MPS control daemon of a claim, and write its specification.

        Raises:
            NvctError: it is not ready in time.
        """
        try:
            if self.mps is None:
                raise HostError(f"claim {claim.name} asks for MPS, and nothing here can start it")
            await self.mps.ensure(daemon)
            async with self._locked() as known:
                if known.get(claim.uid) != claim:
                    raise HostError(f"claim {claim.name} was unprepared before it had its devices")
                return await self._write(claim)
        except NvctError:
            if is_new:
                with contextlib.suppress(NvctError):  # the first error counts
                    await self._let_go(claim.uid)
            raise

    async def _write(self, claim: Prepared) -> Prepared:
        """Write the specification of a claim; return it as `_made` does."""
        made = await self._made(claim)
        await self._specs.write(made)
        return made

    def _reserved(self, claim: Prepared) -> AbstractContextManager[None]:
        """Keep the agent's own device plugin from giving the GPUs of a claim."""
        if self.mode is None:
            return contextlib.nullcontext()
        return self.mode.preparing(sorted(gpus_of(claim)))

    async def _check_pods(self, claim: Prepared) -> None:
        """Refuse a claim if a pod has one of its GPUs by a device plugin.

        Raises:
            HostError: a pod has one, or the kubelet does not answer.
        """
        wanted = gpus_of(claim)
        if self.holders is None or not wanted:
            return
        gpus = {device.uuid: device.gpu for device in self.devices.values()}
        for uuid, pod in (await self.holders()).items():
            if gpus.get(uuid, uuid) in wanted:
                raise HostError(
                    f"pod {pod} has {uuid} by the device plugin",
                    hint="the claim is prepared when that pod has ended",
                )

    async def _wanted(self, ref: ClaimRef) -> Prepared | None:
        """Return what a claim has; None if the API server does not answer and it is prepared.

        Raises:
            NvctError: see `prepare`.
        """
        try:
            found = await self._find(ref)
        except NvctError as error:
            if ref.uid in self._journal.load():
                self._log.warning(
                    f"claim {ref.namespace}/{ref.name} is as it was: {error.message}"
                )
                return None
            raise
        found = claims.checked(found, ref)
        devices = claims.allocated(found, self._node)
        configs = sharing.configs(found, {name for one in devices for name in one.requests})
        for warning in filter(None, (config.warning for config in configs)):
            self._log.warning(f"claim {ref.namespace}/{ref.name}: {warning}")
        before = self._journal.load().get(ref.uid)
        entries = claims.entries(devices, self.devices, self._node, before)
        used = [
            (name, entry)
            for one, entry in zip(devices, entries, strict=True)
            for name in (() if one.is_admin else one.alternatives)
        ]
        return Prepared(
            namespace=ref.namespace, name=ref.name, uid=ref.uid, entries=entries,
            daemon=sharing.daemon(configs, ref.uid, used, compute(self.devices.values())),
        )  # fmt: skip

    async def _gone_holders(self, claim: Prepared, known: dict[str, Prepared]) -> list[str]:
        """Return the uids of claims that are gone and have a device of this one.

        Raises:
            HostError: another claim that still exists has a device.
        """
        wanted = claim.identities()
        holders = []
        for other in known.values():
            held = other.identities() & wanted
            if other.uid == claim.uid or not held:
                continue
            found = await self._find(ref_of(other))
            if found is not None and claims.is_allocated(found):
                raise HostError(
                    f"{min(held)} is prepared for claim {other.namespace}/{other.name}",
                    hint="the pod of that claim may still end",
                )
            holders.append(other.uid)
        return holders

    async def _let_go(self, uid: str, *, if_gone: bool = False) -> bool:
        """Forget a claim, after the end of its daemon; return whether that was done.

        Raises:
            NvctError: its daemon does not end, or a file cannot be written.
        """
        async with self._locked() as known:
            claim = known.get(uid)
            if if_gone and (claim is None or not await self._is_gone(claim)):
                return False  # the same claim may have been allocated again until now
            await self._specs.remove(uid)
            if claim is None or claim.daemon is None or self.mps is None:
                await self._forget(uid, known)
                return True
            self._ending.add(uid)
        try:
            await self.mps.release(claim.daemon)
            async with self._locked() as known:
                await self._forget(uid, known)
        finally:
            self._ending.discard(uid)
        return True

    async def _forget(self, uid: str, known: dict[str, Prepared]) -> None:
        await self._specs.remove(uid)
        claim = known.get(uid)
        if claim is None:
            return
        for entry in claim.entries:
            if entry.place is None or entry.is_admin:  # admin access owns no MIG device
                continue
            if self.instances is not None:
                await self.instances.destroy(entry.gpu, entry.place)
        del known[uid]
        self._journal.save(known)
        about = f"{claim.namespace}/{claim.name}"
        self._log.decided(TASK, "changed", about, result="its devices are free again")

    async def _made(self, claim: Prepared) -> Prepared:
        """Return a claim with the UUIDs of its MIG devices, which are made if they are missing.

        Those of admin access are not made: they belong to another claim.
        """
        entries = []
        for entry in claim.entries:
            if entry.place is None:
                entries.append(entry)
            elif self.instances is None:
                raise HostError(f"no MIG device can be made for {entry.device}")
            else:
                get = self.instances.find if entry.is_admin else self.instances.ensure
                uuid = await get(entry.gpu, entry.place)
                entries.append(replace(entry, uuid=uuid))
        return replace(claim, entries=tuple(entries))
