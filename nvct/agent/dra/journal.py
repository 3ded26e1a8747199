# SPDX-License-Identifier: Apache-2.0
"""The journal of prepared claims: a file that survives restarts of the agent and of the node.

Contract: it is read and written as a whole under a lock, because two instances of the driver can
run during an update. It is written atomically. CDI specifications are derived from it.

Each GPU has a lock of its own, for its MIG devices and for the MPS control daemon of its shares,
because making these takes long. Code that needs both locks takes the GPU's first.
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
"""The lock of a GPU, by its UUID."""
HOLDER_LIMIT = 512
"""The most bytes of a lock file, which says who has the lock."""
VERSION = 1
FIRST = (
    "namespace", "name", "uid", "entries", "daemon", "device", "uuid", "gpu", "requests",
    "is_admin", "place", "resource", "uuids", "limits", "percentage", "has_metadata", "pod_claim",
)  # fmt: skip
"""Fields of its earliest forms, always written. Later fields are written only if they have a
value: older versions of nvct refuse a field that they do not know, and users can go back to one.
"""
LIMIT = 16 << 20
"""The most bytes of the file; a claim takes about one KB."""
LOCK_S = 30.0
"""Less than the kubelet's limit for a call, 45 s (pkg/kubelet/cm/dra/plugin of 1.36)."""
POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A device of a prepared claim.

    Attributes:
        is_admin: whether the claim has admin access: other claims can have the device, too.
        place: of a MIG device that is made for the claim, whose `uuid` is then "".
        share_mib: memory of each share, 0 for a whole device.
        cores: the share's limit of GPU threads in percent, 0 for no limit.
        alternatives: those that were chosen for requests, as REQUEST/ALTERNATIVE.
        shares: request and id of each share; older versions of nvct did not write them.
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
        """Return requests and id of each share; a whole device counts as one with the id ""."""
        whole: list[tuple[tuple[str, ...], str]] = [(self.requests, "")]
        return [((name,), share) for name, share in self.shares] or whole

    @property
    def memory_mib(self) -> int:
        """Return the memory of all its shares together."""
        return self.share_mib * max(1, len(self.shares))

    def excludes(self, other: Entry) -> bool:
        """Return whether two claims cannot have these two devices at the same time."""
        if self.place and other.place and self.gpu == other.gpu:
            first, second = sorted((self.place, other.place), key=lambda place: place.start)
            return first.start + first.size > second.start
        return (self.uuid or self.device) == (other.uuid or other.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared claim.

    Attributes:
        daemon: its MPS control daemon or time slice, None without both. All claims with a share of
            a GPU's memory have the same daemon.
        has_metadata: whether its containers get files about its devices.
        pod_claim: the pod's name for it if it is made from a template, else "".
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
        """Return a device that both claims have but only one can have, "" if there is none."""
        if self.share and other.share and self.daemon == other.daemon:
            return ""
        for entry in self._own:
            for held in other._own:
                if entry.excludes(held):
                    return held.uuid or held.device
        return ""

    @property
    def share(self) -> Entry | None:
        """Return its share of a GPU's memory, None if it has whole devices only."""
        return next((entry for entry in self._own if entry.share_mib), None)

    @property
    def places(self) -> list[tuple[str, Place]]:
        """Return the MIG devices that are made for the claim: UUID of the GPU and place."""
        return [(entry.gpu, entry.place) for entry in self._own if entry.place]

    @property
    def locked_gpus(self) -> set[str]:
        """Return the GPUs whose lock is needed to end its MIG devices and daemon."""
        share = self.share
        return {gpu for gpu, _ in self.places} | ({share.gpu} if share else set())

    @property
    def has_places(self) -> bool:
        """Return whether it has MIG devices that are made for claims, also by admin access."""
        return any(entry.place for entry in self.entries)

    @property
    def _own(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.is_admin]

    def uses_mps(self, entry: Entry) -> bool:
        """Return whether containers use this device through the claim's MPS control daemon."""
        if self.daemon is None or self.daemon.time_slice:
            return False
        return entry.uuid in self.daemon.uuids and not entry.is_admin


class Journal:
    """The claims of one node by their uids, in a folder that is made if it is missing.

    Raises:
        HostError: here and in each method: a file or the folder cannot be made, read or written,
            or another process has had a lock for too long.
        DocumentError: the file is malformed.
        UnsafePathError: a path is a link, or other users could have written it.
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
        """Lock the journal and yield its claims, see `save`; `why` is for others that wait."""
        async with self._lock(LOCK, why):
            yield self.load()

    @contextlib.asynccontextmanager
    async def gpus_locked(self, gpus: Iterable[str], why: str) -> AsyncIterator[None]:
        """Lock GPUs: nobody else makes or removes devices on them for claims meanwhile."""
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
                            f"{path} has been locked for {LOCK_S:g} s: "
                            f"{holder or 'the holder is unknown'}",
                            hint="the kubelet asks again",
                        )
                    await asyncio.sleep(POLL_S)
        except OSError as error:
            raise HostError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            holder = f"{why}, by process {os.getpid()} of {os.uname().nodename}"
            with contextlib.suppress(OSError):  # e.g. a full disk: the lock itself is held
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder.encode()[:HOLDER_LIMIT], 0)
            yield
        finally:
            os.close(fd)

    def load(self) -> dict[str, Prepared]:
        """Return the claims of the file by uid."""
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
        """Return the places of claims' MIG devices by UUID of the GPU, after those of `before`."""
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
        """Replace the file's claims by these."""
        rows = [asdict(claims[uid], dict_factory=_written) for uid in sorted(claims)]
        document = {"version": VERSION, "claims": rows}
        try:
            # Synced to the disk: after a boot the kubelet does not prepare a claim again.
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
    """The journal no longer has a claim."""


def check_kept(claim: Prepared, known: Mapping[str, Prepared]) -> None:
    """Raise UnpreparedError if the journal no longer has this claim."""
    if known.get(claim.uid) != claim:
        raise UnpreparedError(f"claim {claim.name} was unprepared before it had its devices")


def gpus_of(claim: Prepared) -> set[str]:
    """Return the UUIDs of the GPUs of a claim's devices, except those by admin access."""
    return {entry.gpu for entry in claim.entries if not entry.is_admin}


def _written(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value or name in FIRST}


def _entry(fields: Mapping[str, Any]) -> Entry:
    place = fields.get("place")
    known = {"requests": tuple(fields["requests"]), "place": Place(*place) if place else None}
    known["alternatives"] = tuple(fields.get("alternatives") or ())
    known["shares"] = tuple((str(name), str(id_)) for name, id_ in fields.get("shares") or ())
    return Entry(**{**fields, **known})
