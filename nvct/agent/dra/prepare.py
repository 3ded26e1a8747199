# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims for the kubelet, and compares the journal with the API server.

A claim is prepared when the journal has it; its CDI specification is written before the kubelet is
answered, and again at each start. Whatever the kubelet asks twice has the same answer.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from nvct.agent.dra import claims, sharing
from nvct.agent.dra.claim_specs import cdi_devices
from nvct.agent.dra.journal import Entry, Prepared, gpus_of, ref_of
from nvct.agent.kubelet.dra_service import PreparedDevice
from nvct.agent.nvml.host_verbs import UID
from nvct.errors import HostError, NvctError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from nvct.agent.dra.claim_specs import ClaimSpecs
    from nvct.agent.dra.claims import Allocated
    from nvct.agent.dra.devices import Device
    from nvct.agent.dra.instances import Instances
    from nvct.agent.dra.journal import Journal
    from nvct.agent.dra.mps_claims import ClaimDaemons
    from nvct.agent.kubelet.dra_service import ClaimRef
    from nvct.agent.kubernetes.cluster import Object
    from nvct.agent.logs import Log
    from nvct.agent.resources_mode import ResourcesMode

    FindClaim = Callable[[ClaimRef], Awaitable[Object | None]]

TASK = "dra"


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
            journal: of prepared claims.
            specs: of CDI.
            find: returns a claim as the API server has it.
            log: for what happens.
        """
        self.devices: Mapping[str, Device] = {}
        self.instances: Instances | None = None
        self.mps: ClaimDaemons | None = None
        self.holders: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        self.mode: ResourcesMode | None = None
        self.prepared = 0
        self.failures = 0
        self.took_s = 0.0
        self._node = node
        self._journal = journal
        self._specs = specs
        self._find = find
        self._log = log

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
            raise
        self.prepared += 1
        self.took_s += time.monotonic() - began
        return [
            PreparedDevice(e.requests, self._node, e.device, cdi_devices(claim, e))
            for e in claim.entries
        ]

    async def unprepare(self, ref: ClaimRef) -> None:
        """Undo `prepare`.

        Raises:
            NvctError: a file cannot be written or removed.
        """
        _check(ref)
        async with self._locked() as known:
            await self._forget(ref.uid, known)

    async def reconcile(self) -> None:
        """Unprepare claims that are gone or no longer allocated, and write what is missing.

        Raises:
            NvctError: the journal cannot be read or written.
        """
        gone = [claim for claim in self._journal.load().values() if await self._is_gone(claim)]
        async with self._locked() as known:
            for claim in gone:
                # Again: the same claim may have been allocated again until now.
                if claim.uid in known and await self._is_gone(claim):
                    self._log.info(
                        f"claim {claim.namespace}/{claim.name} ({claim.uid}) is gone: unprepared"
                    )
                    try:
                        await self._forget(claim.uid, known)
                    except NvctError as error:  # the other claims do not wait for this one
                        self._log.warning(error.message)
            await self._write_specs(known)

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
        """Yield the claims of the journal; the keeper then has their MPS control daemons alone."""
        async with self._journal.locked() as known:
            if self.mps is not None:
                self.mps.want(claim.daemon for claim in known.values() if claim.daemon)
            yield known

    async def _write_specs(self, known: Mapping[str, Prepared]) -> None:
        if not self._specs.is_known:
            return  # the machine is not known yet
        await self._specs.remove_others(known)
        for claim in known.values():
            try:
                await self._specs.write(await self._made(claim))
            except NvctError as error:
                self._log.warning(error.message)

    async def _prepare(self, ref: ClaimRef) -> Prepared:
        _check(ref)
        wanted = await self._wanted(ref)
        async with self._locked() as known:
            before = known.get(ref.uid)
            claim = wanted or before
            if claim is None:
                raise HostError(f"the API server does not tell what claim {ref.name} has")
            if before is not None and claim != before:
                await self._forget(ref.uid, known)
            await self._check_free(claim, known)
            if claim == before:
                await self._start(claim)
                await self._specs.write(await self._made(claim))
            else:
                with self._reserved(claim):
                    await self._check_pods(claim)
                    await self._take(claim, known)
            return claim

    async def _take(self, claim: Prepared, known: dict[str, Prepared]) -> None:
        """Make the devices of a claim, and write its specification and the journal."""
        if claim.daemon or any(entry.place for entry in claim.entries):
            # What is made from here on has an owner, also if this process ends.
            known[claim.uid] = claim
            self._journal.save(known)
        try:
            await self._start(claim)
            await self._specs.write(await self._made(claim))
        except NvctError:
            with contextlib.suppress(NvctError):  # the first error counts
                await self._forget(claim.uid, known)
            raise
        known[claim.uid] = claim
        self._journal.save(known)
        names = ", ".join(f"{e.device} ({e.uuid})" for e in claim.entries)
        self._log.info(f"claim {claim.namespace}/{claim.name} ({claim.uid}) has {names}")
        self._log.decided(TASK, "given", f"{claim.namespace}/{claim.name}", asked=names)

    async def _start(self, claim: Prepared) -> None:
        """Start the MPS control daemon of a claim, if it asks for one.

        Raises:
            NvctError: it is not ready in time.
        """
        if claim.daemon is None:
            return
        if self.mps is None:
            raise HostError(f"claim {claim.name} asks for MPS, and nothing here can start it")
        await self.mps.ensure(claim.daemon)

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
        if found is None:
            raise RequestError(
                f"there is no ResourceClaim {ref.namespace}/{ref.name} with uid {ref.uid}"
            )
        if not claims.is_allocated(found):
            raise RequestError(f"ResourceClaim {ref.namespace}/{ref.name} is not allocated")
        before = self._journal.load().get(ref.uid)
        known = {(e.device, e.is_admin): e for e in before.entries} if before else {}
        devices = claims.allocated(found, self._node)
        configs = sharing.configs(found, {name for one in devices for name in one.requests})
        for warning in filter(None, (config.warning for config in configs)):
            self._log.warning(f"claim {ref.namespace}/{ref.name}: {warning}")
        entries = tuple(self._entry(one, known) for one in devices)
        used = [
            (name, entry)
            for one, entry in zip(devices, entries, strict=True)
            for name in (() if one.is_admin else one.alternatives)
        ]
        return Prepared(
            namespace=ref.namespace, name=ref.name, uid=ref.uid, entries=entries,
            daemon=sharing.daemon(configs, ref.uid, used),
        )  # fmt: skip

    def _entry(self, allocated: Allocated, known: Mapping[tuple[str, bool], Entry]) -> Entry:
        device = self.devices.get(allocated.device)
        before = known.get((allocated.device, allocated.is_admin))
        if device is None and before is not None:
            return before
        if device is None:
            raise HostError(
                f"Node {self._node} has no device {allocated.device} now",
                hint="see `nvct agent --status`, in the agent's pod or on the node",
            )
        return Entry(
            device=device.name, uuid=device.uuid, gpu=device.gpu,
            requests=allocated.requests, is_admin=allocated.is_admin, place=device.place,
        )  # fmt: skip

    async def _check_free(self, claim: Prepared, known: dict[str, Prepared]) -> None:
        """Forget claims that are gone and have a device of this one.

        Raises:
            HostError: another claim that still exists has a device.
        """
        wanted = _identities(claim)
        for other in list(known.values()):
            held = _identities(other) & wanted
            if other.uid == claim.uid or not held:
                continue
            found = await self._find(ref_of(other))
            if found is not None and claims.is_allocated(found):
                raise HostError(
                    f"{min(held)} is prepared for claim {other.namespace}/{other.name}",
                    hint="the pod of that claim may still end",
                )
            await self._forget(other.uid, known)

    async def _forget(self, uid: str, known: dict[str, Prepared]) -> None:
        await self._specs.remove(uid)
        claim = known.get(uid)
        if claim is None:
            return
        if claim.daemon and self.mps is not None:
            await self.mps.release(claim.daemon)
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


def _identities(claim: Prepared) -> set[str]:
    """Return what no other claim may have."""
    return {entry.uuid or entry.device for entry in claim.entries if not entry.is_admin}


def _check(ref: ClaimRef) -> None:
    if not UID.fullmatch(ref.uid):
        raise RequestError(f"{ref.uid!r} is no uid of a ResourceClaim")
