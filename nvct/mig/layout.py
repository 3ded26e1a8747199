# SPDX-License-Identifier: Apache-2.0
"""The layout of a GPU: MIG mode, GPU instances at their places, compute instances in them.

Names of profiles have the form `[<c>c.]<g>g.<gb>gb[+attribute,...|-attribute,...]`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nvct.errors import DocumentError
from nvct.host.nvml.mig_model import GpuInstance, MigGpu, MigProfile, Placement


@dataclass(frozen=True, slots=True, order=True)
class ProfileName:
    """A MIG profile's name, parsed."""

    compute: int  # compute slices of the compute instance
    slices: int  # compute slices of the GPU instance
    gigabytes: int
    # such as +me, +me.all or -gfx; only the first attribute has a sign
    attributes: str = ""

    def __str__(self) -> str:
        """Return the name; it has compute slices only if they are a part of the GPU instance."""
        part = "" if self.compute == self.slices else f"{self.compute}c."
        return f"{part}{self.slices}g.{self.gigabytes}gb{self.attributes}"

    @property
    def gpu_instance(self) -> str:
        """The name of the GPU instance's profile."""
        return str(ProfileName(self.slices, self.slices, self.gigabytes, self.attributes))


def parse_profile(text: str) -> ProfileName:
    """Parse a profile's name; DocumentError with the words of NVIDIA's library if malformed."""
    if not text:
        raise DocumentError("profile is the empty string")
    if "+" in text and "-" in text:
        raise DocumentError(f"profile '{text}' contains both '+/-' attributes")
    sign = "+" if "+" in text else "-"
    fields, found, attributes = text.partition(sign)
    try:
        compute, slices, gigabytes = _fields(fields)
    except DocumentError as error:
        raise DocumentError(f"cannot parse fields of '{text}': {error.message}") from error
    words = sorted(attributes.split(","))
    if found and not (all(map(_is_attribute, words)) and len(set(words)) == len(words)):
        raise DocumentError(
            f"cannot parse attributes of '{text}': each has letters and digits with dots in "
            "between, and appears once"
        )
    return ProfileName(compute, slices, gigabytes, sign + ",".join(words) if found else "")


def _fields(text: str) -> tuple[int, int, int]:
    parts = text.split(".")
    if len(parts) == 3:
        compute, slices = _number(parts[0], "c"), _number(parts[1], "g")
        if compute > slices:
            raise DocumentError("'%dc' is more than '%dg'")
        return compute, slices, _number(parts[2], "gb")
    if len(parts) == 2:
        slices = _number(parts[0], "g")
        return slices, slices, _number(parts[1], "gb")
    raise DocumentError("expected '%dg.%dgb' or '%dc.%dg.%dgb'")


def _number(text: str, unit: str) -> int:
    if text.strip() != text:
        raise DocumentError(f"leading or trailing spaces on '%d{unit}'")
    if not text.endswith(unit):
        raise DocumentError(f"missing '{unit}' from '%d{unit}'")
    digits = text[: -len(unit)]
    if not (digits.isascii() and digits.isdigit()):
        raise DocumentError(f"malformed number in '%d{unit}'")
    return int(digits)


def _is_attribute(word: str) -> bool:
    parts = word.split(".")
    return word.isascii() and all(part.isalnum() and not part[0].isdigit() for part in parts)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for the order in YAML of NVIDIA's programs: 1g.5gb before 1g.10gb."""
    key: list[tuple[int, int, str]] = []
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and text[end].isdigit():
            end += 1
        if end > at:
            key.append((1, int(text[at:end]), text[at:end]))
            at = end
        else:
            key.append((2 if text[at].isalpha() else 0, 0, text[at]))
            at += 1
    return tuple(key)


COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}
"""Compute slices by NVML_COMPUTE_INSTANCE_PROFILE_* (nvml.h): 7 is 1_SLICE_REV1, 8 7_SLICE_NVL."""
COMPUTE_KINDS = {slices: kind for kind, slices in reversed(COMPUTE_SLICES.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePart:
    """A compute instance."""

    kind: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    engine: int = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_*
    # id of the existing compute instance that is meant; None for any of that kind
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A GPU instance; `kind` is one of NVML_GPU_INSTANCE_PROFILE_*."""

    kind: int
    placement: Placement
    compute: tuple[ComputePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a GPU. `parts` is empty if MIG mode is off."""

    enabled: bool
    parts: tuple[Part, ...] = ()


def layout_of(gpu: MigGpu) -> Layout:
    """Return a GPU's current layout."""
    return Layout(enabled=gpu.enabled, parts=tuple(part_of(gi) for gi in gpu.instances))


def part_of(instance: GpuInstance) -> Part:
    """Return an existing GPU instance as a part; its compute instances keep their ids."""
    compute = (ComputePart(kind=c.kind, engine=c.engine, id=c.id) for c in instance.compute)
    return Part(kind=instance.kind, placement=instance.placement, compute=tuple(compute))


def device_name(profile: MigProfile, kind: int) -> str:
    """Return the name of a MIG device, given its GPU instance's profile and its compute kind."""
    whole = parse_profile(profile.name)
    compute = COMPUTE_SLICES.get(kind, whole.slices)
    return str(ProfileName(compute, whole.slices, whole.gigabytes, whole.attributes))


def devices(gpu: MigGpu, layout: Layout) -> Counter[str]:
    """Count the MIG devices of a layout by name; each compute instance is a device."""
    profiles = {profile.kind: profile for profile in gpu.profiles}
    return Counter(
        device_name(profiles[part.kind], compute.kind)
        for part in layout.parts
        if part.kind in profiles
        for compute in part.compute
    )


def is_same(first: Layout, second: Layout) -> bool:
    """Report whether two layouts are equal, except for order and ids."""
    return first.enabled == second.enabled and _plain(first) == _plain(second)


def _plain(layout: Layout) -> list[tuple[int, Placement, list[tuple[int, int]]]]:
    return sorted(
        (p.kind, p.placement, sorted((c.kind, c.engine) for c in p.compute)) for p in layout.parts
    )
