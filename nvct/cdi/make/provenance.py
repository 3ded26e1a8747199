# SPDX-License-Identifier: Apache-2.0
"""The provenance of a generated spec, which later checks compare with the host.

Contract: equal hosts give equal bytes, so it has no time and no host name. A spec that needs CDI
0.6.0 or later has its provenance as annotations. Another spec keeps its lower version, for older
engines, and has its provenance in a comment before the YAML; as JSON, which has no comments, it
has none. Files are identified by their stat data, keyed by their container path, which does not
depend on the driver root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from nvct.cdi import versions
from nvct.cdi.read.validate import ANNOTATIONS_LIMIT
from nvct.cdi.types import Spec
from nvct.errors import DocumentError
from nvct.host.model import DeviceNode, Inventory
from nvct.linux.files import read_bytes
from nvct.version import __version__

Identity: TypeAlias = tuple[int, int, int, int]  # device, inode, size, mtime in ns
Json: TypeAlias = dict[str, Any]

DOMAIN = "nvct/"
COMMENT = "# nvct: "
ANNOTATIONS_SINCE = "0.6.0"
FILES = "files"
TEXTS = ("generator", "driver", "module", "mode", "inputs", "only", "no_hooks")
# A daemon makes its socket again at each start, and a directory's times change with its content.
CHANGING = ("socket", "directory")
SPEC_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """From what a spec was made."""

    generator: str = ""
    driver: str = ""  # version of the driver whose files the spec gives, "" if it gives none
    module: str = ""
    mode: str = ""
    inputs: str = ""  # a hash of the inventory; equal on hosts with equal devices and driver files
    only: str = ""  # the values of --device-id, separated by commas, "" for all
    no_hooks: str = ""  # the value of --no-hooks, "" if the option is not given
    # container path -> identity of the host's file
    files: Mapping[str, Identity] = field(default_factory=dict)


def of(inventory: Inventory, only: str = "", no_hooks: str = "") -> Provenance:
    """Return the provenance of a spec that is made from an inventory now."""
    driver = inventory.driver_version
    return Provenance(
        generator=__version__,
        driver=driver,
        module=driver,  # a driver works only with files of its own version
        mode=inventory.mode,
        inputs=inputs_hash(inventory),
        only=only,
        no_hooks=no_hooks,
        files=_files(inventory),
    )


def attach(
    spec: Spec, inventory: Inventory, only: str = "", no_hooks: str = ""
) -> tuple[Spec, str]:
    """Return a spec with its provenance as annotations, and the line to write before its YAML.

    If the spec's version has no annotations, the spec is unchanged; otherwise the line is "".
    """
    origin = of(inventory, only, no_hooks)
    if versions.is_older(versions.minimum_version(spec), ANNOTATIONS_SINCE):
        text = json.dumps(_table(origin), separators=(",", ":"))
        # JSON permits DEL in a string, YAML does not permit it even in a comment.
        return spec, f"{COMMENT}{text}\n".replace("\x7f", "\\u007f")
    annotations = {**spec.get("annotations", {}), **as_annotations(origin)}
    return cast("Spec", {**spec, "annotations": annotations}), ""


def as_annotations(provenance: Provenance) -> dict[str, str]:
    """Return provenance as annotations of a spec."""
    annotations = {
        DOMAIN + key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for key, value in _table(provenance).items()
    }
    if sum(len(key) + len(value) for key, value in annotations.items()) > ANNOTATIONS_LIMIT // 2:
        del annotations[DOMAIN + FILES]  # engines would refuse the whole spec
    return annotations


def read(spec: Spec, path: str) -> Provenance | None:
    """Return the provenance of a spec file, None if it is missing or malformed."""
    table: Json = {
        key.removeprefix(DOMAIN): value
        for key, value in spec.get("annotations", {}).items()
        if key.startswith(DOMAIN)
    }
    try:
        if FILES in table:
            table[FILES] = json.loads(table[FILES])
        table = table or _comment(path)
        return _provenance(table) if table else None
    except (ValueError, RecursionError):
        return None


def identity(path: str) -> Identity | None:
    """Return the stat data that identify a file, None if there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_same(before: Identity, current: Identity) -> bool:
    """Return whether two identities are one file's.

    The device number is not compared: those of NVMe disks, btrfs and overlays change at each boot.
    """
    return before[1:] == current[1:]


def inputs_hash(inventory: Inventory) -> str:
    """Return a hash of an inventory, without its messages and what changes at each boot."""
    from _blake2 import blake2b  # hashlib would load OpenSSL

    digest = blake2b(digest_size=16)
    for line in _lines(inventory):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _lines(inventory: Inventory) -> Iterator[str]:
    yield f"{inventory.mode} {inventory.driver_version} {inventory.cuda_version}"
    yield inventory.compat_container_root
    for gpu in inventory.gpus:
        yield f"gpu {gpu.index} {gpu.uuid} {gpu.bus_id} {gpu.mig_enabled} {gpu.coherent}"
        yield from _nodes((gpu.node,) if gpu.node else ())
        yield from _nodes(gpu.drm_nodes)
        yield from (f"link {link.target}\n{link.path}" for link in gpu.by_path)
        for mig in gpu.mig:
            yield f"mig {mig.index} {mig.uuid} {mig.profile}"
            yield from _nodes(mig.nodes)
    for device in inventory.devices:
        yield f"device {device.name} {device.uuid}"
        yield from _nodes(device.nodes)
        yield from (f"file {file.host_path}\n{file.container_path}" for file in device.files)
        yield from (f"link {link.target}\n{link.path}" for link in device.links)
    yield from _nodes(inventory.control_nodes)
    yield from (f"link {link.target}\n{link.path}" for link in inventory.links)
    for file in inventory.files:
        yield f"file {file.kind} {file.host_path}\n{file.container_path}"
        yield from (f"link {link.target}\n{link.path}" for link in file.links)


def _nodes(nodes: tuple[DeviceNode, ...]) -> Iterator[str]:
    for node in nodes:
        yield f"node {node.mode:o} {node.gid} {node.host_path}\n{node.path}"


def _files(inventory: Inventory) -> dict[str, Identity]:
    identities = {
        file.container_path: identity(file.host_path)
        for file in inventory.every_file()
        if file.kind not in CHANGING
    }
    return {path: numbers for path, numbers in sorted(identities.items()) if numbers}


def _table(provenance: Provenance) -> Json:
    table: Json = {key: getattr(provenance, key) for key in TEXTS if getattr(provenance, key)}
    table[FILES] = {
        path: ":".join(map(str, numbers)) for path, numbers in provenance.files.items()
    }
    return table


def _provenance(table: Json) -> Provenance:
    files = table.get(FILES, {})
    texts = {key: table.get(key, "") for key in TEXTS}
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("no provenance")
    return Provenance(**texts, files={path: _identity(text) for path, text in files.items()})


def _identity(text: object) -> Identity:
    numbers = str(text).split(":")
    if len(numbers) != 4:
        raise ValueError("no identity")
    device, inode, size, mtime = map(int, numbers)
    return device, inode, size, mtime


def _comment(path: str) -> Json:
    """Return the table in the comment at the start of a spec file, {} if there is none."""
    try:
        data = read_bytes(path, SPEC_LIMIT)
    except (OSError, DocumentError):
        return {}
    if not data.startswith(COMMENT.encode()):
        return {}
    table = json.loads(data.partition(b"\n")[0][len(COMMENT) :])
    return table if isinstance(table, dict) else {}
