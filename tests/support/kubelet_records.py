# SPDX-License-Identifier: Apache-2.0
"""The kubelet's record of what device plugins answered, as the kubelet writes it."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.container.request.kubelet_record import CLAIMS, FILE, FOLDER

UID = "ac09af53-227b-4283-9cf2-f39c6824a7ee"
CONTAINER = "main"


@dataclass(frozen=True, kw_only=True)
class Given:
    """The answer of a device plugin for a container, with the devices of a resource."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[tuple[str, str]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: Sequence[str] = ()
    uid: str = UID
    container: str = CONTAINER
    resource: str = "nvidia.com/gpu"
    devices: Sequence[str] = ()

    def entry(self) -> dict[str, object]:
        answer = api.ContainerAllocateResponse(envs=self.env, annotations=self.annotations)
        for source, path in self.mounts:
            answer.mounts.add(host_path=source, container_path=path, read_only=True)
        for name in self.cdi:
            answer.cdi_devices.add(name=name)
        answer.devices.add(host_path="/dev/nvidiactl", container_path="/dev/nvidiactl")
        return {
            "PodUID": self.uid, "ContainerName": self.container, "ResourceName": self.resource,
            "DeviceIDs": {"0": list(self.devices)},
            "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
        }  # fmt: skip


def write_claims(kubelet: Path, *names: str, uid: str = UID) -> None:
    """Write the record of a claim that a DRA driver prepared with some CDI names."""
    device = {"PoolName": "node", "DeviceName": "gpu-0", "ShareID": None,
              "RequestNames": ["gpu"], "CDIDeviceIDs": list(names)}  # fmt: skip
    claim = {
        "ClaimUID": "1", "ClaimName": "gpu", "Namespace": "default", "PodUIDs": {uid: {}},
        "DriverState": {"gpu.nvidia.com": {"Devices": [device]}},
    }  # fmt: skip
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": [claim]}  # fmt: skip
    text = json.dumps({"Data": json.dumps(data), "Checksum": 1})
    (kubelet / CLAIMS).write_text(text)


def write(kubelet: Path, *given: Given) -> Path:
    """Write the record into a kubelet's folder, and return its path."""
    path = kubelet / FOLDER / FILE
    path.parent.mkdir(exist_ok=True)
    data: dict[str, object] = {
        "PodDeviceEntries": [each.entry() for each in given] or None,
        "RegisteredDevices": {},
    }
    path.write_text(json.dumps({"Data": data, "Checksum": 1}))
    return path
