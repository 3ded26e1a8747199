# SPDX-License-Identifier: Apache-2.0
"""MIG instances in the state of a simulated node: placements, ids and capabilities.

UsageError for an impossible change.
"""

from __future__ import annotations

import uuid

from nvct.errors import UsageError
from nvct_sim import kernelfs
from nvct_sim.state import Record, State

NAMESPACE = uuid.UUID("6f0d4a9e-52a5-5a3c-9d5e-2d0f6a1c7b11")
MEMORY_SLICES = 8


def _placements(record: Record) -> list[tuple[int, int]]:
    pairs = (pair.split(":") for pair in record.fields["placements"].split(",") if pair)
    return [(int(start), int(size)) for start, size in pairs]


def _free_placement(now: State, index: int, profile: Record) -> tuple[int, int]:
    used_slices: set[int] = set()
    for gi in now.find("gi", gpu=index):
        start, size = int(gi.fields["start"]), int(gi.fields["size"])
        used_slices.update(range(start, start + size))
    for start, size in _placements(profile):
        if not used_slices.intersection(range(start, start + size)):
            return start, size
    raise UsageError(
        f"no room on GPU {index} for another {profile.fields['name']}",
        hint="destroy an instance first",
    )


def _instance_id(now: State, index: int, start: int, size: int) -> int:
    """Return the id of a new GPU instance.

    The real driver numbers the nodes of a binary tree over the memory slices. The upper half
    comes first: 0 is the whole GPU, 1 and 2 the halves, 3 to 6 the quarters, 7 to 14 the eighths.
    """
    used_ids = {int(gi.fields["id"]) for gi in now.find("gi", gpu=index)}
    parts = MEMORY_SLICES // size
    tree_id = parts - 1 + (start + MEMORY_SLICES // 2) % MEMORY_SLICES // size
    if tree_id not in used_ids:
        return tree_id
    return next(n for n in range(kernelfs.MAX_GPU_INSTANCES) if n not in used_ids)


def mig_uuid(gpu_uuid: str, gi: int, ci: int) -> str:
    """Return the UUID of a MIG device: the same for equal ids on the same GPU."""
    return f"MIG-{uuid.uuid5(NAMESPACE, f'{gpu_uuid}/{gi}/{ci}')}"


def add_instance(now: State, index: int, profile_name: str) -> tuple[int, int]:
    """Add a GPU instance and the compute instance that fills it; return their ids."""
    gpu = now.gpu(index)
    if gpu.fields["mig"] != "1":
        raise UsageError(
            f"GPU {index} is not in MIG mode", hint=f"`nvct sim set NODE mig-mode {index} on`"
        )
    profiles = now.find("profile", gpu=index)
    matches = [p for p in profiles if profile_name in (p.fields["name"], p.fields["id"])]
    if not matches:
        names = ", ".join(p.fields["name"] for p in profiles)
        raise UsageError(
            f"GPU {index} has no MIG profile {profile_name!r}", hint=f"use one of {names}"
        )
    profile = matches[0]
    if len(now.find("gi", gpu=index, profile=profile.fields["id"])) >= int(profile.fields["max"]):
        raise UsageError(f"GPU {index} can have no further {profile.fields['name']}")
    start, size = _free_placement(now, index, profile)
    gi, ci, minor = _instance_id(now, index, start, size), 0, int(gpu.fields["minor"])
    now.add("gi", gpu=index, id=gi, profile=profile.fields["id"], start=start, size=size)
    now.add(
        "ci", gpu=index, gi=gi, id=ci, profile=profile.fields["ci"],
        uuid=mig_uuid(gpu.fields["uuid"], gi, ci),
    )  # fmt: skip
    now.add("cap", gpu=index, gi=gi, minor=kernelfs.capability_minor(minor, gi))
    now.add("cap", gpu=index, gi=gi, ci=ci, minor=kernelfs.capability_minor(minor, gi, ci))
    return gi, ci


def remove_instance(now: State, index: int, gi: int) -> None:
    """Remove a GPU instance with its compute instances."""
    if not now.remove("gi", gpu=index, id=gi):
        ids = ", ".join(record.fields["id"] for record in now.find("gi", gpu=index))
        raise UsageError(
            f"GPU {index} has no GPU instance {gi}", hint=f"it has {ids}" if ids else "it has none"
        )
    now.remove("ci", gpu=index, gi=gi)
    now.remove("cap", gpu=index, gi=gi)


def remove_all_instances(now: State, index: int) -> None:
    """Remove every instance of a GPU."""
    for kind in ("gi", "ci", "cap"):
        now.remove(kind, gpu=index)
