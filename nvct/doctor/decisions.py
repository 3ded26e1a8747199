# SPDX-License-Identifier: Apache-2.0
"""Reads what the flight recorder wrote: the decisions of runtime, hooks and agent. Cold."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvct.container.plan.store import run_dir
from nvct.doctor import ring
from nvct.doctor.ring import Ring
from nvct.paths import AGENT_DIR, RUN_DIR, RUN_DIR_ENV

PAUSE_S = 0.5
ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to show.

    Attributes:
        container: a part of the bundle's path, such as a container's id, or of the resource,
            claim or device that the agent decided about; "" for all.
        ids: of containers that are shown as well.
        outcome: given, ignored, refused or changed; "" for all.
        since_s: seconds since the epoch.
    """

    container: str = ""
    ids: tuple[str, ...] = ()
    outcome: str = ""
    since_s: float = 0.0

    def takes(self, record: Mapping[str, str]) -> bool:
        """Return whether a record is to be shown."""
        return (
            any(part in subject(record) for part in (self.container, *self.ids))
            and self.outcome in ("", record["outcome"])
            and float(record["time"]) >= self.since_s
        )


def folders(env: Mapping[str, str]) -> list[str]:
    """Return where records are: the user's run directory, root's, and the agent's folder."""
    own = run_dir(env)
    shared = [] if env.get(RUN_DIR_ENV) else [RUN_DIR]
    return list(dict.fromkeys([own, *shared, AGENT_DIR]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What some folders have."""

    records: list[dict[str, str]]
    rings: list[Ring]

    @property
    def problems(self) -> list[str]:
        """What cannot be read or written, a sentence each."""
        return [problem for one in self.rings for problem in one.problems]


def look(places: Sequence[str], wanted: Filter) -> Log:
    """Return the records in some folders, and what is wrong with the folders."""
    rings = [ring.read(place) for place in places]
    records = [record for one in rings for record in one.records if wanted.takes(record)]
    return Log(records=sorted(records, key=lambda record: float(record["time"])), rings=rings)


def read(places: Sequence[str], wanted: Filter) -> list[dict[str, str]]:
    """Return the records in some folders that can be read, the oldest first."""
    return look(places, wanted).records


def last(places: Sequence[str], bundle: str) -> dict[str, str] | None:
    """Return the last record about a bundle's folder; None if there is none that can be read."""
    path = os.path.abspath(bundle)
    records = read(places, Filter(container=path))
    return next((one for one in reversed(records) if one.get("bundle") == path), None)


def follow(
    places: Sequence[str], wanted: Filter, wait: Callable[[float], bool]
) -> Iterator[dict[str, str]]:
    """Yield the records in some folders, and then each new one.

    Args:
        wait: waits some seconds; returns whether nobody reads any more, which ends it.
    """
    shown: set[str] = set()
    before: set[str] = set()
    signature: object = None
    while True:
        since, signature = signature, ring.signature(places)
        if since != signature or shown != before:
            now: set[str] = set()
            for record in read(places, wanted):
                key = json.dumps(record)
                now.add(key)
                if key not in shown and key not in before:
                    yield record
            # Between two files of one reading they may change places: its records are there next
            # time.
            before, shown = shown, now
        if wait(PAUSE_S):
            return


def container_of(record: Mapping[str, str]) -> str:
    """Return the id in a bundle's path, as Docker, Podman, containerd and CRI-O have it, or ""."""
    parts = record.get("bundle", "").split("/")
    return next((part for part in reversed(parts) if ID.fullmatch(part)), "")


def subject(record: Mapping[str, str]) -> str:
    """Return what a record is about: a bundle, or what the agent decided about."""
    return record.get("bundle") or record.get("about", "")
