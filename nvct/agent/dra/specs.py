# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the driver: one with the driver's files, and one for each claim.

The devices of a claim have device nodes only. The driver's files are one CDI device for all
claims, so that a container with two claims does not get them twice. What MPS needs is one CDI
device for each claim. All specifications are derived from the machine and the journal. HostError
if one cannot be written or removed.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Mapping

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.mps import daemons
from nvct.agent.mps.daemons import CLAIMS
from nvct.agent.nvml.host_verbs import (
    CLAIM_CLASS,
    DRIVER_CLASS,
    OF_MPS,
    ClaimSpec,
    RequestMetadata,
    device_name,
    metadata_name,
)
from nvct.cdi.make import store
from nvct.cdi.make.generate import VOID_ENV
from nvct.cdi.types import ContainerEdits, Device, Mount, Spec
from nvct.errors import HostError
from nvct.linux.files import write_atomic
from nvct.oci.jsontext import Json

OPTIONS = ("nosuid", "nodev", "bind")
METADATA, FILE = "nvct-metadata", "gpu.nvidia.com-metadata.json"
IN_CONTAINERS = "/var/run/kubernetes.io/dra-device-attributes"
"""The folder of metadata in containers (k8s.io/dynamic-resource-allocation/api/metadata, 0.36)."""


def edits_of(spec: Spec) -> dict[str, Json]:
    """Return the edits of each GPU or MIG device by its UUID."""
    return {one["name"]: one["containerEdits"] for one in spec["devices"]}  # type: ignore[misc]


def write_driver(spec: Spec, folder: str) -> None:
    """Write the specification of the driver's files, taken from one of all GPUs."""
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
    spec["devices"] += [_metadata(claim, one, folder) for one in claim.metadata]
    _remove(theirs(folder, claim.uid))
    store.save(spec, _path(folder, claim.uid), "json")


def theirs(folder: str, uid: str) -> str:
    """Return the file that NVIDIA's DRA driver writes for a claim, with the same device names."""
    return _path(folder, uid).removesuffix("json") + "yaml"


def remove(uid: str, folder: str) -> None:
    """Remove a claim's specification and metadata, and the file of NVIDIA's DRA driver for it."""
    _remove(_path(folder, uid), theirs(folder, uid), *_metadata_files(folder, uid))


def remove_others(uids: Iterable[str], folder: str) -> None:
    """Remove the specifications and metadata of all claims except these."""
    known = set(uids)
    kept = {_path(folder, uid) for uid in known}
    gone = [path for path in glob.glob(_path(glob.escape(folder), "*")) if path not in kept]
    files = _metadata_files(folder, "*")
    gone += [path for path in files if os.path.basename(path).partition("_")[0] not in known]
    for path in gone:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _metadata(claim: ClaimSpec, metadata: RequestMetadata, folder: str) -> Device:
    """Write a request's metadata to a folder that CDI does not read; return the CDI device."""
    path = f"{folder}/{METADATA}/{claim.uid}_{metadata.request}.json"
    try:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        write_atomic(path, metadata.document.encode(), mode=0o644)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error
    kind = f"resourceclaimtemplates/{claim.pod_claim}" if claim.pod_claim else ""
    of_claim = kind or f"resourceclaims/{claim.name}"
    inside = f"{IN_CONTAINERS}/{of_claim}/{metadata.request}/{FILE}"
    mount: Mount = {"hostPath": path, "containerPath": inside, "options": ["ro", *OPTIONS]}
    return {
        "name": metadata_name(claim.uid, metadata.request), "containerEdits": {"mounts": [mount]}
    }  # fmt: skip


def _metadata_files(folder: str, uid: str) -> list[str]:
    return glob.glob(f"{glob.escape(folder)}/{METADATA}/{uid}_*.json")


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


def _remove(*paths: str) -> None:
    for path in paths:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise HostError(f"{path} cannot be removed: {error.strerror}") from error


def _path(folder: str, uid: str) -> str:
    return f"{folder}/{DRA_VENDOR}-{CLAIM_CLASS}_{uid}.json"
