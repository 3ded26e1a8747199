# SPDX-License-Identifier: Apache-2.0
"""Resolves a configuration into a layout for every GPU, and plans the changes that lead there.

Everything is planned before any GPU is changed. Instances that both layouts have stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nvct.errors import UsageError
from nvct.host.nvml.mig_model import (
    ComputeInstance,
    CreateCompute,
    Destroy,
    DestroyCompute,
    GpuInstance,
    MigGpu,
    MigState,
    SetMode,
)
from nvct.mig.config import Spec
from nvct.mig.layout import ComputePart, Layout, Part, devices, is_same, layout_of
from nvct.mig.search import layout_for
from nvct.mig.tables import with_placements


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layouts of the GPUs that a configuration names, by UUID; other GPUs do not change."""

    layouts: Mapping[str, Layout]

    def changed(self, state: MigState) -> tuple[MigGpu, ...]:
        """Return the GPUs that do not have their layout yet."""
        return tuple(
            gpu
            for gpu in state.gpus
            if gpu.uuid in self.layouts
            and (gpu.pending != gpu.enabled or not is_same(layout_of(gpu), self.layouts[gpu.uuid]))
        )

    def mode_changes(self, state: MigState) -> tuple[MigGpu, ...]:
        """Return the GPUs whose MIG mode changes."""
        return tuple(
            gpu for gpu in self.changed(state) if self.layouts[gpu.uuid].enabled != gpu.enabled
        )


def make(
    state: MigState,
    specs: Sequence[Spec],
    *,
    mode_only: bool = False,
    held: Collection[tuple[str, int, int]] = (),
) -> Plan:
    """Return the plan of a configuration.

    GPUs without a MIG mode are left out if their entry has `devices: all` or MIG off. UsageError
    if a GPU does not exist, has no MIG mode or no such profile, or no layout exists. `mode_only`
    ignores the entries' MIG devices; a changed mode removes the existing ones. `held` are MIG
    devices in use: GPU's UUID, GPU instance, compute instance.
    """
    _check_devices(state, specs)
    layouts = {}
    pairs = list(assigned(state, specs))
    if not pairs:
        ids = ", ".join(dict.fromkeys(f"0x{gpu.device:08X}" for gpu in state.gpus))
        raise UsageError(
            "no GPU of this machine is in the configuration",
            hint=f"nothing was changed; as a device-filter, its GPUs are {ids or 'none'}",
        )
    for gpu, spec in pairs:
        if gpu.capable:
            layouts[gpu.uuid] = _layout(
                with_placements(gpu),
                spec,
                mode_only=mode_only,
                held=[(gi, ci) for uuid, gi, ci in held if uuid == gpu.uuid],
            )
        elif spec.enabled and spec.devices is not None:
            raise UsageError(
                f"cannot set MIG mode on non MIG-capable GPU {gpu.index} ({gpu.name})",
                hint="nothing was changed",
            )
    if not layouts and any(spec.enabled for _, spec in pairs):
        raise UsageError(
            "no GPU of this configuration has a MIG mode, so no MIG device can be made",
            hint="nothing was changed",
        )
    return Plan(layouts=layouts)


def assigned(state: MigState, specs: Sequence[Spec]) -> Iterator[tuple[MigGpu, Spec]]:
    """Yield each GPU that an entry names, with its last entry; UsageError for a bad filter."""
    if fault := next((spec.fault for spec in specs if spec.fault), None):
        raise UsageError(fault.message, hint=fault.hint)
    for gpu in state.gpus:
        spec = next((spec for spec in reversed(specs) if _matches(spec, gpu)), None)
        if spec is not None:
            yield gpu, spec


def is_applied(state: MigState, specs: Sequence[Spec], *, mode_only: bool = False) -> bool:
    """Report whether all GPUs have the MIG devices of a configuration, at any place.

    A GPU that no entry names counts as no. A GPU without a MIG mode counts as yes if its entry has
    `devices: all` and another GPU of the configuration has a MIG mode.
    """
    pairs = list(assigned(state, specs))
    if any(spec.enabled for _, spec in pairs) and not any(gpu.capable for gpu, _ in pairs):
        return False
    fitting = [_is_as(gpu, spec, mode_only=mode_only) for gpu, spec in pairs]
    return all(fitting) and (mode_only or len(pairs) == len(state.gpus))


