# SPDX-License-Identifier: Apache-2.0
"""The state of a simulated node: one small file that the simulated NVML library reads.

The file is also a library, ``libnvidia-simstate.so.<driver version>``: discovery finds it by the
rule for driver libraries, so that containers get it together with the NVML library. Its format:

- bytes 0 to 8191: a shared object, padded with NUL;
- then text, padded with NUL so that the file has exactly 262144 bytes. Each line is a record, with
  fields separated by TAB: a kind, then ``key=value`` pairs. A change keeps unknown fields.

The first record is ``nvct-sim 1 <generation>``, the last ``end <generation>``. Writers hold an
exclusive flock and write in place, so that bind mounts of the file stay valid. A reader without
the lock reads again if the two generations differ. DocumentError if a file is not a state, or a
state does not fit into the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from nvct.errors import DocumentError, UsageError
from nvct_sim.elf_writer import shared_object

ELF_SIZE = 8192
FILE_SIZE = 262144
SONAME = "libnvidia-simstate.so.1"
MAGIC = "nvct-sim"
FORMAT = "1"

Fields: TypeAlias = "dict[str, str]"


@dataclass(slots=True)
class Record:
    """A line: its kind and its fields in order."""

    kind: str
    fields: Fields

    def has(self, values: dict[str, str | int]) -> bool:
        """Report whether the record's fields have these values."""
        return all(self.fields.get(key) == str(value) for key, value in values.items())


@dataclass(slots=True)
class State:
    """The content of a state file."""

    generation: int
    driver: str
    cuda: str  # CUDA version in NVML's form, 13000 for 13.0
    tree: str  # absolute path of the node's tree
    records: list[Record] = field(default_factory=list)

    def find(self, kind: str, /, **values: str | int) -> list[Record]:
        """Return the records of a kind whose fields have these values."""
        return [r for r in self.records if r.kind == kind and r.has(values)]

    def gpu(self, index: int) -> Record:
        """Return the record of a GPU; DocumentError if there is no such GPU."""
        for record in self.find("gpu", index=index):
            return record
        count = len(self.find("gpu"))
        raise DocumentError(f"no GPU {index} on this node", hint=f"it has {count}, from 0")

    def add(self, kind: str, /, **fields: str | int) -> Record:
        """Insert a record after the last of its kind, or at the end, and return it."""
        record = Record(kind, {key: str(value) for key, value in fields.items()})
        last = max((i for i, r in enumerate(self.records) if r.kind == kind), default=None)
        self.records.insert(len(self.records) if last is None else last + 1, record)
        return record

    def remove(self, kind: str, /, **values: str | int) -> int:
        """Remove the records of a kind with these values, and return their number."""
        keep = [r for r in self.records if r.kind != kind or not r.has(values)]
        removed, self.records = len(self.records) - len(keep), keep
        return removed


def render(state: State) -> bytes:
    """Return the text part of the file, without its padding."""
    lines = [
        (MAGIC, FORMAT, str(state.generation)),
        ("driver", state.driver),
        ("cuda", state.cuda),
        ("tree", state.tree),
        *((r.kind, *(f"{k}={v}" for k, v in r.fields.items())) for r in state.records),
        ("end", str(state.generation)),
    ]
    for line in lines:
        if any(set(part) & set("\t\n\0") for part in line):
            raise DocumentError(f"state record {line[0]!r} holds a control character: {line!r}")
    data = "".join("\t".join(line) + "\n" for line in lines).encode()
    if len(data) >= FILE_SIZE - ELF_SIZE:
        raise DocumentError(f"the state of this node is too long: {len(data)} bytes")
    return data


def parse(data: bytes) -> State:
    """Return the state in the text part of a file."""
    text = data.split(b"\0", 1)[0].decode()
    # Not splitlines(), which also splits at other characters.
    lines = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    if len(lines) < 5 or lines[0][:2] != [MAGIC, FORMAT] or len(lines[0]) != 3:
        raise DocumentError("not the state of a simulated node, or one of another version")
    if lines[-1] != ["end", lines[0][2]]:
        raise DocumentError("the state of the simulated node is incomplete")
    single = {line[0]: line[1] for line in lines[1:4] if len(line) == 2}
    if set(single) != {"driver", "cuda", "tree"}:
        raise DocumentError("the state of the simulated node lacks driver, cuda or tree")
    state = State(int(lines[0][2]), single["driver"], single["cuda"], single["tree"])
    for kind, *pairs in lines[4:-1]:
        fields = dict(pair.partition("=")[::2] for pair in pairs)
        state.records.append(Record(kind, fields))
    return state


def create(path: Path, state: State, *, machine: str) -> None:
    """Create a new state file."""
    head = shared_object(machine, soname=SONAME, size=ELF_SIZE)
    data = (head + render(state)).ljust(FILE_SIZE, b"\0")
    with path.open("xb") as file:
        file.write(data)


