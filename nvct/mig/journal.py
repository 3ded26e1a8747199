# SPDX-License-Identifier: Apache-2.0
"""The journal of a change: while it exists, a change is in progress or was interrupted.

The journal is a checkpoint of the layout before the change, with one more member: the layout after
it. NVIDIA's `nvidia-mig-parted restore` reads it as a checkpoint. It is below /run, because MIG
instances do not survive a reboot.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvct.errors import DocumentError, HostError, OSErrorsAs, UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState, Placement
from nvct.kernel.shared_folder import SharedFolder
from nvct.mig.layout import COMPUTE_SLICES, ComputePart, Layout, Part, layout_of
from nvct.mig.plan import Plan
from nvct.mig.tables import with_placements

VERSION = "v1"
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors that a document of another form raises."""
NUMBER_LIMIT = 1 << 16  # Limit for profiles and slices; those of all GPUs are much smaller


def of_state(state: MigState) -> dict[str, Any]:
    """Return the checkpoint of all MIG-capable GPUs."""
    return of_layouts({gpu.uuid: layout_of(gpu) for gpu in state.gpus if gpu.capable})


def of_layouts(layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """Return the checkpoint of layouts by the UUIDs of GPUs."""
    gpus = [
        {
            "UUID": uuid,
            "MigMode": int(layout.enabled),
            "GpuInstances": [_instance(part) for part in layout.parts] or None,
        }
        for uuid, layout in layouts.items()
    ]
    return {"Version": VERSION, "MigState": {"Devices": gpus or None}}


def text_of(checkpoint: Mapping[str, Any]) -> str:
    """Return the text of a checkpoint's file."""
    return json.dumps(checkpoint, separators=(",", ":"))


def parse(text: str) -> Plan:
    """Return the plan that restores a checkpoint; DocumentError if the text is not one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"a checkpoint is not JSON: {error}") from error
    try:
        if document["Version"] != VERSION:
            raise DocumentError(f"a checkpoint of an unknown version: {document['Version']}")
        return plan_of(document["MigState"])
    except MALFORMED as error:
        raise DocumentError(f"a checkpoint is malformed: {error!r}") from error


def plan_of(state: Mapping[str, Any]) -> Plan:
    """Return the plan of a checkpoint's member MigState."""
    layouts = {}
    for gpu in state["Devices"] or ():
        parts = tuple(_part(gi) for gi in gpu["GpuInstances"] or ())
        if gpu["MigMode"] not in (0, 1):
            raise ValueError(f"MigMode {gpu['MigMode']}")
        layouts[str(gpu["UUID"])] = Layout(enabled=gpu["MigMode"] == 1, parts=parts)
    return Plan(layouts=layouts)


def check(plan: Plan, state: MigState) -> None:
    """Raise UsageError if this machine cannot have a checkpoint's layouts."""
    gpus = {gpu.uuid: gpu for gpu in state.gpus if gpu.capable}
    for uuid, layout in plan.layouts.items():
        if uuid not in gpus:
            raise UsageError(
                f"no GPU {uuid} with a MIG mode on this machine", hint="nothing was changed"
            )
        problem = _problem(with_placements(gpus[uuid]), layout)
        if problem:
            raise UsageError(f"GPU {uuid} can have {problem}", hint="nothing was changed")


def _problem(gpu: MigGpu, layout: Layout) -> str:
    """Return which part of a layout a GPU cannot have, after "can have"; "" if it can have all."""
    if layout.parts and not layout.enabled:
        return "no MIG instances while its MIG mode is off"
    profiles = {profile.kind: profile for profile in gpu.profiles}
    used: set[int] = set()
    for part in layout.parts:
        profile, (start, size) = profiles.get(part.kind), part.placement
        if profile is None or (profile.placements and part.placement not in profile.placements):
            return f"no instance of profile {part.kind} at slice {start} of size {size}"
        slices = set(range(start, start + size))
        if used & slices:
            return f"no two instances at slice {min(used & slices)}"
        used |= slices
        if sum(COMPUTE_SLICES.get(c.kind, 99) for c in part.compute) > profile.slices:
            kinds = ", ".join(str(compute.kind) for compute in part.compute)
            return f"no compute instances of profiles {kinds} in one of {profile.name}"
    return ""


def _instance(part: Part) -> dict[str, Any]:
    compute = [{"ProfileID": c.kind, "EngProfileID": c.engine} for c in part.compute]
    return {
        "ProfileID": part.kind,
        "Placement": {"Start": part.placement.start, "Size": part.placement.size},
        "ComputeInstances": compute or None,
    }


def _part(instance: Mapping[str, Any]) -> Part:
    place = instance["Placement"]
    compute = (
        ComputePart(kind=_number(c["ProfileID"]), engine=_number(c["EngProfileID"]))
        for c in instance["ComputeInstances"] or ()
    )
    return Part(
        kind=_number(instance["ProfileID"]),
        placement=Placement(_number(place["Start"]), _number(place["Size"])),
        compute=tuple(compute),
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_LIMIT:
        raise ValueError(f"{value!r} is not a profile or slice")
    return value


FILE, LOCK = "mig-journal.json", "mig.lock"
FOLDER_MODE = 0o700
LIMIT = 1 << 20  # Bytes of a journal; one of 16 GPUs with 7 instances each has 30 KB
TARGET = "Target"
LOCK_S = 60.0  # Limit of the wait for another program that changes MIG


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal and its lock, in a folder that less privileged programs may change."""

    folder: str

    @property
    def path(self) -> str:
        """The path of the journal's file."""
        return f"{self.folder}/{FILE}"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock that every change takes.

        HostError if another program holds it for too long, or the folder cannot be written;
        UnsafePathError if the folder is a link or a file.
        """
        with contextlib.ExitStack() as held:
            with self._writing():
                folder = held.enter_context(self._open())
                held.enter_context(folder.lock(LOCK, LOCK_S))
            yield

    def open(self, before: Plan, after: Plan) -> None:
        """Write the journal; it is on disk when this returns.

        HostError if it cannot be written; UnsafePathError if the folder is a link or a file.
        """
        document = of_layouts(before.layouts)
        document[TARGET] = of_layouts(after.layouts)["MigState"]
        text = text_of(document)
        with self._writing(), self._open() as folder:
            folder.write(FILE, text.encode(), sync=True)

    def close(self) -> None:
        """Remove the journal after a change or its undoing; HostError if that fails."""
        with self._writing(), self._open() as folder:
            folder.unlink(FILE)

    def read(self) -> tuple[Plan, Plan] | None:
        """Return the layouts before and after an interrupted change, None if there is none.

        DocumentError if the journal is damaged; HostError if it cannot be read; UnsafePathError if
        it is a link, or a user other than root could have written it.
        """
        try:
            with SharedFolder.open(self.folder) as folder:
                data = folder.read(FILE, LIMIT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostError(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            text = data.decode()
            before = parse(text)
            return before, plan_of(json.loads(text)[TARGET])
        except (*MALFORMED, DocumentError) as error:
            raise DocumentError(
                f"the journal of a MIG change is damaged: {self.path}",
                hint="compare `nvct mig export` with what you want, then remove the file",
            ) from error

    def _open(self) -> SharedFolder:
        return SharedFolder.open(self.folder, create=FOLDER_MODE)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with OSErrorsAs(
            HostError,
            f"a change of MIG cannot be recorded in {self.folder}",
            hint="run it as root, on a writable file system",
        ):
            yield
