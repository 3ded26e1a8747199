# SPDX-License-Identifier: Apache-2.0
"""CDI container edits from device nodes and files of an inventory. No I/O."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    from nvct.host.model import DeviceNode, DriverFile

    Json: TypeAlias = dict[str, Any]

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


def make(
    nodes: Iterable[DeviceNode] = (),
    files: Iterable[DriverFile] = (),
    *,
    env: Sequence[str] = (),
    hooks: Sequence[Json] = (),
    node_numbers: bool = False,
    gid_groups: bool = True,
) -> Json:
    """Return container edits, without empty lists.

    Args:
        nodes: to make in the container.
        files: to mount in it.
        env: variables to set.
        hooks: entries in their final form.
        node_numbers: write type, major and minor of nodes.
        gid_groups: add the groups of nodes that are not world-accessible to the container.
    """
    nodes = list(nodes)
    groups = {n.gid for n in nodes if n.gid and n.mode & 0o006 != 0o006}
    edits = {
        "env": list(env),
        "deviceNodes": [_node(node, numbers=node_numbers) for node in nodes],
        "mounts": [_mount(file) for file in files],
        "hooks": list(hooks),
        "additionalGids": sorted(groups) if gid_groups else [],
    }
    return {key: value for key, value in edits.items() if value}


def _node(node: DeviceNode, *, numbers: bool) -> Json:
    entry: Json = {"path": node.path}
    if node.host_path != node.path:
        entry["hostPath"] = node.host_path
    if numbers:
        entry.update({"type": "c", "major": node.major, "minor": node.minor})
    if node.mode & 0o777:
        entry["fileMode"] = node.mode & 0o777
    entry["permissions"] = "rwm"
    if node.gid:
        entry["gid"] = node.gid
    return entry


def _mount(file: DriverFile) -> Json:
    # As nvidia-container-toolkit: programs write to sockets and into the MPS directory.
    options = SOCKET_OPTIONS if file.kind == "socket" else FILE_OPTIONS
    return mount(file.host_path, file.container_path, options)


def mount(source: str, target: str, options: Sequence[str] = FILE_OPTIONS) -> Json:
    """Return the entry of a mount; by default it is read-only."""
    return {"hostPath": source, "containerPath": target, "options": list(options)}
