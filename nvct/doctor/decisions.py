# SPDX-License-Identifier: Apache-2.0
"""Reads what the flight recorder wrote: the decisions of runtime, hooks and agent. Cold."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from nvct.container.plan.store import run_dir
from nvct.container.recorder import NAME, OLD
from nvct.errors import HostError, NvctError
from nvct.linux.files import read_bytes
from nvct.paths import AGENT_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

READ_LIMIT = 4 << 20
PAUSE_S = 0.5
LAST_S = 1e11
"""A time after it has no date that time.localtime knows everywhere."""


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
    """Return where records are: the run directory first, then the agent's folder."""
    return [run_dir(env), AGENT_DIR]


def read(places: Sequence[str], wanted: Filter) -> list[dict[str, str]]:
    """Return the records in some folders, the oldest first.

    Raises:
        HostError: the first folder or a file in it may not be read. A user's own engine has
            records, though only root reads the agent's.
    """
    records = _records(places[0], wanted)
    for folder in places[1:]:
        try:
            records += _records(folder, wanted)
        except NvctError:  # the agent's container writes there: it must not hide the others
            continue
    return sorted(records, key=lambda record: float(record["time"]))


def last(places: Sequence[str], bundle: str) -> dict[str, str] | None:
    """Return the last record about a bundle's folder; None if there is none that can be read."""
    path = os.path.abspath(bundle)
    try:
        records = read(places, Filter(container=path))
    except HostError:
        return None
    return next((one for one in reversed(records) if one.get("bundle") == path), None)


def follow(places: Sequence[str], wanted: Filter) -> Iterator[dict[str, str]]:
    """Yield the records in some folders, and then each new one; never ends.

    Raises:
        HostError: as `read`.
    """
    shown: set[str] = set()
    before: set[str] = set()
    while True:
        now: set[str] = set()
        for record in read(places, wanted):
            key = json.dumps(record)
            now.add(key)
            if key not in shown and key not in before:
                yield record
        # Between two files of one reading they may change places: its records are there next time.
        before, shown = shown, now
        time.sleep(PAUSE_S)


def subject(record: Mapping[str, str]) -> str:
    """Return what a record is about: a bundle, or what the agent decided about."""
    return record.get("bundle") or record.get("about", "")


def _records(folder: str, wanted: Filter) -> list[dict[str, str]]:
    texts = [_text(f"{folder}/{name}") for name in (OLD, NAME)]
    found = (_parse(line) for text in texts for line in text.splitlines())
    return [record for record in found if record is not None and wanted.takes(record)]


def _text(path: str) -> str:
    try:
        return read_bytes(path, READ_LIMIT).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        hint = "run it as root" if os.geteuid() else ""
        raise HostError(f"{path} cannot be read: {error.strerror}", hint=hint) from error


def _parse(line: str) -> dict[str, str] | None:
    """Return the record of a line; None if it is damaged."""
    try:
        record = json.loads(line)
        is_date = 0 <= float(record["time"]) < LAST_S
        texts = all(isinstance(value, str) for value in record.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_whole = is_date and texts and {"outcome", "program"} <= record.keys()
    return record if is_whole and subject(record) else None
