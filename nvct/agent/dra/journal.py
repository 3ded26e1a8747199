# SPDX-License-Identifier: Apache-2.0
"""The journal of prepared claims: a file that survives the agent and the node's boots.

Contract: read and written as a whole under a lock, because two instances of the driver may run
during an update. Written atomically. Everything else (CDI specifications) is derived from it.

What several claims have of a GPU, its MIG devices and the MPS control daemon of its shares, has a
lock of its own, because to make one takes long. Who needs both locks takes the GPU's first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from nvct.agent.dra.devices import Place
from nvct.agent.mps import daemons
from nvct.agent.mps.daemons import Daemon
from nvct.errors import DocumentError, HostError
from nvct.kernel.shared_folder import SharedFolder

Places: TypeAlias = dict[str, list[Place]]

FILE, LOCK = "nvct-claims.json", "nvct-claims.lock"
GPU_LOCK = "nvct-claims-{}.lock"
"""By the UUID of the GPU."""
HOLDER_LIMIT = 512
"""Bytes of a lock file, which says who has the lock."""
VERSION = 1
FIRST = (
    "namespace", "name", "uid", "entries", "daemon", "device", "uuid", "gpu", "requests",
    "is_admin", "place", "resource", "uuids", "limits", "percentage", "has_metadata", "pod_claim",
)  # fmt: skip
"""Fields of its earliest forms. Later ones are only written if they say something: the version
before refuses those that it does not know, and one can go back to it."""
LIMIT = 16 << 20
"""Bytes; a claim has one KB."""
LOCK_S = 30.0
"""Less than the kubelet's limit for a call, 45 s (pkg/kubelet/cm/dra/plugin of 1.36)."""
POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A device of a prepared claim.

    Attributes:
        is_admin: whether others may have it too.
        place: of a MIG device that was made for the claim, whose UUID is then "".
        share_mib, cores: what it has of the GPU's memory, and of its threads in percent; 0 if it
            has the GPU alone, and if nothing limits its threads.
        alternatives: those that were chosen for requests, as REQUEST/ALTERNATIVE.
        shares: of a device that several claims have: the request and the id of each share; an
            earlier version has not written them.
    """

    device: str
    uuid: str
    gpu: str
    requests: tuple[str, ...]
    is_admin: bool = False
    place: Place | None = None
    share_mib: int = 0
    cores: int = 0
    alternatives: tuple[str, ...] = field(default=(), compare=False)
    shares: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def answers(self) -> list[tuple[tuple[str, ...], str]]:
        """Return the requests and the id of each share of it, "" for the id of what has none."""
        whole: list[tuple[tuple[str, ...], str]] = [(self.requests, "")]
        return [((name,), share) for name, share in self.shares] or whole

    @property
    def memory_mib(self) -> int:
        """Return what all its shares have of the GPU's memory."""
        return self.share_mib * max(1, len(self.shares))

    def excludes(self, other: Entry) -> bool:
        """Return whether no two claims can have these two devices at the same time."""
        if self.place and other.place and self.gpu == other.gpu:
            first, second = sorted((self.place, other.place), key=lambda place: place.start)
            return first.start + first.size > second.start
        return (self.uuid or self.device) == (other.uuid or other.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared claim; `daemon` is None if it does not share by MPS.

    A claim with a share of a GPU's memory has the daemon of all that share this GPU.

    Attributes:
        has_metadata: whether its containers get files about its devices.
        pod_claim: how the pod calls it, if it is of a template.
    """

    namespace: str
    name: str
    uid: str
    entries: tuple[Entry, ...]
    daemon: Daemon | None = None
    has_metadata: bool = field(default=False, compare=False)
    pod_claim: str = field(default="", compare=False)

    @property
    def full_name(self) -> str:
        """Return NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    def excluded_by(self, other: Prepared) -> str:
        """Return what both claims have and one alone may have, "" if there is nothing."""
        if self.share and other.share and self.daemon == other.daemon:
            return ""
        for entry in self._own:
            for held in other._own:
                if entry.excludes(held):
                    return held.uuid or held.device
        return ""

    @property
    def share(self) -> Entry | None:
        """Return its share of a GPU's memory, None if it has devices alone."""
        return next((entry for entry in self._own if entry.share_mib), None)

    @property
    def places(self) -> list[tuple[str, Place]]:
        """Return the MIG devices that are made for the claim: UUID of the GPU and place."""
        return [(entry.gpu, entry.place) for entry in self._own if entry.place]

    @property
    def locked_gpus(self) -> set[str]:
        """Return the GPUs of which something is made or ended for it and other claims."""
        share = self.share
        return {gpu for gpu, _ in self.places} | ({share.gpu} if share else set())

    @property
    def has_places(self) -> bool:
        """Return whether it has MIG devices that are made for claims."""
        return any(entry.place for entry in self.entries)

    @property
    def _own(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.is_admin]

    def uses_mps(self, entry: Entry) -> bool:
        """Return whether containers use one of its devices by its daemon."""
        if self.daemon is None or self.daemon.time_slice:
            return False
        return entry.uuid in self.daemon.uuids and not entry.is_admin


class Journal:
    """The claims of one node by their uids, in a folder that is made if it is missing.

    Raises:
        HostError: here and in each method: a file or the folder cannot be made, read, written, or
            is locked by somebody else for too long.
        DocumentError: in what reads the claims: they are malformed.
        UnsafePathError: something is a link, or others could have written it.
    """

    def __init__(self, folder: str) -> None:
        try:
            SharedFolder.open(folder, create=0o750).close()
        except OSError as error:
            raise HostError(f"{folder} cannot be made: {error.strerror}") from error
        self.path = f"{folder}/{FILE}"
        self._folder = folder

    @contextlib.asynccontextmanager
    async def locked(self, why: str) -> AsyncIterator[dict[str, Prepared]]:
        """Yield the claims, which nobody else changes meanwhile, see `save`; others read `why`."""
        async with self._lock(LOCK, why):
            yield self.load()

    @contextlib.asynccontextmanager
    async def gpus_locked(self, gpus: Iterable[str], why: str) -> AsyncIterator[None]:
        """Within the block, nobody else makes or removes devices on these GPUs for claims."""
        async with contextlib.AsyncExitStack() as stack:
            for gpu in sorted(gpus):  # in one order, so that no two wait for each other
                await stack.enter_async_context(self._lock(GPU_LOCK.format(gpu), why))
            yield

    @contextlib.asynccontextmanager
    async def _lock(self, name: str, why: str) -> AsyncIterator[None]:
        path = f"{self._folder}/{name}"
        end = time.monotonic() + LOCK_S
        try:
            with SharedFolder.open(self._folder) as folder:
                while (fd := folder.try_lock(name)) < 0:
                    if time.monotonic() > end:
                        holder = folder.read(name, HOLDER_LIMIT).decode(errors="replace")
                        raise HostError(
                            f"{path} is locked for {LOCK_S:g} s: {holder or 'nobody says why'}",
                            hint="the kubelet asks again",
                        )
                    await asyncio.sleep(POLL_S)
        except OSError as error:
            raise HostError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            holder = f"{why}, by process {os.getpid()} of {os.uname().nodename}"
            with contextlib.suppress(OSError):  # a full disk; the lock is there
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder.encode()[:HOLDER_LIMIT], 0)
            yield
        finally:
            os.close(fd)

    def load(self) -> dict[str, Prepared]:
        """Return the claims as the file has them."""
        try:
            with SharedFolder.open(self._folder) as folder:
                document = json.loads(folder.read(FILE, LIMIT))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise HostError(f"{self.path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise self._malformed(str(error)) from error
        return self._parsed(document)

    def places(self, before: Mapping[str, Iterable[Place]] | None = None) -> Places:
        """Return where MIG devices were made for claims, now and `before`, by UUID of the GPU."""
        places: Places = {gpu: [*known] for gpu, known in (before or {}).items()}
        for claim in self.load().values():
            for entry in claim.entries:
                if entry.place is not None:
                    places.setdefault(entry.gpu, []).append(entry.place)
        return places

    def gpus(self) -> set[str]:
        """Return the UUIDs of the GPUs that claims have."""
        return {gpu for claim in self.load().values() for gpu in gpus_of(claim)}

    def save(self, claims: Mapping[str, Prepared]) -> None:
        """Write all claims."""
        rows = [asdict(claims[uid], dict_factory=_written) for uid in sorted(claims)]
        document = {"version": VERSION, "claims": rows}
        try:
            # On the disk: after a boot the kubelet does not prepare a claim again.
            with SharedFolder.open(self._folder) as folder:
                folder.write(FILE, json.dumps(document, indent=1).encode(), sync=True)
        except OSError as error:
            raise HostError(f"{self.path} cannot be written: {error.strerror}") from error

    def _parsed(self, document: object) -> dict[str, Prepared]:
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise self._malformed("it is of another version")
        try:
            return {
                claim["uid"]: Prepared(
                    **{key: claim[key] for key in ("namespace", "name", "uid")},
                    has_metadata=bool(claim.get("has_metadata")),
                    pod_claim=str(claim.get("pod_claim") or ""),
                    entries=tuple(_entry(entry) for entry in claim["entries"]),
                    daemon=daemons.from_json(claim["daemon"]) if claim.get("daemon") else None,
                )
                for claim in document["claims"]
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._malformed(f"a field is missing or unknown: {error}") from error

    def _malformed(self, reason: str) -> DocumentError:
        return DocumentError(
            f"the journal of prepared claims {self.path} is malformed: {reason}",
            hint="drain the node of pods with GPUs, and remove the file",
        )


class UnpreparedError(HostError):
    """The journal does not have a claim any more."""


def check_kept(claim: Prepared, known: Mapping[str, Prepared]) -> None:
    """Refuse by UnpreparedError a claim that the journal does not have any more."""
    if known.get(claim.uid) != claim:
        raise UnpreparedError(f"claim {claim.name} was unprepared before it had its devices")


def gpus_of(claim: Prepared) -> set[str]:
    """Return the UUIDs of the GPUs of which a claim has a device, not only by admin access."""
    return {entry.gpu for entry in claim.entries if not entry.is_admin}


def _written(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value or name in FIRST}


def _entry(fields: Mapping[str, Any]) -> Entry:
    place = fields.get("place")
    known = {"requests": tuple(fields["requests"]), "place": Place(*place) if place else None}
    known["alternatives"] = tuple(fields.get("alternatives") or ())
    known["shares"] = tuple((str(name), str(id_)) for name, id_ in fields.get("shares") or ())
    return Entry(**{**fields, **known})
