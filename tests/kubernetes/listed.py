# SPDX-License-Identifier: Apache-2.0
"""What the kubelet and the Node object say about a resource, over time.

The kubelet's own list is that of its pod resources API: allocatable devices are those of the last
list of the plugin that are healthy. The Node object follows in the kubelet's own period.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nvct.agent.device_plugin.resources import GPU
from tests.kubernetes import device_plugin
from tests.kubernetes.api import ApiError
from tests.kubernetes.cluster import Cluster
from tests.support.cpu import Limit

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
METHOD = "/v1.PodResourcesLister/GetAllocatableResources"
PERIOD_S = 0.1
"""Between two looks; the kubelet answers 100 a second."""
CALL_S = 2.0
SETTLED_S = 4.0
"""How long both must be right; the Node object is written every 2 s."""
LIMIT_S = 60.0


def _response() -> Any:
    """Return the class of the answer, with the fields that are used here."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/podresources.proto", package="v1", syntax="proto3"
    )
    repeated, text = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED, 9
    devices = file.message_type.add(name="ContainerDevices")
    devices.field.add(name="resource_name", number=1, type=text, label=1)
    devices.field.add(name="device_ids", number=2, type=text, label=repeated)
    answer = file.message_type.add(name="AllocatableResourcesResponse")
    answer.field.add(
        name="devices", number=1, type=11, label=repeated, type_name=".v1.ContainerDevices"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("v1.AllocatableResourcesResponse")
    return message_factory.GetMessageClass(found)


RESPONSE = _response()


def kubelet(cluster: Cluster, name: str = GPU) -> int | None:
    """Return how many devices of a resource the kubelet can give, None if it does not answer."""
    path = f"unix:{cluster.box.root / SOCKET}"
    with grpc.insecure_channel(path, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, Any] = channel.unary_unary(
            METHOD, None, RESPONSE.FromString
        )
        try:
            answer = call(b"", timeout=CALL_S)
        except grpc.RpcError:
            return None
    return sum(len(each.device_ids) for each in answer.devices if each.resource_name == name)


def node(cluster: Cluster, name: str = GPU) -> int | None:
    """Return how many the Node object shows, None if the API server does not answer."""
    try:
        return device_plugin.allocatable(cluster, name)
    except (ApiError, OSError, http.client.HTTPException):
        return None


@dataclass
class History:
    """What both said: (seconds of the wall clock, count) for each look."""

    kubelet: list[tuple[float, int | None]] = field(default_factory=list)
    node: list[tuple[float, int | None]] = field(default_factory=list)


class Watch:
    """Looks at a resource in a thread of its own, as a context manager."""

    def __init__(self, cluster: Cluster, name: str = GPU) -> None:
        """Do nothing yet."""
        self._cluster = cluster
        self._name = name
        self._history = History()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(PERIOD_S):
            looks = ((self._history.kubelet, kubelet), (self._history.node, node))
            for samples, look in looks:
                samples.append((time.time(), look(self._cluster, self._name)))

    def until(self, count: int, event: str, since: float, limit_s: float = LIMIT_S) -> float:
        """Wait until kubelet and Node say so for good; print and return the kubelet's seconds.

        Args:
            count: of devices.
            event: for the print.
            since: when it was, by the wall clock.
            limit_s: for both.

        Raises:
            AssertionError: the time is up.
        """
        limit = Limit(limit_s)
        while True:
            took = [
                _settled(samples, count, since)
                for samples in (self._history.kubelet, self._history.node)
            ]
            if None not in took:
                break
            assert not limit.is_over, (event, self._history.kubelet[-20:])
            time.sleep(PERIOD_S)
        listed, shown = (seconds or 0.0 for seconds in took)
        print(f"{event}: the kubelet's list is right after {listed:.2f} s, the Node {shown:.2f} s")
        return listed

    def wrong(self, count: int, since: float) -> int:
        """Return in how many looks since then the kubelet's list had another count.

        On a busy machine looks take as much longer as what they look at. There are 8 a second on
        an idle one.
        """
        looks = [found for at, found in self._history.kubelet if at >= since]
        return sum(found not in (count, None) for found in looks)

    def least(self, since: float) -> int:
        """Return the smallest count that the kubelet said since then."""
        return min(
            count for at, count in self._history.kubelet if at >= since and count is not None
        )


def _settled(samples: list[tuple[float, int | None]], count: int, since: float) -> float | None:
    """Return the seconds from an event until samples were right for good; None if not yet."""
    later = [(at, value) for at, value in samples if at >= since]
    if not later or later[-1][1] != count:
        return None
    right_since = since
    for (before, value), (at, _) in itertools.pairwise(later):
        if value != count:
            right_since = max(before, at)
    is_settled = later[-1][0] - right_since >= SETTLED_S and later[-1][0] - since >= SETTLED_S
    return right_since - since if is_settled else None
