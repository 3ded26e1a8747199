# SPDX-License-Identifier: Apache-2.0
"""XID errors and processes of a simulated node: in its state, and in its messages of the kernel.

A real driver writes each XID to the kernel's messages too. Those of a node are in <tree>/kmsg, in
the format of /dev/kmsg. Each record has the size of a reader's buffer, so that each read returns
one record, as from the device.
"""

from __future__ import annotations

import os
import time
from typing import TypeAlias

from nvct.errors import UsageError
from nvct.kernel.kmsg import RECORD_LIMIT
from nvct_sim import state
from nvct_sim.tree import KMSG, Node

Fields: TypeAlias = "dict[str, str]"

XID_EVENT = 8
"""nvml.h: nvmlEventTypeXidCriticalError."""
EVENT_FIELDS = ("gi", "ci")
PROCESS_FIELDS = ("memory", "sm", "mem", "gi", "ci", "graphics")
PERCENTS = ("sm", "mem")


def add_xid(node: Node, index: int, xid: int, fields: Fields) -> None:
    """Report an XID error by NVML, and in the kernel's messages.

    Args:
        fields: gi and ci, the ids of the instances concerned, by default the whole GPU.

    Raises:
        DocumentError: there is no such GPU.
        UsageError: a field is unknown or no number.
    """
    _check(fields, EVENT_FIELDS)
    with state.change(node.state_file) as now:
        append_event(now, index, XID_EVENT, xid, fields)
        bus = now.gpu(index).fields["bus"]
    write_message(node, bus, xid, fields)


def append_event(now: state.State, index: int, kind: int, data: int, fields: Fields) -> None:
    """Add an event to a state that is being changed.

    Raises:
        DocumentError: there is no such GPU.
    """
    now.gpu(index)
    seq = max((int(e.fields["seq"]) for e in now.find("event")), default=0) + 1
    now.add("event", seq=seq, gpu=index, type=kind, data=data, **fields)


def write_message(node: Node, bus: str, xid: int, instance: Fields) -> None:
    """Append a message of the driver, as `NVRM: Xid (PCI:0000:18:00): 79`, to the node's kmsg.

    Args:
        bus: the GPU's PCI address as NVML writes it, 00000000:18:00.0.
        instance: gi and ci, of the instances concerned; {} for the whole GPU.
    """
    address = bus.lower()[4:].partition(".")[0]
    for name, label in (("gi", "GPU-I"), ("ci", "GPU-CI")):
        if name in instance:
            address += f" {label}:{int(instance[name]):02}"
    with (node.tree / KMSG).open("ab") as file:
        sequence = os.fstat(file.fileno()).st_size // RECORD_LIMIT
        time_us = time.monotonic_ns() // 1000
        text = f"4,{sequence},{time_us},-;NVRM: Xid (PCI:{address}): {xid}, simulated\n"
        file.write(text.encode().ljust(RECORD_LIMIT, b"\n"))


def set_process(node: Node, index: int, pid: int, fields: Fields) -> None:
    """Let a process use a GPU, with `memory` in bytes, and per cent of its time in `sm`, `mem`.

    Raises:
        DocumentError: there is no such GPU.
        UsageError: a field is unknown or no number.
    """
    _check(fields, PROCESS_FIELDS)
    with state.change(node.state_file) as now:
        now.gpu(index)
        before = now.find("process", gpu=index, pid=pid)
        record = before[0] if before else now.add("process", gpu=index, pid=pid)
        record.fields.update(fields)


def end_process(node: Node, index: int, pid: int) -> None:
    """Let a process use a GPU no more.

    Raises:
        UsageError: it does not use this GPU.
    """
    with state.change(node.state_file) as now:
        if not now.remove("process", gpu=index, pid=pid):
            raise UsageError(f"GPU {index} has no process {pid}")


def _check(fields: Fields, names: tuple[str, ...]) -> None:
    for name, text in fields.items():
        if name not in names:
            raise UsageError(f"unknown field {name!r}", hint=f"one of {', '.join(names)}")
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(f"{text!r} is no number for {name}")
        if name in PERCENTS and int(text) > 100:
            raise UsageError(f"{name}={text} is too much", hint="100 at most")
