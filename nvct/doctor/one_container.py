# SPDX-License-Identifier: Apache-2.0
"""Finds a container of this host by name, id or process, and tells which GPUs it has, and why.

Cold; changes nothing. The decisions about the container are read from the flight recorder, its
devices from the /dev of its first process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nvct.doctor import reconstruction
from nvct.doctor.containers import SHORT, gpu_nodes, joined
from nvct.doctor.decisions import container_of, subject
from nvct.doctor.gpu_users import Use
from nvct.doctor.node import Node
from nvct.doctor.reconstruction import NO_BUNDLE, Evidence
from nvct.engine import engine_files
from nvct.errors import NvctError, UsageError
from nvct.host import procfs
from nvct.host.procfs import started
from nvct.oci import bundle as bundles

ID_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A container, running or not."""

    id: str
    pid: int  # 0 if it does not run
    labels: Mapping[str, str]
    has_group: bool = True  # whether its cgroup has its id, by which its processes are found

    @property
    def name(self) -> str:
        """The container's name, as namespace/pod/container."""
        return joined(self.labels) or f"process {self.pid}"


def find(node: Node, word: str) -> list[Found]:
    """Return the containers with a name, a pod's name, an id, or a process id.

    They are the running ones, or else those about which a decision is recorded. At least the first
    SHORT digits of an id are needed. UsageError if no container of this host fits.
    """
    containers, proc = node.containers, node.roots.proc
    own = engine_files.own_names(node.env)

    def of_process(id_: str, pid: int) -> Found:
        return _named(Found(id=id_, pid=pid, labels=containers.labels(pid)), own)

    running = {one.id: _named(one, own) for one in reversed([*_watched(proc)])}
    first = reversed([*containers.first_processes(proc)])
    running |= {id_: of_process(id_, pid) for id_, pid in first}
    found = [one for one in running.values() if _is_meant(one, word)]
    if not found and word.isdecimal() and word.isascii():
        id_ = containers.id_of(int(word))
        if id_ or procfs.read_text(f"{proc}/{word}/comm"):
            found = [of_process(id_, int(word))]
    found = found or _ended(node, word)
    if not found:
        seen = "" if os.geteuid() == 0 else "; sudo finds the containers of others"
        raise UsageError(
            f"{word!r} is neither a file nor the name or id of a running container of this host",
            hint=f"`nvct log` shows the decisions about containers that have ended{seen}",
        )
    return found


def _ended(node: Node, word: str) -> list[Found]:
    """Return the containers that do not run, but about which a decision is recorded.

    Even a refused container, which never ran, can have a name.
    """
    wanted = {id_ for id_, name in names(node).items() if name == word}
    found: dict[str, Found] = {}
    for record in node.decisions.records:
        folders = record.get("bundle", "").split("/")
        is_id = len(word) >= SHORT
        for id_ in filter(None, dict.fromkeys((container_of(record), folders[-1]))):
            if id_ in wanted or (is_id and id_.startswith(word)):
                name = word if id_ in wanted else id_[:SHORT]
                found[id_] = Found(id=id_, pid=0, labels={"container": name})
    return list(found.values())


def ids(node: Node, word: str) -> tuple[str, ...]:
    """Return the ids of the containers that `find` finds, and of all with that name."""
    try:
        found = [one.id for one in find(node, word)]
    except UsageError:
        found = []
    named = (id_ for id_, name in names(node).items() if name == word)
    return tuple(filter(None, dict.fromkeys((*found, *named))))


def names(node: Node) -> dict[str, str]:
    """Return the names of all containers by id, running or not, with the user's own engines."""
    return {**node.containers.names(), **engine_files.own_names(node.env)}


def told(found: Found, uses: Sequence[Use], node: Node) -> dict[str, Any]:
    """Return a container, its creation, decisions and uses of GPUs, as JSON data."""
    every = node.decisions.records if found.id else []
    records = [record for record in every if found.id in subject(record)]
    own = [
        use.to_dict()
        for use in uses
        if use.pid == found.pid or (found.labels and use.labels == found.labels)
    ]
    return {
        "name": found.name,
        "id": found.id,
        "pid": found.pid,
        "creation": _creation(found, records, node) if found.id else None,
        "decisions": records,
        "uses": own,
        "nodes": [] if found.has_group else gpu_nodes(f"{node.roots.proc}/{found.pid}/root/dev"),
    }


def _creation(found: Found, records: Sequence[dict[str, str]], node: Node) -> dict[str, object]:
    folders = [record["bundle"] for record in records if record.get("bundle", "").startswith("/")]
    folder = folders[-1] if folders else engine_files.bundle_of(found.id, node.env, node.host)
    bundle = NO_BUNDLE
    with suppress(NvctError):
        bundle = bundles.load(bundles.config_path(folder)) if folder else NO_BUNDLE
    evidence = Evidence(
        creation=engine_files.creation_of(found.id, node.env, bundle.annotations, node.host),
        bundle=bundle,
        records=records,
        log=node.decisions,
        started_s=started(found.pid, node.roots.proc) if found.pid else None,
    )
    return reconstruction.reconstructed(evidence, node.settings, node.env)


def _watched(proc: str) -> Iterator[Found]:
    """Yield the containers of Podman whose cgroup does not have their id.

    They belong to a user without cgroups. conmon has the id in its option -c, and is the parent of
    the first process. Another user's conmon is ignored, because its options can be forged.
    """
    for pid in procfs.processes(proc):
        folder = f"{proc}/{pid}"
        if procfs.command(proc, pid) != "conmon":
            continue
        words = (procfs.read_text(f"{folder}/cmdline") or "").split("\0")
        children = (procfs.read_text(f"{folder}/task/{pid}/children") or "").split()
        try:
            is_ours = os.stat(folder).st_uid == os.geteuid()
            id_ = words[words.index("-c") + 1]
        except (OSError, ValueError, IndexError):
            continue
        if is_ours and children and len(id_) == ID_LENGTH:
            yield Found(id=id_, pid=int(children[0]), labels={}, has_group=False)


def _named(one: Found, own: Mapping[str, str]) -> Found:
    return replace(one, labels={"container": own[one.id]}) if one.id in own else one


def _is_meant(one: Found, word: str) -> bool:
    is_id = len(word) >= SHORT and one.id.startswith(word)
    names = (one.labels.get("container"), one.labels.get("pod"), one.name)
    return is_id or word in names or word == str(one.pid)
