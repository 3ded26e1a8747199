# SPDX-License-Identifier: Apache-2.0
"""A host of plain files, and its snapshot."""

from pathlib import Path

from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.snapshot import document, record
from nvct.host.snapshot.document import Snapshot
from tests.support.host_tree import FakeNvml, HostTree

ICD = '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}'


def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host").module().user_space().gpu(0)


def recorded(tree: HostTree, nvml: FakeNvml | None = None) -> Snapshot:
    options = DiscoveryOptions(nvml=nvml, stat_node=tree.stat_node, machine="x86_64")
    return record.record(tree.roots, options)


def everything(snapshot: Snapshot) -> str:
    return b"\n".join(data for _, data in document.entries(snapshot)).decode()
