# SPDX-License-Identifier: Apache-2.0
"""Changes a simulated node: MIG, health, faults, XIDs, processes, driver upgrades.

NVML calls can create and destroy MIG instances as well. Both ways keep state, capability files and
device nodes consistent. DocumentError if the node does not have the GPU, UsageError for an
impossible change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from nvct.errors import HostError, UsageError
from nvct.kernel.kmsg import RECORD_LIMIT
from nvct_sim import kernelfs, mig, package, state, sysfs, tree
from nvct_sim.tree import KMSG, Node

Fields: TypeAlias = "dict[str, str]"

XID_EVENT = 8  # nvml.h: nvmlEventTypeXidCriticalError
EVENT_FIELDS = ("gi", "ci")
PROCESS_FIELDS = ("memory", "sm", "mem", "gi", "ci", "graphics")
PERCENTS = ("sm", "mem")


def add_xid(node: Node, index: int, xid: int, fields: Fields) -> None:
    """Report an XID of a GPU, or of an instance (gi, ci), by NVML and a kernel message."""
    _check(fields, EVENT_FIELDS)
    with state.change(node.state_file) as now:
        append_event(now, index, XID_EVENT, xid, fields)
        bus = now.gpu(index).fields["bus"]
    write_message(node, bus, xid, fields)


def append_event(now: state.State, index: int, kind: int, data: int, fields: Fields) -> None:
    """Add an event to a state that is being changed."""
    now.gpu(index)
    seq = max((int(e.fields["seq"]) for e in now.find("event")), default=0) + 1
    now.add("event", seq=seq, gpu=index, type=kind, data=data, **fields)


def write_message(node: Node, bus: str, xid: int, instance: Fields) -> None:
    """Append a driver's message such as `NVRM: Xid (PCI:0000:18:00): 79` to the node's kmsg.

    `bus` has NVML's form, 00000000:18:00.0; `instance` has gi and ci, or is empty for the GPU.
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
    """Make a process a user of a GPU: `memory` is in bytes, `sm` and `mem` in per cent."""
    _check(fields, PROCESS_FIELDS)
    with state.change(node.state_file) as now:
        now.gpu(index)
        before = now.find("process", gpu=index, pid=pid)
        record = before[0] if before else now.add("process", gpu=index, pid=pid)
        record.fields.update(fields)


def end_process(node: Node, index: int, pid: int) -> None:
    """Remove a process from the users of a GPU."""
    with state.change(node.state_file) as now:
        if not now.remove("process", gpu=index, pid=pid):
            raise UsageError(f"GPU {index} has no process {pid}")


def _check(fields: Fields, names: tuple[str, ...]) -> None:
    for name, text in fields.items():
        if name not in names:
            raise UsageError(f"unknown field {name!r}", hint=f"use one of {', '.join(names)}")
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(f"{name} must be a number, not {text!r}")
        if name in PERCENTS and int(text) > 100:
            raise UsageError(f"{name}={text} is too large", hint="use at most 100")


SANDBOX_UTILS = "libnvidia-sandboxutils.so"
NOT_LOADED = "none"  # The driver's version in the state while the modules are not loaded
XID_FALLEN_OFF_BUS = 79  # NVIDIA, "XID errors": GPU has fallen off the bus


def set_mig_mode(node: Node, index: int, *, on: bool) -> None:
    """Switch MIG mode of a GPU on or off; both remove its MIG instances."""
    with state.change(node.state_file) as now:
        gpu = now.gpu(index)
        if gpu.fields["migcapable"] != "1":
            raise UsageError(f"GPU {index}, a {gpu.fields['name']}, has no MIG")
        gpu.fields["mig"] = str(int(on))
        gpu.fields.pop("migflip", None)
        mig.remove_all_instances(now, index)
    tree.write_kernel(node)


def reset_gpu(node: Node, index: int) -> None:
    """Reset a GPU: its volatile counters are 0 again, and pending ECC and MIG modes take effect.

    A change of the MIG mode removes the GPU's MIG instances.
    """
    with state.change(node.state_file) as now:
        fields = now.gpu(index).fields
        if now.find("process", gpu=index):
            raise UsageError(f"GPU {index} cannot be reset: a process uses it")
        if fields.get("lost") == "1":
            raise UsageError(f"GPU {index} cannot be reset: it has fallen off the bus")
        for name in state.ENDED_BY_RESET:
            fields.pop(name, None)
        if "eccnext" in fields:
            fields["ecc"] = fields["eccnext"]
        fields.update(energy="0", energy_at=str(int(time.time() * state.US)))
        if fields.pop("migflip", "0") == "1":
            fields["mig"] = str(1 - int(fields["mig"]))
            mig.remove_all_instances(now, index)
    tree.write_kernel(node)


