# SPDX-License-Identifier: Apache-2.0
"""Lays out a snapshot as a tree, and runs discovery on the tree as on the recorded host.

Contract: nothing in a snapshot is executed. Libraries are rebuilt from their recorded headers.
Device nodes are plain files; their numbers come from the snapshot. Output has the host's paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from nvct.cdi import versions
from nvct.cdi.make import generate
from nvct.cdi.types import Spec
from nvct.errors import DocumentError, HostError, NvmlError, OSErrorsAs
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import NodeStat
from nvct.host.model import Inventory
from nvct.host.nvml.model import NvmlGpu, NvmlMig, NvmlReport
from nvct.host.roots import Roots, below, join
from nvct.host.snapshot import document
from nvct.host.snapshot.document import Snapshot
from nvct.linux import elf, ldcache
from nvct_sim.elf_writer import MACHINES, shared_object

Value = TypeVar("Value")

NUMBER_OF = {name: number for number, name in elf.MACHINES.items()}
FIRMWARE = "sys/module/firmware_class/parameters/path"
CONFIG = """[nvidia-container-cli]
root = {driver}
[nvidia-container-runtime.modes.cdi]
spec-dirs = [{cdi}]
[nvct]
dev-root = {tree}
proc-root = {proc}
sys-root = {sys}
plain-nodes = true
"""


@dataclass(frozen=True, slots=True)
class RecordedNvml:
    """An NVML source that returns the report of the recorded host."""

    recorded: dict[str, Any]

    def report(self) -> NvmlReport:
        """Return the recorded report; NvmlError if NVML failed on the host, or was not asked."""
        if "report" not in self.recorded:
            message, hint = self.recorded.get("error", ("the snapshot has no NVML report", ""))
            raise NvmlError(str(message), hint=str(hint))
        return _report(self.recorded["report"])


@dataclass(frozen=True, slots=True)
class Replay:
    """A snapshot laid out as a tree."""

    tree: str
    snapshot: Snapshot

    @property
    def roots(self) -> Roots:
        """The tree's folders that stand for the recorded host's roots."""
        parts = {name: f"{self.tree}/{name}" for name in ("proc", "sys", "etc", "run")}
        return Roots(driver_root=f"{self.tree}/driver", dev_root=self.tree, **parts)

    @property
    def options(self) -> DiscoveryOptions:
        """Options for discovery, with the recorded device numbers, NVML report and machine."""
        return DiscoveryOptions(
            nvml=RecordedNvml(self.snapshot.nvml) if self.snapshot.nvml else None,
            stat_node=self._stat_node,
            machine=str(self.snapshot.about["machine"]),
            search_paths=self._directories("search"),
            config_search_paths=self._directories("config_search"),
        )

    def _directories(self, name: str) -> list[str]:
        root = str(self.snapshot.about["roots"]["driver_root"])
        directories = self.snapshot.about.get(name, ())
        return [join(f"{self.tree}/driver", below(root, directory)) for directory in directories]

    def _stat_node(self, path: str) -> NodeStat | None:
        status = self.snapshot.nodes.get(path.removeprefix(f"{self.tree}/"))
        if status is None:
            return None
        major, minor, mode, uid, gid = status
        return major, minor, mode, uid, gid

    def inventory(self, mode: str = "auto") -> Inventory:
        """Return the inventory that discovery finds in the tree."""
        return modes.discover(mode, self.roots, self.options)

    def on_host(self, value: Value) -> Value:
        """Return a string or JSON value with the host's paths instead of the tree's."""
        if isinstance(value, str):
            text: Any = value
            for tree_path, host_path in self._renamed():
                text = text.replace(f"{tree_path}/", f"{host_path}/")
                text = text.replace(tree_path, host_path or "/")
            return text  # type: ignore[no-any-return]
        if isinstance(value, dict):
            return {key: self.on_host(each) for key, each in value.items()}  # type: ignore[return-value]
        if isinstance(value, list):
            return [self.on_host(each) for each in value]  # type: ignore[return-value]
        return value

    def _renamed(self) -> list[tuple[str, str]]:
        about = self.snapshot.about
        roots = about["roots"]
        driver = str(roots["driver_root"]).rstrip("/")
        pairs = [(f"{self.tree}/driver", driver), (f"{self.tree}/dev", str(about["dev"]))]
        return pairs + [(f"{self.tree}/{n}", str(roots[n])) for n in ("proc", "sys", "etc", "run")]


def spec(
    replay: Replay, mode: str = "auto", options: generate.Options | None = None
) -> tuple[Spec, list[str]]:
    """Return the CDI specification of the recorded host, and discovery's warnings."""
    inventory = replay.inventory(mode)
    document = replay.on_host(generate.generate(inventory, options or generate.Options()))
    for node in versions.objects(document, "deviceNodes"):
        if node.get("hostPath") == node["path"]:
            del node["hostPath"]
    return document, [replay.on_host(warning) for warning in inventory.warnings]


