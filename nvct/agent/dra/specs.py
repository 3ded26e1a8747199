# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the driver: one with the driver's files, and one for each claim.

A claim's devices have device nodes alone. Each container gets the driver's files, too, by a CDI
device that all claims share, so that two claims of a container do not give them twice; and what
MPS needs by one that the devices of its claim share. All are derived: from the machine and from
the journal.
"""

from __future__ import annotations

import contextlib
import glob
import os

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.mps import clients
from nvct.agent.mps.place import DEFAULT_ROOT
from nvct.cdi import store
from nvct.errors import HostError
from nvct.spec.generate import VOID_ENV

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvct.agent.dra.journal import Entry, Prepared
    from nvct.agent.mps.daemons import Daemon
    from nvct.cdi.types import ContainerEdits, Device, Spec

DRIVER_CLASS, CLAIM_CLASS = "driver", "claim"
MPS = "-mps"
"""The end of the name of a claim's CDI device for MPS."""
FILES = f"{DRA_VENDOR}/{DRIVER_CLASS}=files"
"""The CDI device with the driver's files."""
OPTIONS = ("nosuid", "nodev", "bind")
"""Of the mounts for MPS."""


class Specs:
    """The specifications in a folder.

    Attributes:
        edits: those of each GPU or MIG device by its UUID, None before `update`.
    """

    def __init__(self, folder: str, mps_root: str = DEFAULT_ROOT) -> None:
        """Write nothing yet; `mps_root` is the folder of MPS on the host."""
        self.edits: Mapping[str, ContainerEdits] | None = None
        self._folder = folder
        self._mps_root = mps_root

    def update(self, spec: Spec) -> None:
        """Write the driver's files of a specification of all GPUs, and keep their devices.

        Raises:
            HostError: the file cannot be written.
        """
        self.edits = {one["name"]: one["containerEdits"] for one in spec["devices"]}
        driver: Spec = {
            "cdiVersion": "",
            "kind": f"{DRA_VENDOR}/{DRIVER_CLASS}",
            # CDI refuses a device without an edit; this one changes nothing.
            "devices": [{"name": "files", "containerEdits": {"env": [VOID_ENV]}}],
            "containerEdits": spec.get("containerEdits", {}),
        }
        store.save(driver, f"{self._folder}/{DRA_VENDOR}-{DRIVER_CLASS}.json", "json")

    def write(self, claim: Prepared) -> None:
        """Write the specification of a claim; a claim without devices has none.

        Raises:
            HostError: a device is not there, or the file cannot be written.
        """
        edits = self.edits or {}
        for entry in claim.entries:
            if entry.uuid not in edits:
                raise HostError(
                    f"device {entry.device} ({entry.uuid}) of claim {claim.namespace}/"
                    f"{claim.name} is not on this node",
                    hint="was the GPU or MIG device removed?",
                )
        if not claim.entries:
            return
        spec: Spec = {
            "cdiVersion": "",
            "kind": f"{DRA_VENDOR}/{CLAIM_CLASS}",
            "devices": [
                {"name": _name(claim.uid, entry), "containerEdits": edits[entry.uuid]}
                for entry in claim.entries
            ],
        }
        if claim.daemon is not None:
            spec["devices"].append(self._mps(claim.uid, claim.daemon))
        store.save(spec, self._path(claim.uid), "json")

    def remove(self, uid: str) -> None:
        """Remove the specification of a claim, if there is one.

        Raises:
            HostError: it cannot be removed.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(uid))
        except OSError as error:
            raise HostError(f"{self._path(uid)} cannot be removed: {error.strerror}") from error

    def remove_others(self, uids: Iterable[str]) -> None:
        """Remove the specifications of all claims but some."""
        kept = {self._path(uid) for uid in uids}
        for path in glob.glob(self._path("*")):
            if path not in kept:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _mps(self, uid: str, daemon: Daemon) -> Device:
        edits: ContainerEdits = {
            "env": ["=".join(clients.variable(daemon.resource))],
            "mounts": [
                {
                    "hostPath": mount.host_path,
                    "containerPath": mount.path,
                    "options": ["ro" if mount.is_read_only else "rw", *OPTIONS],
                }
                for mount in clients.mounts(daemon.resource, self._mps_root)
            ],
        }
        return {"name": f"{uid}{MPS}", "containerEdits": edits}

    def _path(self, uid: str) -> str:
        return f"{self._folder}/{DRA_VENDOR}-{CLAIM_CLASS}_{uid}.json"


def cdi_devices(claim: Prepared, entry: Entry) -> tuple[str, ...]:
    """Return the CDI devices that give a claim's device to a container."""
    names = [_name(claim.uid, entry)]
    if claim.uses_mps(entry):
        names.append(f"{claim.uid}{MPS}")
    return FILES, *(f"{DRA_VENDOR}/{CLAIM_CLASS}={name}" for name in names)


def _name(uid: str, entry: Entry) -> str:
    """Return a name of CDI; a claim may have a device twice, once of them with admin access."""
    return f"{uid}-{entry.device}{'-admin' if entry.is_admin else ''}"