def create_instance(node: Node, index: int, profile_name: str) -> tuple[int, int]:
    """Create a MIG instance on a GPU in MIG mode; return the ids of GPU and compute instance."""
    with state.change(node.state_file) as now:
        ids = mig.add_instance(now, index, profile_name)
    tree.write_kernel(node)
    return ids


def destroy_instance(node: Node, index: int, gi: int) -> None:
    """Destroy a MIG instance."""
    with state.change(node.state_file) as now:
        mig.remove_instance(now, index, gi)
    tree.write_kernel(node)


def set_gpu(node: Node, index: int, /, **fields: str | int) -> None:
    """Set fields of a GPU that NVML reports (state.NAMES); UsageError for another field."""
    fixed = {"index", "minor", "uuid", "bus", "mig", "migcapable"} & set(fields)
    if fixed:
        raise UsageError(f"{fixed.pop()!r} of a GPU cannot be changed")
    with state.change(node.state_file) as now:
        present = now.gpu(index).fields
        for key in fields:
            if key not in {*present, *state.NAMES}:
                raise UsageError(
                    f"a GPU has no field {key!r}", hint=f"use one of {', '.join(state.NAMES)}"
                )
        changed = {key: state.value(key, str(value)) for key, value in fields.items()}
        # Count the energy until now with the former power.
        present.update({**state.energy(present, time.time()), **changed})


def lose_gpu(node: Node, index: int) -> None:
    """Make a GPU fall off the bus: NVML calls on it fail, and NVML reports XID 79."""
    with state.change(node.state_file) as now:
        fields = now.gpu(index).fields
        fields["lost"] = "1"
        append_event(now, index, XID_EVENT, XID_FALLEN_OFF_BUS, {})
    write_message(node, fields["bus"], XID_FALLEN_OFF_BUS, {})


def restore_gpu(node: Node, index: int) -> None:
    """Bring a lost GPU back."""
    set_gpu(node, index, lost=0)


def set_fault(node: Node, kind: str, seconds: int) -> None:
    """Make every NVML call fail by "hang", "crash", or "hang-hard", which SIGKILL does not end."""
    with state.change(node.state_file) as now:
        now.remove("fault")
        if seconds:
            now.add("fault", nvml=kind, until=int(time.time() * 1000) + seconds * 1000)


def upgrade(node: Node, version: str) -> Node:
    """Upgrade the driver's user space on disk, as a package manager does; the module stays.

    Until reload_module() the two versions differ, and NVML reports a version mismatch. A process
    with the driver at / keeps the version that it started with; at /run/nvidia/driver it sees the
    new version.
    """
    if not tree.VERSION.fullmatch(version):
        raise UsageError(f"bad driver version {version!r}", hint="write it like 580.159.04")
    with tree.locked(node):
        return node if version == node.installed else _upgrade(node, version)


def _upgrade(node: Node, version: str) -> Node:
    libraries = node.library_dir
    native = {
        "libnvidia-ml.so": libraries / f"libnvidia-ml.so.{node.installed}",
        "nvidia-smi": node.driver_root / "usr/bin/nvidia-smi",
        "nvidia-cuda-mps-control": node.driver_root / "usr/bin/nvidia-cuda-mps-control",
        SANDBOX_UTILS: libraries / f"{SANDBOX_UTILS}.{node.installed}",
    }
    package.install(
        node.driver_root, version, machine=node.machine, state=node.state_file,
        native=native if node.native else None,
    )  # fmt: skip
    extras = kernelfs.extras(node.state())
    package.install_extras(node.driver_root, version, extras, machine=node.machine)
    package.remove(node.driver_root, node.installed, machine=node.machine)
    package.write_cache(node.driver_root, node.machine)
    upgraded = dataclasses.replace(node, installed=version)
    tree.save(upgraded)
    return upgraded