def differing(state: MigState, specs: Sequence[Spec], *, mode_only: bool = False) -> str:
    """Return a text about the GPUs that do not have a configuration."""
    pairs = list(assigned(state, specs))
    differ = [str(gpu.index) for gpu, spec in pairs if not _is_as(gpu, spec, mode_only=mode_only)]
    if differ:
        return f"GPU {', '.join(differ)} has another layout"
    named = {gpu.uuid for gpu, _ in pairs}
    left = [str(gpu.index) for gpu in state.gpus if gpu.uuid not in named]
    return f"no entry of the configuration is for GPU {', '.join(left)}" if left else ""


def _is_as(gpu: MigGpu, spec: Spec, *, mode_only: bool) -> bool:
    if not gpu.capable:
        return not spec.enabled or spec.devices is None
    if gpu.enabled != spec.enabled:
        return False
    wish = Counter({name: count for name, count in spec.wish.items() if count})
    return mode_only or not spec.enabled or devices(gpu, layout_of(gpu)) == wish


def _layout(
    gpu: MigGpu, spec: Spec, *, mode_only: bool, held: Collection[tuple[int, int]]
) -> Layout:
    if not spec.enabled:
        return Layout(enabled=False)
    if mode_only:
        return layout_of(gpu) if gpu.enabled else Layout(enabled=True)
    return layout_for(gpu, spec.wish, held)


def _matches(spec: Spec, gpu: MigGpu) -> bool:
    is_device = spec.devices is None or gpu.index in spec.devices
    filters = spec.filters
    return is_device and (
        not filters or any(each.matches(gpu.device, gpu.subsystem) for each in filters)
    )


def _check_devices(state: MigState, specs: Sequence[Spec]) -> None:
    """Raise UsageError for an entry without an existing GPU.

    An entry can name more GPUs than this machine has, because one file serves many machines.
    """
    for spec in specs:
        if spec.devices and not spec.filters and len(state.gpus) <= min(spec.devices):
            numbers = ", ".join(map(str, spec.devices))
            raise UsageError(
                f"no GPU {numbers}: this machine has {len(state.gpus)}", hint="nothing was changed"
            )


@dataclass(frozen=True, slots=True)
class Create:
    """Create a GPU instance and its compute instances."""

    part: Part


Step: TypeAlias = SetMode | Create | CreateCompute | Destroy | DestroyCompute


def steps(gpu: MigGpu, layout: Layout) -> list[Step]:
    """Return the changes in order: destroy, set the mode, create."""
    kept: list[tuple[GpuInstance, Part]] = []
    missing = []
    uuid, free = gpu.uuid, list(gpu.instances)
    for part in layout.parts:
        same = next(
            (gi for gi in free if (gi.kind, gi.placement) == (part.kind, part.placement)), None
        )
        if same is None:
            missing.append(part)
        else:
            free.remove(same)
            kept.append((same, part))
    result: list[Step] = []
    for gi in free:
        result += [DestroyCompute(uuid=uuid, gi=gi.id, ci=ci.id) for ci in gi.compute]
        result.append(Destroy(uuid=uuid, gi=gi.id))
    created: list[Step] = []
    for gi, part in kept:
        excess, lacking = _compute_changes(gi, part)
        result += [DestroyCompute(uuid=uuid, gi=gi.id, ci=ci.id) for ci in excess]
        created += [
            CreateCompute(uuid=uuid, gi=gi.id, kind=each.kind, engine=each.engine)
            for each in lacking
        ]
    if gpu.enabled != layout.enabled or gpu.pending != layout.enabled:
        result.append(SetMode(uuid=uuid, enabled=layout.enabled))
    return [*result, *created, *(Create(part) for part in missing)]


def from_nothing(gpu: MigGpu, layout: Layout) -> list[Step]:
    """Return the changes to a layout that first destroy all instances."""
    return [*steps(gpu, Layout(enabled=gpu.enabled)), *steps(replace(gpu, instances=()), layout)]


def _compute_changes(
    gi: GpuInstance, part: Part
) -> tuple[list[ComputeInstance], list[ComputePart]]:
    excess = list(gi.compute)
    lacking = []
    for wanted in sorted(part.compute, key=lambda each: each.id is None):
        same = [ci for ci in excess if (ci.kind, ci.engine) == (wanted.kind, wanted.engine)]
        chosen = next((ci for ci in same if ci.id == wanted.id), next(iter(same), None))
        if chosen is None:
            lacking.append(wanted)
        else:
            excess.remove(chosen)
    return excess, lacking
