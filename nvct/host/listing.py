# SPDX-License-Identifier: Apache-2.0
"""Output formats of an inventory: JSON, table, bind arguments. No I/O.

Contract: `inventory.schema.json` describes the JSON. Its `version` increases when a member is
removed or changes its meaning, not when one is added.
"""

from __future__ import annotations

import json
import posixpath
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TypeAlias

from nvct.errors import printable
from nvct.host.model import DeviceNode, DriverFile, Gpu, Inventory, Link

Row: TypeAlias = tuple[str, str, str, str]

VERSION = 1
NARROWEST = 40  # columns; a folded table is at least so wide
HEAD: Row = ("KIND", "CAPABILITY", "PATH", "REASON")


def as_json(inventory: Inventory, *, left_out: bool = False) -> str:
    """Return an inventory as one JSON document."""
    shown = asdict(inventory if left_out else replace(inventory, left_out=()))
    if not left_out:
        del shown["left_out"]
    # File names are not always UTF-8: other bytes are written as escaped surrogates.
    return json.dumps({"version": VERSION, **shown}, indent=2) + "\n"


def as_table(inventory: Inventory, *, left_out: bool = False, width: int = 0) -> str:
    """Return an inventory as a table; "HOST -> CONTAINER" shows a path that differs.

    A row wider than `width` columns is folded, unless that is 0.
    """
    rows = [HEAD, *_rows(inventory)]
    if left_out:
        rows += [("left out", "", entry.path, entry.reason) for entry in inventory.left_out]
    escaped: list[Row] = [
        (printable(kind), printable(capability), printable(path), printable(reason))
        for kind, capability, path, reason in rows
    ]
    widths = [max(len(row[column]) for row in escaped) for column in range(3)]
    lines = [
        "  ".join((*(c.ljust(w) for c, w in zip(row[:3], widths, strict=True)), row[3])).rstrip()
        for row in escaped
    ]
    if width and max(map(len, lines)) > width:
        lines = [line for row in escaped for line in _folded(row, widths, max(width, NARROWEST))]
    return "".join(f"{line}\n" for line in lines)


def _folded(row: Row, widths: Sequence[int], width: int) -> Iterator[str]:
    kind, capability, path, reason = row
    head = f"{kind.ljust(widths[0])}  {capability.ljust(widths[1])}  "
    room = width - len(head)
    for start in range(0, len(path), room) or (0,):
        part = path[start : start + room]
        yield f"{head if start == 0 else ' ' * len(head)}{part}".rstrip()
    indent = " " * (len(head) + 2)
    yield from textwrap.wrap(reason, width, initial_indent=indent, subsequent_indent=indent)


def as_binds(inventory: Inventory) -> tuple[list[str], list[str]]:
    """Return SRC:DST:OPTIONS for each file and node, and the paths that cannot be written so.

    OPTIONS are ro for files, rw for sockets and rwm for device nodes. A link becomes a bind of its
    file at the link's path. The links in /dev/dri/by-path cannot be written so: they have colons.
    """
    binds: dict[str, tuple[str, str]] = {}
    for node in inventory.every_node():
        binds.setdefault(node.path, (node.host_path, "rwm"))
    files = inventory.every_file()
    for file in files:
        options = "rw" if file.kind == "socket" else "ro"
        binds.setdefault(file.container_path, (file.host_path, options))
    sources = {file.container_path: file.host_path for file in files}
    of_devices = (link for device in inventory.devices for link in device.links)
    of_files = (link for file in files for link in file.links)
    links = {link.path: link for link in (*inventory.links, *of_devices, *of_files)}
    impossible = []
    for path, link in sorted(links.items()):
        source = sources.get(_end_of(link, links))
        if source is None:
            impossible.append(path)
        else:
            binds.setdefault(path, (source, "ro"))
    lines = []
    for target, (source, options) in sorted(binds.items()):
        if ":" in source + target or not (source + target).isprintable():
            impossible.append(target)
        else:
            lines.append(f"{source}:{target}:{options}")
    return lines, impossible


def _rows(inventory: Inventory) -> Iterator[Row]:
    for gpu in inventory.gpus:
        yield from _gpu_rows(gpu)
    for device in inventory.devices:
        name = f"{device.name} {device.uuid}".rstrip()
        yield "device", "", name, f"of mode {inventory.mode}"
        yield from (_node_row(node) for node in device.nodes)
        yield from _file_rows(device.files)
        yield from (_link_row(link, "") for link in device.links)
    yield from (_node_row(node) for node in inventory.control_nodes)
    yield from _file_rows(inventory.files)
    yield from (_link_row(link, "") for link in inventory.links)


def _gpu_rows(gpu: Gpu) -> Iterator[Row]:
    state = "" if gpu.node else "; it has no device node, so no container gets it"
    state += "; in MIG mode" if gpu.mig_enabled else ""
    yield "gpu", "", f"{gpu.index} {gpu.uuid}", f"{gpu.model} at {gpu.bus_id}{state}"
    nodes = (gpu.node, *gpu.drm_nodes) if gpu.node else gpu.drm_nodes
    yield from (_node_row(node) for node in nodes)
    yield from (_link_row(link, "graphics") for link in gpu.by_path)
    for mig in gpu.mig:
        reason = f"MIG device {mig.profile} of GPU {gpu.index}".replace("  ", " ")
        yield "mig", "", f"{gpu.index}:{mig.index} {mig.uuid}", reason
        yield from (_node_row(node) for node in mig.nodes)


def _node_row(node: DeviceNode) -> Row:
    numbers = f"{node.major}:{node.minor} {node.mode:04o}"
    return "node", node.capability, _moved(node.host_path, node.path), f"{node.reason}; {numbers}"


def _file_rows(files: Sequence[DriverFile]) -> Iterator[Row]:
    for file in files:
        path = _moved(file.host_path, file.container_path)
        yield file.kind, file.capability, path, file.reason
        yield from (_link_row(link, file.capability) for link in file.links)


def _link_row(link: Link, capability: str) -> Row:
    return "link", capability, link.path, f"leads to {link.target}"


def _moved(host_path: str, container_path: str) -> str:
    return host_path if host_path == container_path else f"{host_path} -> {container_path}"


def _end_of(link: Link, links: dict[str, Link]) -> str:
    """Return the final target of a link; for a cycle of links, one of its members."""
    path = link.path
    for _ in links:
        if path not in links:
            break
        folder = posixpath.dirname(path)
        path = posixpath.normpath(posixpath.join(folder, links[path].target))
    return path
