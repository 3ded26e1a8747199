# SPDX-License-Identifier: Apache-2.0
"""Reads what the flight recorder wrote: the decisions about containers, `nvct log`. Cold."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from nvct.container.recorder import NAME, OLD
from nvct.errors import HostError
from nvct.linux.files import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READ_LIMIT = 4 << 20
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to show.

    Attributes:
        container: a part of the bundle's path, such as a container's id; "" for all.
        outcome: given, ignored or refused; "" for all.
        since_s: seconds since the epoch.
    """

    container: str = ""
    outcome: str = ""
    since_s: float = 0.0

    def takes(self, record: Mapping[str, str]) -> bool:
        """Return whether a record is to be shown."""
        return (
            self.container in record["bundle"]
            and self.outcome in ("", record["outcome"])
            and float(record["time"]) >= self.since_s
        )


def read(folder: str, wanted: Filter) -> list[dict[str, str]]:
    """Return the records in a run directory, the oldest first.

    Raises:
        HostError: the folder or a file may not be read.
    """
    texts = [_text(f"{folder}/{name}") for name in (OLD, NAME)]
    found = (_parse(line) for text in texts for line in text.splitlines())
    return [record for record in found if record is not None and wanted.takes(record)]


def follow(folder: str, wanted: Filter) -> Iterator[dict[str, str]]:
    """Yield the records in a run directory, and then each new one; never ends.

    Raises:
        HostError: as `read`.
    """
    shown: set[str] = set()
    while True:
        for record in read(folder, wanted):
            key = json.dumps(record)
            if key not in shown:
                shown.add(key)
                yield record
        time.sleep(PAUSE_S)


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
        float(record["time"])
        texts = all(isinstance(value, str) for value in record.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if texts and {"bundle", "outcome", "program"} <= record.keys() else None
