# SPDX-License-Identifier: Apache-2.0
"""What the kubelet gave a container of a pod, from its own records.

Hot; loaded only for a policy rule that needs it. The kubelet writes each answer of a device plugin
to Allocate, and of a DRA driver to NodePrepareResources, into checkpoints that only root can read,
before it has the engine create the container (pkg/kubelet/cm/devicemanager and dra of Kubernetes).
So neither an image nor the author of a pod can write them, and a pod cannot use the entry of
another one. Contract: an unreadable record is an error; a pod without devices has no entry.
"""

from __future__ import annotations

import posix
from binascii import a2b_base64

from nvct.errors import DocumentError
from nvct.linux.files import read_bytes
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nvct.container.request.model import Env

FOLDER = "device-plugins"
FILE = "kubelet_internal_checkpoint"
CLAIMS = "dra_manager_state"  # In the kubelet's folder itself
LIMIT = 4 << 20
"""Bytes of a record. It takes up to 12 times as much memory, and nvct-nri may use 128 MiB. A
record of 250 pods with answers of 5 KiB has 2 MB."""
UID_LENGTH = 32  # Of a UID without its dashes
HEX = "0123456789abcdef"
JOINED = frozenset({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS"})
"""Lists that are joined: if two answers have one, the kubelet passes only one of the two on."""
ENVS, MOUNTS, NODES, ANNOTATIONS, NAMES = 1, 2, 3, 4, 5
"""Fields of ContainerAllocateResponse: kubelet.proto."""
VARINT, BYTES = 0, 2


class Answer:
    """The answers of all device plugins for one container."""

    __slots__ = ("annotations", "env", "mounts", "names", "nodes")

    def __init__(self) -> None:
        # env, annotations: as in config.json, if the pod's author does not replace them
        self.env: Env = {}
        self.annotations: dict[str, object] = {}
        self.mounts: list[Mapping[str, object]] = []  # as in config.json, without options
        # nodes, names: host paths of device nodes, and CDI names, for the engine itself
        self.nodes: list[str] = []
        self.names: list[str] = []

    def add(self, answer: bytes) -> None:
        """Add a plugin's answer, a ContainerAllocateResponse; ValueError if it is malformed."""
        for number, content in _fields(answer):
            if number in (ENVS, ANNOTATIONS, MOUNTS, NODES, NAMES):
                pair = dict(_fields(content))
                first, second = pair.get(1, b"").decode(), pair.get(2, b"").decode()
                if number == NODES:
                    self.nodes.append(second)
                elif number == NAMES:
                    self.names.append(first)
                elif number == MOUNTS:
                    self.mounts.append({"destination": first, "source": second})
                elif number == ANNOTATIONS:
                    self.annotations[first] = second
                elif first in JOINED and first in self.env:
                    self.env[first] += f",{second}"
                else:
                    self.env[first] = second


def pod_uid(cgroup: str) -> str:
    """Return the UID of the pod to which a cgroup of the kubelet belongs, "" if there is none.

    linux.cgroupsPath is /kubepods/burstable/podUID/ID, or
    kubepods-burstable-podUID.slice:PREFIX:ID with _ for the dashes of the UID.
    """
    for name in reversed(cgroup.partition(":")[0].split("/")):
        _, pod, uid = name.removesuffix(".slice").rpartition("pod")
        uid = uid.replace("_", "-")
        letters = uid.replace("-", "")
        if pod and len(letters) == UID_LENGTH and not letters.strip(HEX):
            return uid
    return ""


def read(folder: str, uid: str) -> dict[str, Answer]:
    """Return what the containers of a pod were given, by their names. Raises DocumentError."""
    path = f"{folder}/{FOLDER}/{FILE}"
    try:
        posix.stat(f"{folder}/{FOLDER}")  # in a wrong folder the record is missing, too
        text = read_bytes(path, LIMIT).decode()
    except FileNotFoundError as error:
        if str(error.filename).endswith(FILE):
            return {}  # the kubelet has given no device to anybody
        raise DocumentError(
            f"{folder}/{FOLDER} does not exist",
            hint="set given-by-kubelet to the kubelet's --root-dir",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path} cannot be read: {error}") from error
    try:
        return _answers(jsontext.parse(text, path), uid)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DocumentError(f"{path} is not a kubelet checkpoint that nvct can read") from error


def claimed(folder: str, uid: str) -> list[str]:
    """Return the CDI names that DRA drivers gave for the claims of a pod. Raises DocumentError."""
    path = f"{folder}/{CLAIMS}"
    try:
        record: Any = jsontext.parse(read_bytes(path, LIMIT).decode(), path)
        document: Any = jsontext.parse(record["Data"], path)
        return [
            name
            for claim in document["ClaimInfoStateList"] or ()
            if uid in (claim["PodUIDs"] or ())
            for state in (claim["DriverState"] or {}).values()
            for device in state["Devices"] or ()
            for name in device["CDIDeviceIDs"] or ()
        ]
    except FileNotFoundError:
        return []  # a kubelet without DRA
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"{path} is not a kubelet checkpoint that nvct can read") from error


def _answers(record: jsontext.Json, uid: str) -> dict[str, Answer]:
    document: Any = record
    answers: dict[str, Answer] = {}
    for entry in document["Data"]["PodDeviceEntries"] or ():
        if entry["PodUID"] == uid:
            answer = answers.setdefault(entry["ContainerName"], Answer())
            answer.add(a2b_base64(entry["AllocResp"] or ""))
    return answers


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a protobuf message that contain bytes, with their numbers."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == BYTES:
            if at + value > len(message):
                raise ValueError("it ends within a field")
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 != VARINT:
            raise ValueError("it has a field of an unknown type")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
