# SPDX-License-Identifier: Apache-2.0
"""What the driver asks for of CDI specifications, and the names of the devices in them.

`nvct.agent.dra.specs` has what is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import NoneType

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.host_side import Host
from nvct.agent.machine.place import Place
from nvct.agent.nvml.host_verbs import (
    CLAIM_CLASS,
    DRIVER_CLASS,
    OF_MPS,
    ClaimDevice,
    ClaimSpec,
    DriverSpec,
    KeepClaims,
    Published,
    RemoveClaim,
    device_name,
)
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:  # NVML's worker imports this module, and must not load gRPC
    from nvct.agent.dra.journal import Entry, Prepared
    from nvct.agent.dra.settings import Settings
    from nvct.agent.machine.discovery import Discovery
    from nvct.agent.machine.place import Signature

FILES = f"{DRA_VENDOR}/{DRIVER_CLASS}=files"
"""The CDI device with the driver's files."""


class ClaimSpecs:
    """The specifications of this node's claims; what is not written or removed raises NvctError.

    Attributes:
        is_known: whether the driver's files were written, so that those of claims can be.
        signature: changes when specifications of others do.
    """

    def __init__(self, settings: Settings, discovery: Discovery) -> None:
        self.is_known = False
        self.signature: Signature = ()
        place = Place(
            roots=discovery.roots, settings=settings.specs, folder=settings.cdi_root,
            mps_root=settings.mps_root, stat_node=discovery.stat_node,
        )  # fmt: skip
        self._files = Host(discovery.nvml, lambda: place)

    async def look(self) -> None:
        """Learn the signature; it stays as it was while nobody answers."""
        with contextlib.suppress(NvctError):  # the look at the machine tells
            self.signature = await self._files.ask(
                Published(), tuple[tuple[str, int, int, int], ...]
            )

    async def update(self) -> tuple[str, ...]:
        """Write the driver's files, and know the devices that there are; return warnings."""
        warnings = await self._files.ask(DriverSpec(), tuple[str, ...])
        self.is_known = True
        return warnings

    async def write(self, claim: Prepared) -> None:
        """Write the specification of a claim; a claim without devices has none."""
        devices = tuple(
            ClaimDevice(name=entry.device, uuid=entry.uuid, is_admin=entry.is_admin)
            for entry in claim.entries
        )
        if devices:
            share = claim.share
            call = ClaimSpec(
                uid=claim.uid, devices=devices, mps=claim.daemon is not None,
                shared_gpu=share.gpu if share else "",
                memory_mib=share.share_mib if share else 0, cores=share.cores if share else 0,
            )  # fmt: skip
            await self._files.ask(call, NoneType)

    async def remove(self, uid: str) -> None:
        """Remove the specification of a claim, if there is one."""
        await self._files.ask(RemoveClaim(uid=uid), NoneType)

    async def remove_others(self, uids: Iterable[str]) -> None:
        """Remove the specifications of all claims but some."""
        await self._files.ask(KeepClaims(uids=tuple(uids)), NoneType)


def cdi_devices(claim: Prepared, entry: Entry) -> tuple[str, ...]:
    """Return the CDI devices that give a claim's device to a container."""
    names = [device_name(claim.uid, entry.device, is_admin=entry.is_admin)]
    if claim.uses_mps(entry):
        names.append(f"{claim.uid}{OF_MPS}")
    return FILES, *(f"{DRA_VENDOR}/{CLAIM_CLASS}={name}" for name in names)
