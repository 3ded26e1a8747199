# SPDX-License-Identifier: Apache-2.0
"""Inventories as values, over a HostTree with existing files and nodes.

They do not come from discovery, so that tests of their use do not depend on it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nvct.host.model import (
    Capability,
    DeviceNode,
    DriverFile,
    FileKind,
    Gpu,
    Inventory,
    Link,
    MigDevice,
)
from tests.support.host_tree import BUSES, LIB, VERSION, HostTree


def mig_uuid(gpu: int, index: int) -> str:
    return f"MIG-{gpu:08d}-{index:04d}-bbbb-cccc-000000000000"


class Machine:
    """A host with a driver and GPUs; `inventory` returns its current state."""

    def __init__(self, base: Path, gpus: int = 1) -> None:
        self.host = HostTree(base).module().user_space()
        self.gpus = list(range(gpus))
        self.mig: dict[int, list[int]] = {}
        for index in self.gpus:
            self.host.gpu(index)

    def partition(self, gpu: int, count: int) -> None:
        """Put a GPU in MIG mode, with `count` devices."""
        self.mig[gpu] = list(range(count))
        for index in self.mig[gpu]:
            caps = self._caps(gpu, index)
            self.host.instance(gpu, index + 1, 0, caps)

    def node(self, name: str, capability: Capability = "") -> DeviceNode:
        path = f"{self.host.base}/dev/{name}"
        found = self.host.stat_node(path)
        assert found is not None, path
        major, minor, mode, uid, gid = found
        return DeviceNode(
            path=f"/dev/{name}", host_path=path, major=major, minor=minor, mode=mode, uid=uid,
            gid=gid, reason=f"test {name}", capability=capability,
        )  # fmt: skip

    def file(
        self,
        path: str,
        kind: FileKind = "library",
        capability: Capability = "compute",
        links: Sequence[Link] = (),
    ) -> DriverFile:
        return DriverFile(
            host_path=f"{self.host.driver}{path}", container_path=path, reason="a test wants it",
            kind=kind, capability=capability, links=tuple(links),
        )  # fmt: skip

    def inventory(
        self, *, version: str = VERSION, minors: Mapping[int, int] | None = None, **more: object
    ) -> Inventory:
        """Return the inventory; `minors` maps a GPU's index to another minor."""
        links = [
            Link(target=f"libcuda.so.{version}", path=f"/{LIB}/libcuda.so.1"),
            Link(target="libcuda.so.1", path=f"/{LIB}/libcuda.so"),
        ]
        whole: dict[str, object] = {
            "driver_version": version,
            "gpus": tuple(
                self._gpu(index, (minors or {}).get(index, index)) for index in self.gpus
            ),
            "control_nodes": (self.node("nvidia-uvm", "compute"), self.node("nvidiactl")),
            "files": (
                self.file(f"/{LIB}/libcuda.so.{version}", links=links),
                self.file(f"/{LIB}/libnvidia-ml.so.{version}", capability="utility"),
                self.file("/usr/bin/nvidia-smi", "binary", "utility"),
            ),
            **more,
        }
        return Inventory(**whole)  # type: ignore[arg-type]  # the fields, by name

    def _gpu(self, index: int, minor: int) -> Gpu:
        return Gpu(
            index=index,
            minor=minor,
            uuid=HostTree.uuid(index),
            bus_id=f"0000:{BUSES[index]}:00.0",
            model="NVIDIA H100 80GB HBM3",
            node=self.node(f"nvidia{minor}"),
            drm_nodes=(self.node(f"dri/card{index + 1}", "graphics"),),
            by_path=(
                Link(
                    target=f"../card{index + 1}",
                    path=f"/dev/dri/by-path/pci-0000:{BUSES[index]}:00.0-card",
                ),
            ),
            mig_enabled=index in self.mig,
            mig=tuple(self._mig(index, one) for one in self.mig.get(index, ())),
        )

    def _mig(self, gpu: int, index: int) -> MigDevice:
        caps = self._caps(gpu, index)
        return MigDevice(
            index=index, uuid=mig_uuid(gpu, index), gi=index + 1, ci=0, profile="1g.10gb",
            cap_minors=caps, nodes=tuple(self.node(f"nvidia-caps/nvidia-cap{n}") for n in caps),
        )  # fmt: skip

    @staticmethod
    def _caps(gpu: int, index: int) -> tuple[int, int]:
        first = 10 + 20 * gpu + 2 * index
        return first, first + 1
