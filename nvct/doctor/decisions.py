# SPDX-License-Identifier: Apache-2.0
"""Reads the rings of the flight recorder: the decisions of runtime, hooks and agent. Cold."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.container.plan.store import run_dir
from nvct.container.recorder import ASKED, NAME, OLD, RECORD
from nvct.doctor.model import count
from nvct.host.gpu_record import LAST_S
from nvct.linux.files import read_all
from nvct.paths import AGENT_DIR, NRI_DIR, RUN_DIR, RUN_DIR_ENV

Record: TypeAlias = dict[str, str]
Signature: TypeAlias = dict[str, tuple[int, ...]]

READ_LIMIT = 4 << 20
OF_NRI, OF_HOST = "nvct-nri", ("nvct", "nvidia")
"""The program of every record in NRI_DIR; the first letters of programs on the host, which no task
of the agent has. A record with another folder's program is dropped, because it may be forged."""
START = b'{"time":"'
"""How a record starts. If a full disk cut one off, the next one is in the same line."""
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OTHERS_MAY_READ = 0o022
"""Permissions that others must not have in folders that the kubelet makes for nvct's pods."""
NO_OTHERS = 0o077


@dataclass(kw_only=True)
class Ring:
    """The records of one folder."""

    folder: str
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_readable: bool = True
    is_whole: bool = True  # whether all records since the folder was made are still in it


def read_ring(folder: str) -> Ring:
    """Return the records in a folder, none if it does not exist, and what is wrong with it."""
    ring = Ring(folder=folder)
    try:
        status = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ring
    except OSError as error:
        return _unreadable(ring, _why(error))
    if not stat.S_ISDIR(status.st_mode):
        return _unreadable(ring, "it is not a folder: nothing is recorded")
    if not os.access(folder, os.R_OK | os.X_OK):
        return _unreadable(ring, "only root can read it: run it with sudo")
    forbidden = OTHERS_MAY_READ if folder in (AGENT_DIR, NRI_DIR) else NO_OTHERS
    if status.st_uid == os.geteuid() and status.st_mode & forbidden:
        text = f"other users have access, its mode is {status.st_mode & 0o7777:o}"
        ring.problems.append(f"{folder}: {text}: nothing is recorded")
    elif status.st_uid != os.geteuid() == 0:
        return _unreadable(ring, f"it belongs to uid {status.st_uid}: nothing is recorded")
    for name in (OLD, NAME):
        _read_file(ring, name)
    ring.problems += _writing(folder)
    return ring


def signature(folders: Sequence[str]) -> Signature:
    """Return a value that changes whenever a file of the folders changes."""
    found: Signature = {}
    for path in (f"{folder}/{name}" for folder in folders for name in (OLD, NAME)):
        with suppress(OSError):
            status = os.lstat(path)
            found[path] = status.st_ino, status.st_size, status.st_mtime_ns, status.st_uid
    return found


def _unreadable(ring: Ring, why: str) -> Ring:
    ring.problems.append(f"{ring.folder}: {why}")
    ring.is_readable = False
    return ring


