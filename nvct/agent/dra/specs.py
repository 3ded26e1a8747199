# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the driver: one with the driver's files, and one for each claim.

A claim's devices have device nodes alone. Each container gets the driver's files, too, by a CDI
device that all claims share, so that two claims of a container do not give them twice; and what
MPS needs by one that the devices of its claim share. All are derived: from the machine and from
the journal. What cannot be written or removed raises HostError.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Mapping

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.mps import daemons
from nvct.agent.mps.daemons import CLAIMS
from nvct.agent.nvml.host_verbs import CLAIM_CLASS, DRIVER_CLASS, OF_MPS, ClaimSpec, device_name
from nvct.cdi.make import store
from nvct.cdi.make.generate import VOID_ENV
from nvct.cdi.types import ContainerEdits, Device, Spec
from nvct.errors import HostError
from nvct.oci.jsontext import Json

OPTIONS = ("nosuid", "nodev", "bind")
"""Of the mounts for MPS."""


def edits_of(spec: Spec) -> dict[str, Json]:
    """Return the edits of each GPU or MIG device by its UUID."""
    return {one["name"]: one["containerEdits"] for one in spec["devices"]}  # type: ignore[misc]


def write_driver(spec: Spec, folder: str) -> None:
    """Write the driver's files of a specification of all GPUs."""
    driver: Spec = {
        "cdiVersion": "",
        "kind": f"{DRA_VENDOR}/{DRIVER_CLASS}",
        # CDI refuses a device without an edit; this one changes nothing.
        "devices": [{"name": "files", "containerEdits": {"env": [VOID_ENV]}}],
        "containerEdits": spec.get("containerEdits", {}),
    }
    store.save(driver, f"{folder}/{DRA_VENDOR}-{DRIVER_CLASS}.json", "json")


def write_claim(
    claim: ClaimSpec, edits: Mapping[str, ContainerEdits], folder: str, mps_root: str
) -> None:
    """Write the specification of a claim."""
    for device in claim.devices:
        if device.uuid not in edits:
            raise HostError(
                f"device {device.name} ({device.uuid}) of claim {claim.uid} is not on this node",
                hint="was the GPU or MIG device removed?",
            )
    spec: Spec = {
        "cdiVersion": "",
        "kind": f"{DRA_VENDOR}/{CLAIM_CLASS}",
        "devices": [
            {
                "name": device_name(claim.uid, device.name, is_admin=device.is_admin),
                "containerEdits": edits[device.uuid],
            }
            for device in claim.devices
        ],
    }
    if claim.mps:
        spec["devices"].append(_mps(claim, mps_root))
    store.save(spec, _path(folder, claim.uid), "json")


def remove(uid: str, folder: str) -> None:
    """Remove the specification of a claim, if there is one."""
    path = _path(folder, uid)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error


def remove_others(uids: Iterable[str], folder: str) -> None:
    """Remove the specifications of all claims but some."""
    kept = {_path(folder, uid) for uid in uids}
    for path in glob.glob(_path(glob.escape(folder), "*")):
        if path not in kept:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _mps(claim: ClaimSpec, mps_root: str) -> Device:
    gpu = claim.shared_gpu
    resource = daemons.of_shares(gpu) if gpu else f"{CLAIMS}{claim.uid}"
    variables = [daemons.variable(resource)]
    if gpu:
        variables += daemons.share_variables(claim.memory_mib, claim.cores).items()
    edits: ContainerEdits = {
        "env": ["=".join(variable) for variable in variables],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.path,
                "options": ["ro" if mount.is_read_only else "rw", *OPTIONS],
            }
            for mount in daemons.mounts(resource, mps_root)
        ],
    }
    return {"name": f"{claim.uid}{OF_MPS}", "containerEdits": edits}


def _path(folder: str, uid: str) -> str:
    return f"{folder}/{DRA_VENDOR}-{CLAIM_CLASS}_{uid}.json"
