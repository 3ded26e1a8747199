# SPDX-License-Identifier: Apache-2.0
"""Has the CDI specifications of claims written and removed, and names the devices in them.

`nvct.agent.dra.specs` writes them, where the host's files are.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from types import NoneType

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.dra.devices import DRIVER, Device
from nvct.agent.dra.journal import Entry, Prepared
from nvct.agent.dra.settings import Settings
from nvct.agent.dra.slices import attribute
from nvct.agent.host_side import Host
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.place import Place, Signature
from nvct.agent.nvml import host_verbs
from nvct.errors import HostError, NvctError

FILES = f"{DRA_VENDOR}/{host_verbs.DRIVER_CLASS}=files"
"""The CDI device with the driver's files."""


class ClaimSpecs:
    """The specifications of this node's claims; NvctError if one cannot be written or removed.

    Attributes:
        is_known: whether the specification of the driver's files is written: claims need it.
        signature: changes when other programs' specifications do.
    """

    def __init__(self, settings: Settings, discovery: Discovery) -> None:
        self.is_known = False
        self.signature: Signature = ()
        place = Place(
            roots=discovery.roots, settings=settings.specs, folder=settings.cdi_root,
            mps_root=settings.mps_root, stat_node=discovery.stat_node,
        )  # fmt: skip
        self._node = settings.node
        self._files = Host(discovery.nvml, lambda: place)

    async def look(self) -> None:
        """Update the signature; it stays as it was while the worker does not answer."""
        with contextlib.suppress(NvctError):  # the look at the machine reports it
            self.signature = await self._files.ask(host_verbs.Published(), Signature)

    async def update(self) -> tuple[str, ...]:
        """Write the specification of the driver's files; return warnings."""
        warnings = await self._files.ask(host_verbs.DriverSpec(), tuple[str, ...])
        self.is_known = True
        return warnings

    async def write(self, claim: Prepared, known: Mapping[str, Device]) -> None:
        """Write the specification of a claim; a claim without devices has none.

        Args:
            known: the devices of the node by name, whose attributes go into its metadata.
        """
        if claim.entries:
            try:
                call = _spec(claim, known, self._node)
            except ValueError as error:  # a HostError, so that other claims are written
                raise HostError(
                    f"the CDI specification of claim {claim.full_name} is refused: {error}"
                ) from error
            await self._files.ask(call, NoneType)

    async def remove(self, uid: str) -> None:
        """Remove the specification of a claim, if there is one."""
        await self._files.ask(host_verbs.RemoveClaim(uid=uid), NoneType)

    async def remove_others(self, uids: Iterable[str]) -> None:
        """Remove the specifications of all claims except these."""
        await self._files.ask(host_verbs.KeepClaims(uids=tuple(uids)), NoneType)


def cdi_devices(claim: Prepared, entry: Entry, requests: Iterable[str]) -> tuple[str, ...]:
    """Return the CDI devices that give a claim's device to a container, for these requests."""
    names = [host_verbs.device_name(claim.uid, entry.device, is_admin=entry.is_admin)]
    if claim.uses_mps(entry):
        names.append(f"{claim.uid}{host_verbs.OF_MPS}")
    if claim.has_metadata:
        names += [host_verbs.metadata_name(claim.uid, request) for request in requests]
    return FILES, *(f"{DRA_VENDOR}/{host_verbs.CLAIM_CLASS}={name}" for name in names)


def _spec(claim: Prepared, known: Mapping[str, Device], node: str) -> host_verbs.ClaimSpec:
    share = claim.share
    return host_verbs.ClaimSpec(
        uid=claim.uid, mps=any(map(claim.uses_mps, claim.entries)),
        devices=tuple(
            host_verbs.ClaimDevice(name=entry.device, uuid=entry.uuid, is_admin=entry.is_admin)
            for entry in claim.entries
        ),
        shared_gpu=share.gpu if share else "",
        memory_mib=share.share_mib if share else 0, cores=share.cores if share else 0,
        metadata=_metadata(claim, known, node) if claim.has_metadata else (),
        name=claim.name, pod_claim=claim.pod_claim,
    )  # fmt: skip


def _metadata(
    claim: Prepared, known: Mapping[str, Device], node: str
) -> tuple[host_verbs.RequestMetadata, ...]:
    """Return the metadata of each request of a claim, which containers can read.

    Its schema is that of k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1, 0.36.
    """
    found = []
    for request in dict.fromkeys(name for entry in claim.entries for name in entry.requests):
        entries = [entry for entry in claim.entries if request in entry.requests]
        taken = [name for entry in entries for name in entry.alternatives]
        devices: list[object] = []
        for entry in entries:
            device = known.get(entry.device)
            attributes = {"uuid": entry.uuid, **(device.attributes if device else {})}
            values = {name: attribute(value) for name, value in attributes.items()}
            about = {"driver": DRIVER, "pool": node, "name": entry.device, "attributes": values}
            devices.append(about)
        name = next((name for name in taken if name.startswith(f"{request}/")), request)
        document = {
            "apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
            "metadata": {
                "name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1
            },
            **({"podClaimName": claim.pod_claim} if claim.pod_claim else {}),
            "requests": [{"name": name, "devices": devices}],
        }  # fmt: skip
        found.append(
            host_verbs.RequestMetadata(request=request, document=f"{json.dumps(document)}\n")
        )
    return tuple(found)