def _why(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid():
        return "only root can read it: run it with sudo"
    return error.strerror or str(error)


def _read_file(ring: Ring, name: str) -> None:
    path = f"{ring.folder}/{name}"
    try:
        fd = os.open(path, FLAGS)
    except FileNotFoundError:
        return
    except OSError as error:
        why = "it is a link: nothing is recorded" if error.errno == errno.ELOOP else _why(error)
        ring.problems.append(f"{path}: {why}")
        ring.is_readable = error.errno == errno.ELOOP
        return
    ring.is_whole = ring.is_whole and name != OLD
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            ring.problems.append(f"{path}: it is not a regular file: nothing is recorded")
            return
        if status.st_uid != os.stat(ring.folder).st_uid:
            who = f"it belongs to uid {status.st_uid}, who can change its records"
            ring.problems.append(f"{path}: {who}")
        data = read_all(fd, status.st_size, READ_LIMIT)
    except OSError as error:
        ring.problems.append(f"{path}: {_why(error)}")
        return
    finally:
        os.close(fd)
    if data is None:
        ring.problems.append(f"{path}: not read, because it is over {READ_LIMIT >> 20} MiB")
        return
    _parse_lines(ring, path, data)


def _parse_lines(ring: Ring, path: str, data: bytes) -> None:
    damaged = []
    for number, line in enumerate(data.split(b"\n"), 1):
        record = _parse(line, ring.folder)
        if line and record is None:
            damaged.append(number)
            record = _parse(line[max(line.rfind(START), 0) :], ring.folder)
        if record is not None:
            ring.records.append(record)
    if damaged:
        where = f"line {damaged[0]}" if len(damaged) == 1 else f"the first is line {damaged[0]}"
        ring.problems.append(f"{path}: {count(len(damaged), 'damaged record')}, {where}")


def _parse(line: bytes, folder: str) -> Record | None:
    if len(line) > RECORD:
        return None
    try:
        record = json.loads(line)
        is_date = 0 <= float(record["time"]) < LAST_S
        texts = all(isinstance(v, str) and len(v) <= ASKED + 3 for v in record.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not (is_date and texts and {"outcome", "program"} <= record.keys() and subject(record)):
        return None
    program = record["program"]
    is_others = folder == AGENT_DIR and program.startswith(OF_HOST)
    return None if is_others or (folder == NRI_DIR and program != OF_NRI) else record


def _writing(folder: str) -> list[str]:
    try:
        status = os.statvfs(folder)
    except OSError:
        return []
    if status.f_flag & os.ST_RDONLY:
        return [f"{folder}: its file system is read-only: nothing is recorded"]
    if status.f_blocks and status.f_bavail * status.f_frsize < RECORD:
        return [f"{folder}: its file system is full: nothing is recorded"]
    return []


PAUSE_S = 0.5
ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The records to show."""

    # a part of the bundle's path, such as a container's id, or of the name of the resource, claim
    # or device that the agent decided about; "" for all
    container: str = ""
    ids: tuple[str, ...] = ()
    outcome: str = ""
    since_s: float = 0.0

    def takes(self, record: Mapping[str, str]) -> bool:
        """Report whether a record is to be shown."""
        return (
            any(part in subject(record) for part in (self.container, *self.ids))
            and self.outcome in ("", record["outcome"])
            and float(record["time"]) >= self.since_s
        )


def folders(env: Mapping[str, str]) -> list[str]:
    """Return the folders of records: the user's run folder, root's, and those of nvct's pods."""
    own = run_dir(env)
    shared = [] if env.get(RUN_DIR_ENV) else [RUN_DIR]
    return list(dict.fromkeys([own, *shared, AGENT_DIR, NRI_DIR]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The records of some folders."""

    records: list[Record]
    rings: list[Ring]

    @property
    def problems(self) -> list[str]:
        """A sentence for each file or folder that cannot be read or written."""
        return [problem for one in self.rings for problem in one.problems]


ALL = Filter()


def look(places: Sequence[str], wanted: Filter = ALL) -> Log:
    """Return the wanted records of some folders, the oldest first."""
    rings = [read_ring(place) for place in places]
    records = [record for one in rings for record in one.records if wanted.takes(record)]
    return Log(records=sorted(records, key=lambda record: float(record["time"])), rings=rings)


def last(places: Sequence[str], bundle: str) -> Record | None:
    """Return the last readable record about a bundle's folder, None if there is none."""
    path = os.path.abspath(bundle)
    found = [one for one in look(places).records if one.get("bundle") == path]
    return found[-1] if found else None


def follow(
    places: Sequence[str], wanted: Filter, wait: Callable[[float], bool]
) -> Iterator[Record]:
    """Yield the records, then each new one, until `wait`, which gets seconds, returns true."""
    shown: dict[str, Record] = {}
    before: dict[str, Record] = {}
    state: object = None
    while True:
        since, state = state, signature(places)
        if since != state or shown.keys() != before.keys():
            now = {json.dumps(record): record for record in look(places, wanted).records}
            yield from (now[key] for key in now if key not in shown and key not in before)
            # If the two files are swapped during a reading, it misses records, which the next one
            # has. So the reading before is compared, too.
            before, shown = shown, now
        if wait(PAUSE_S):
            return


def container_of(record: Mapping[str, str]) -> str:
    """Return the container id in a bundle's path (of Docker, Podman, containerd, CRI-O), or ""."""
    parts = subject(record).replace(" ", "/").split("/")
    return next((part for part in reversed(parts) if ID.fullmatch(part)), "")


def subject(record: Mapping[str, str]) -> str:
    """Return the subject of a record: a bundle, or a resource, claim or device of the agent."""
    return record.get("bundle") or record.get("about", "")
