# SPDX-License-Identifier: Apache-2.0
"""Finds a container of this host by what a user knows of it, and says which GPU it has, and why.

Cold; changes nothing. What was decided about it is read from the flight recorder, what it has from
the /dev of its first process.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvct.doctor import decisions
from nvct.errors import HostError, UsageError
from nvct.host import procfs
from nvct.host.containers import SHORT, Containers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from nvct.doctor.gpu_users import Use
    from nvct.host.roots import Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A running container.

    Attributes:
        id: of the engine, "" for a process in no container.
        pid: of its first process.
        labels: container, namespace, pod.
    """

    id: str
    pid: int
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name, as namespace/pod/container."""
        parts = (self.labels.get(one, "") for one in ("namespace", "pod", "container"))
        return "/".join(part for part in parts if part) or f"process {self.pid}"


def find(roots: Roots, word: str, host: str = "/") -> list[Found]:
    """Return the running containers with a name, a pod's name, an id, or a process id.

    Args:
        roots: the machine.
        word: what the user knows; of an id at least the first SHORT digits.
        host: the folder that has the engines' state and /proc.

    Raises:
        UsageError: no running container of this host has it.
    """
    containers = Containers(host)
    containers.refresh()
    found = [one for one in _all(roots, containers) if _is_meant(one, word)]
    if not found and word.isdecimal():
        labels = containers.labels(int(word))
        id_ = containers.id_of(int(word))
        if id_ or procfs.read_text(f"{roots.proc}/{word}/comm"):
            found = [Found(id=id_, pid=int(word), labels=labels)]
    if not found:
        raise UsageError(
            f"{word!r} is no file, and no running container of this host has that name or id",
            hint="`nvct log` shows what was decided about containers that are gone",
        )
    return found


def decided(word: str, places: Sequence[str], host: str = "/") -> list[dict[str, Any]]:
    """Return what was decided about containers that do not run, as `told` does.

    A container that was refused never runs, and may have a name nevertheless.

    Args:
        word: the container's name, or at least the first SHORT digits of its id.
        places: folders of the flight recorder's files.
        host: the folder that has the engines' state.
    """
    containers = Containers(host)
    containers.refresh()
    wanted = dict.fromkeys(containers.named(word), word)
    try:
        records = decisions.read(places, decisions.Filter())
    except HostError:
        return []
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        parts = record.get("bundle", "").split("/")
        is_id = len(word) >= SHORT
        for id_ in (one for one in parts if one in wanted or (is_id and one.startswith(word))):
            entry = {"name": wanted.get(id_, id_[:SHORT]), "id": id_, "pid": 0, "uses": []}
            found.setdefault(id_, {**entry, "decisions": []})["decisions"].append(record)
    return list(found.values())


def told(found: Found, uses: Sequence[Use], places: Sequence[str]) -> dict[str, Any]:
    """Return what is known about a container, as JSON data.

    Args:
        found: the container.
        uses: who uses the GPUs of this host.
        places: folders of the flight recorder's files.
    """
    try:
        wanted = decisions.Filter(container=found.id)
        records = decisions.read(places, wanted) if found.id else []
    except HostError:
        records = []
    own = [
        use.to_dict()
        for use in uses
        if use.pid == found.pid or (found.labels and use.labels == found.labels)
    ]
    return {
        "name": found.name,
        "id": found.id,
        "pid": found.pid,
        "decisions": records,
        "uses": own,
    }


def _all(roots: Roots, containers: Containers) -> Iterator[Found]:
    """Yield each container, by its first process."""
    seen = set()
    for pid in sorted(int(name) for name in procfs.list_directory(roots.proc) if name.isdecimal()):
        id_ = containers.id_of(pid)
        if id_ and id_ not in seen:
            seen.add(id_)
            yield Found(id=id_, pid=pid, labels=containers.labels(pid))


def _is_meant(one: Found, word: str) -> bool:
    is_id = len(word) >= SHORT and one.id.startswith(word)
    names = (one.labels.get("container"), one.labels.get("pod"), one.name)
    return is_id or word in names or word == str(one.pid)