@contextlib.contextmanager
def opened(path: str) -> Iterator[Replay]:
    """Read a snapshot and lay it out in a temporary folder; HostError, DocumentError."""
    snapshot = document.load(path)
    with tempfile.TemporaryDirectory(prefix="nvct-replay-") as folder:
        lay_out(snapshot, folder)
        yield Replay(folder, snapshot)


def lay_out(snapshot: Snapshot, tree: str) -> None:
    """Create a snapshot's files and links in an empty folder; HostError, DocumentError."""
    try:
        for part in document.PARTS:
            os.mkdir(f"{tree}/{part}")
        for path, (_, uid, gid) in snapshot.folders.items():
            os.makedirs(f"{tree}/{path}", exist_ok=True)
            if uid and os.geteuid() == 0:  # the owner of a folder matters in /tmp
                os.chown(f"{tree}/{path}", uid, gid)
        for path, data, mode in _files(snapshot, tree):
            _write(f"{tree}/{path}", data, mode)
        for path in snapshot.sockets:
            os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
            os.mknod(f"{tree}/{path}", stat.S_IFSOCK | 0o666)
        # Links come last, so that no file is written through a link.
        for path, text in snapshot.links.items():
            os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
            os.symlink(text, f"{tree}/{path}")
    except OSError as error:
        raise HostError(f"cannot lay out the snapshot: {error}") from error
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise DocumentError(f"the snapshot has a value of the wrong kind: {error}") from error


def _files(snapshot: Snapshot, tree: str) -> Iterator[tuple[str, bytes, int]]:
    root = str(snapshot.about["roots"]["driver_root"]).rstrip("/")
    for path, text in snapshot.texts.items():
        if path == FIRMWARE and root and text.startswith(f"{root}/"):
            text = f"{tree}/driver{text.removeprefix(root)}"  # the text has the host's path
        yield path, text.encode(), 0o644
    for path, (mode, _, machine, soname, needed) in snapshot.elf.items():
        yield path, _library(machine, soname, needed), mode
    for path, (mode, *_) in snapshot.files.items():
        data = b"no cache" if path == "driver/etc/ld.so.cache" else b""
        yield path, data, mode
    for path, (_, _, mode, *_) in snapshot.nodes.items():
        yield path, b"", mode
    if snapshot.cache:
        cache = None
        for machine in sorted({machine for _, _, machine in snapshot.cache}):
            names = [(name, path) for name, path, of in snapshot.cache if of == machine]
            cache = ldcache.merge(cache, names, machine=machine)
        yield "driver/etc/ld.so.cache", cache or b"", 0o644


def _library(machine: str, soname: str | None, needed: list[str]) -> bytes:
    if machine in MACHINES:
        return shared_object(machine, soname=soname, needed=needed)
    # Discovery reads only the machine number of a library for another machine.
    number = NUMBER_OF.get(machine, 0)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    return head + struct.pack("<HHIQQQIHHHHHH", 3, number, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


def _write(path: str, data: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)
    os.chmod(path, mode & 0o7777 | 0o400)


def environment(replay: Replay) -> dict[str, str]:
    """Write a config.toml for the tree; return the variables that make nvct programs use it."""
    path = f"{replay.tree}/config.toml"
    folders = {name: f"{replay.tree}/{name}" for name in ("driver", "proc", "sys", "cdi")}
    values = {name: json.dumps(folder) for name, folder in folders.items()}
    with OSErrorsAs(HostError, f"cannot write {path}"), open(path, "w", encoding="utf-8") as file:
        file.write(CONFIG.format(tree=json.dumps(replay.tree), **values))
    return {"NVIDIA_CTK_CONFIG": path, "NVIDIA_CTK_CONFIG_FILE_PATH": path}


def _report(data: dict[str, Any]) -> NvmlReport:
    """Return the recorded report, without fields that this version does not know."""
    gpus = []
    for gpu in data["gpus"]:
        mig = tuple(NvmlMig(**_known(NvmlMig, each)) for each in gpu["mig"])
        gpus.append(NvmlGpu(**{**_known(NvmlGpu, gpu), "mig": mig}))
    report = _known(NvmlReport, data)
    return NvmlReport(**{**report, "gpus": tuple(gpus), "warnings": tuple(report["warnings"])})


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
