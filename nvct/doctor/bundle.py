# SPDX-License-Identifier: Apache-2.0
"""The archive of `nvct doctor --bundle`: the checks' results and the data behind them. Cold.

::

    doctor.json       the checks, as `nvct doctor --json` prints them
    about.json        releases of nvct, the kernel and the distribution
    engines.json      the engines, as `nvct runtime status --format json` prints them
    agent.json        /status of the node's agent, if there is one
    config.toml       the file in force, if there is one
    decisions.jsonl   the last records of `nvct log`
    kernel.txt        messages of the kernel about NVIDIA's driver
    snapshot/         as `nvct snapshot` records it: `nvct sim replay` takes the archive

Contract: everything in the archive went through `nvct.host.snapshot.redaction`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

from nvct.compile import live_host
from nvct.doctor.node import Node
from nvct.errors import DocumentError, HostError, OSErrorsAs
from nvct.host import procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.snapshot import document, record
from nvct.host.snapshot.redaction import Redactor, Uuids
from nvct.linux.files import read_bytes, write_atomic
from nvct.version import __version__

RECORDS = 200
DRIVER_WORDS = ("NVRM", "nvidia", "nouveau", "Xid", "module with", "unsigned module")
"""Words by which kernel messages about the driver are found."""
SNAPSHOT = "snapshot"
USER_VARIABLES = ("SUDO_USER", "USER", "LOGNAME")


def save(path: str, node: Node, documents: Mapping[str, Any], *, hangs: bool) -> None:
    """Write an archive that only its owner can read; HostError without a driver root.

    `documents` are by the names of their JSON files. If NVML `hangs`, it is not asked again.
    """
    uuids = Uuids()
    host, users = platform.node(), (node.env.get(name, "") for name in USER_VARIABLES)
    redactor = Redactor([host, host.partition(".")[0], *users], uuids)
    files = {
        name: json.dumps(redactor.value(value), indent=1).encode() + b"\n"
        for name, value in {"about.json": _about(), **documents}.items()
    }
    files |= {name: redactor.text(text).encode() for name, text in _texts(node)}
    options = DiscoveryOptions(stat_node=live_host.stat_node(node.settings))
    taken = record.record(node.roots, options, ask_nvml=not hangs)
    redacted = document.redacted(taken, hostname=platform.node(), uuids=uuids)
    files |= {f"{SNAPSHOT}/{name}": data for name, data in document.entries(redacted)}
    with OSErrorsAs(HostError, f"cannot write {path}"):
        data = document.archived(sorted(files.items()))
        write_atomic(path, data, mode=0o600, follow=True)


def _texts(node: Node) -> Iterator[tuple[str, str]]:
    texts = [message.text for message in node.log.messages]
    lines = [text for text in texts if any(word in text for word in DRIVER_WORDS)]
    yield "kernel.txt", "".join(f"{line}\n" for line in lines) or f"{node.log.problem}\n"
    records, problems = node.decisions.records[-RECORDS:], node.decisions.problems
    lines = [*map(json.dumps, records), *(f"# {one}" for one in problems)]
    yield "decisions.jsonl", "".join(f"{line}\n" for line in lines)
    if node.settings.path:
        yield "config.toml", _text(node.settings.path)


def _about() -> dict[str, str]:
    release = procfs.read_text("/etc/os-release") or ""
    named = [line for line in release.splitlines() if line.startswith("PRETTY_NAME=")]
    return {
        "nvct": __version__,
        "python": platform.python_version(),
        "kernel": f"{os.uname().release} {os.uname().machine}",
        "os": named[0].partition("=")[2].strip('"') if named else "",
        "user": "root" if os.geteuid() == 0 else "another user",
    }


def _text(path: str) -> str:
    try:
        return read_bytes(path, 1 << 20).decode("utf-8", "replace")
    except (OSError, DocumentError) as error:
        return f"# {error}\n"