def unload_module(node: Node) -> None:
    """Unload the driver's modules, as rmmod does; HostError if a process has the driver open."""
    users = module_users(node)
    folder = node.sys / "module"
    if users:
        kernelfs.put(folder / "nvidia/refcnt", f"{len(users)}\n")
        raise HostError(f"module nvidia is in use by {', '.join(users)}")
    names = sysfs.modules(node.state())
    with state.change(node.state_file) as now:
        now.driver = NOT_LOADED
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in (node.proc / "driver/nvidia").iterdir():  # the folder itself may be mounted
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def module_users(node: Node) -> list[str]:
    """Return the processes with NVML initialized, which have the state's file open."""
    status, users = node.state_file.stat(), []
    for path in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the process has ended
            found = os.stat(path)
            is_same = found.st_dev == status.st_dev or package.STATE_LIBRARY in os.readlink(path)
            if found.st_ino == status.st_ino and is_same:
                pid = path.split("/")[2]
                users.append(f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})")
    return users


def reload_module(node: Node) -> None:
    """Load the installed version's module, as a reboot does; this removes MIG instances."""
    with state.change(node.state_file) as now:
        now.driver = node.installed
        for gpu in now.find("gpu"):
            gpu.fields["lost"] = "0"
            mig.remove_all_instances(now, int(gpu.fields["index"]))
        now.remove("event")
        now.remove("fault")
        now.remove("process")
    tree.write_kernel(node)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"{text!r} is not a number", hint="GPUs and instances are numbered from 0"
        )
    return int(text)


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{text!r} is not a number of seconds", hint="0 ends a fault")
    return int(text)


def _mode(text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError(f"{text!r} is neither on nor off")
    return text == "on"


def _optional(words: tuple[str, ...]) -> dict[str, str]:
    return _fields(words) if words else {}


def _fields(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    bad = [name for name, equals, _ in pairs if not (name and equals)]
    if bad or not pairs:
        raise UsageError(
            f"{' '.join(words)!r} is not a list of FIELD=VALUE", hint="for example temp=91"
        )
    return {name: value for name, _, value in pairs}


CHANGES: dict[str, tuple[str, Callable[..., object]]] = {
    "mig-mode": ("GPU on|off", lambda n, gpu, mode: set_mig_mode(n, _index(gpu), on=_mode(mode))),
    "mig-create": ("GPU PROFILE", lambda n, gpu, name: create_instance(n, _index(gpu), name)),
    "mig-destroy": ("GPU ID", lambda n, gpu, gi: destroy_instance(n, _index(gpu), _index(gi))),
    "reset": ("GPU", lambda n, gpu: reset_gpu(n, _index(gpu))),
    "lose": ("GPU", lambda n, gpu: lose_gpu(n, _index(gpu))),
    "find": ("GPU", lambda n, gpu: restore_gpu(n, _index(gpu))),
    "xid": (
        "GPU NUMBER [gi=ID] [ci=ID]",
        lambda n, gpu, xid, *w: add_xid(n, _index(gpu), _index(xid), _optional(w)),
    ),
    "process": (
        "GPU PID [FIELD=VALUE]...",
        lambda n, gpu, pid, *w: set_process(n, _index(gpu), _index(pid), _optional(w)),
    ),
    "process-end": ("GPU PID", lambda n, gpu, pid: end_process(n, _index(gpu), _index(pid))),
    "gpu": ("GPU FIELD=VALUE...", lambda n, gpu, *w: set_gpu(n, _index(gpu), **_fields(w))),
    "nvml-hang": ("SECONDS", lambda n, for_: set_fault(n, "hang", _seconds(for_))),
    "nvml-hang-hard": ("SECONDS", lambda n, for_: set_fault(n, "hang-hard", _seconds(for_))),
    "nvml-crash": ("SECONDS", lambda n, for_: set_fault(n, "crash", _seconds(for_))),
    "upgrade": ("VERSION", upgrade),
    "reload": ("", reload_module),
    "unload": ("", unload_module),
}
"""Usage of each change of `nvct sim set`, and its function of a node and the arguments."""


def check(name: str, words: Sequence[str]) -> None:
    """Raise UsageError for an unknown change, or a wrong number of arguments."""
    if name not in CHANGES:
        raise UsageError(f"unknown change {name!r}", hint=f"use one of {', '.join(CHANGES)}")
    usage, _ = CHANGES[name]
    expected = usage.split()
    required = [word for word in expected if not word.startswith("[")]
    is_open = usage.endswith("...")
    if len(words) < len(required) or (len(words) > len(expected) and not is_open):
        raise UsageError(
            f"wrong arguments for {name}: {' '.join(words)!r}", hint=f"{name} {usage}"
        )


def apply(node: Node, name: str, words: Sequence[str]) -> None:
    """Apply one of CHANGES with its command-line arguments."""
    check(name, words)
    _, function = CHANGES[name]
    function(node, *words)
