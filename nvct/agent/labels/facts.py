# SPDX-License-Identifier: Apache-2.0
"""The facts of a node that labels are made from, and the syntax of labels: values, without I/O.

Source of the syntax: kubernetes.io, "Labels and Selectors", and apimachinery's validation of
qualified names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml.model import MigAttributes

Labels: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFacts:
    """A MIG device."""

    profile: str  # e.g. 1g.10gb+me
    size: MigAttributes | None = None  # None if NVML does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU."""

    model: str
    # None if NVML does not report it; bytes if the GPU is passed through
    memory_mib: int | None = None
    # the CUDA compute capability; (0, 0) if NVML does not report it, and (-1, -1) if the GPU is
    # passed through
    compute: tuple[int, int] = (0, 0)
    ecc: bool | None = None
    mig_capable: bool = False  # whether it has a MIG mode; mig_enabled: whether that is on
    mig_enabled: bool = False
    mig: tuple[MigFacts, ...] = ()
    pci_class: str = ""  # e.g. 0x030200, "" if unknown
    clique: str = ""  # of the NVLink fabric, "" if it is in none


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A node."""

    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[GpuFacts, ...] = ()  # in NVML's order; empty if there is no driver
    machine: str = ""  # the product name of the machine; "" if unknown
    host_drivers: tuple[HostDriver, ...] | None = ()  # of vGPUs; None if that is unknown
    has_nvidia_device: bool = False


LIMIT = 63  # Characters of a value, and of the part of a key after the slash
PREFIX_LIMIT = 253
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9-_. ]")
ENDS = "-_."


def sanitized(text: str) -> str:
    """Return a text as a label's value; e.g. Tesla T4 as Tesla-T4.

    NVIDIA's GPU feature discovery does the same, but Kubernetes refuses some of its values.
    """
    words = OTHER_CHARACTERS.sub("", text).split()
    return "-".join(words)[:LIMIT].strip(ENDS)


def joined(product: str, *suffixes: str) -> str:
    """Return a product with suffixes as a value; the product is cut if it is too long."""
    tail = "".join(f"-{suffix}" for suffix in suffixes)
    return product[: LIMIT - len(tail)].rstrip(ENDS) + tail


def is_value(text: str) -> bool:
    """Return whether Kubernetes accepts a text as a label's value."""
    return len(text) <= LIMIT and bool(VALUE.fullmatch(text))


def is_key(text: str) -> bool:
    """Return whether Kubernetes accepts a text as a label's key."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > PREFIX_LIMIT or not SUBDOMAIN.fullmatch(prefix)):
        return False
    return bool(name) and is_value(name)