def read(path: Path, *, timeout_s: float = 2.0) -> State:
    """Return the current state."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            with path.open("rb") as file:
                return parse(os.pread(file.fileno(), FILE_SIZE - ELF_SIZE, ELF_SIZE))
        except DocumentError as error:
            if time.monotonic() > until:
                raise DocumentError(f"{error.message}: {path}", hint=error.hint) from error
            time.sleep(0.005)


@contextlib.contextmanager
def change(path: Path) -> Iterator[State]:
    """Yield the state under the lock, then write it in place; an exception writes nothing."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = parse(os.pread(file.fileno(), FILE_SIZE - ELF_SIZE, ELF_SIZE))
        yield state
        state.generation += 1
        data = render(state).ljust(FILE_SIZE - ELF_SIZE, b"\0")
        before = os.fstat(file.fileno())
        os.pwrite(file.fileno(), data, ELF_SIZE)
        # A real library does not change in place: comparisons of files must not see a new mtime.
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))


READ = (
    "temp", "power", "util", "used", "fan", "ecc", "eccerrors", "persistence", "addressing",
    "board",
    "ecc_corrected", "ecc_uncorrected", "ecc_corrected_total", "ecc_uncorrected_total",
    "remapped_corrected", "remapped_uncorrected", "retired_sbe", "retired_dbe",
    "pcie_replays", "nvlink_tx", "nvlink_rx", "nvlink_crc_flit", "nvlink_crc_data",
    "nvlink_replays", "nvlink_recoveries", "violation_power", "violation_thermal", "energy",
    "power_usage", "memtemp", "smclock", "memclock", "pcie_tx", "pcie_rx",
    "pciewidth", "pciegen", "linksdown",
)  # fmt: skip
"""Numeric fields of a GPU: properties of the board, counters and measurements."""
PERCENTS = (
    "util", "memutil", "encutil", "decutil", "gr_active", "sm_active", "sm_occupancy",
    "tensor_active", "dram_active", "fp64_active", "fp32_active", "fp16_active",
)  # fmt: skip
FLAGS = (
    "remap_pending", "remap_failed", "retired_pending", "ecc", "eccnext", "persistence",
    "migreset",
)  # fmt: skip
RECOVERY = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
"""In the order of NVML's numbers (nvml.h, NVML_GPU_RECOVERY_ACTION_*)."""
THROTTLE = MappingProxyType({
    "none": 0, "idle": 0x1, "application-clocks": 0x2, "power-cap": 0x4, "hw-slowdown": 0x8,
    "sync-boost": 0x10, "sw-thermal": 0x20, "hw-thermal": 0x40, "power-brake": 0x80,
    "display-clocks": 0x100,
})  # fmt: skip
"""nvml.h, nvmlClocksEventReason*."""
NUMBERS = tuple(dict.fromkeys((*READ, *PERCENTS, *FLAGS)))
NAMES = (*NUMBERS, "throttle", "recovery", "hang")
ENDED_BY_RESET = (
    "ecc_corrected", "ecc_uncorrected", "remap_pending", "retired_pending", "recovery", "hang",
)  # fmt: skip
"""Fields that a reset of the GPU removes."""
LIMIT = 1 << 63
US = 1_000_000
PERIOD_US = 1_000_000 * US
"""A GPU whose power was never changed uses energy since the last multiple of this time."""


def value(name: str, text: str) -> str:
    """Return the state's form of a field's value; UsageError if the text is not a value."""
    if name == "recovery":
        if text not in RECOVERY:
            raise UsageError(
                f"{text!r} is not a recovery", hint=f"use one of {', '.join(RECOVERY)}"
            )
        return str(RECOVERY.index(text))
    if name == "throttle":
        return str(_throttle(text))
    if name in (*NUMBERS, "hang") and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name} must be a number, not {text!r}")
    if name == "hang":
        return str(int(time.time() * 1000) + 1000 * int(text))
    limit = 100 if name in PERCENTS else 1 if name in FLAGS else LIMIT
    if name in NUMBERS and int(text) > limit:
        raise UsageError(f"{name}={text} is too large", hint=f"use at most {limit}")
    return text


def power_mw(fields: Mapping[str, str]) -> int:
    """Return a GPU's power in milliwatts, as the simulated NVML does (native/nvml/power.c)."""
    limit, load = int(fields.get("power", 0)), int(fields.get("util", 0))
    return int(fields.get("power_usage", limit // 10 + limit // 100 * load // 100 * 90))


def energy(fields: Mapping[str, str], now_s: float) -> dict[str, str]:
    """Return the fields for the energy that a GPU has used until now, in millijoules."""
    now_us = int(now_s * US)
    since = int(fields.get("energy_at", now_us // PERIOD_US * PERIOD_US))
    used = int(fields.get("energy", 0)) + (now_us - since) // 1000 * power_mw(fields) // 1000
    return {"energy": str(used), "energy_at": str(now_us)}


def _throttle(text: str) -> int:
    bits = 0
    for word in text.split("+"):
        if word not in THROTTLE:
            raise UsageError(
                f"{word!r} is not a reason that limits clocks",
                hint=f"use one of {', '.join(THROTTLE)}, or several with + between them",
            )
        bits |= THROTTLE[word]
    return bits
