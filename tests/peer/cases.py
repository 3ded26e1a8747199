# SPDX-License-Identifier: Apache-2.0
"""The recorded nodes, and the options of each of NVIDIA's programs on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Node:
    """A simulated node. Its name is also its recordings' folder, and determines the GPUs' UUIDs.

    Attributes:
        profile: of nvct sim.
        mig: the configuration that mig-parted applies first, one that it generates.
        full: run all cases of the device plugin; else only those that differ by hardware.
        has_mig: also run the cases for MIG devices.
        runs: of gpu-feature-discovery for each case; more than one if its answer varies.
    """

    profile: str
    mig: str = ""
    full: bool = False
    has_mig: bool = False
    runs: int = 1


RUNS_BY_CHANCE = 72
"""One of two products wins in one of eight runs: Go starts at a random one of a map's eight slots.
The probability that it wins in none of these runs is 1 in 15000."""

NODES = {
    "a100-80": Node(profile="a100-80", full=True),
    "a100-80-all-1g": Node(profile="a100-80", mig="all-1g.10gb", has_mig=True),
    "a100-80-balanced": Node(profile="a100-80", mig="all-balanced", has_mig=True),
    "a100-16": Node(profile="a100-16"),
    "gtx1080ti-9": Node(profile="gtx1080ti-9"),
    "h100-mig": Node(profile="h100-mig", has_mig=True),
    "hgx-h100": Node(profile="hgx-h100"),
    "mixed": Node(profile="mixed", has_mig=True, runs=RUNS_BY_CHANCE),
    "t4-4": Node(profile="t4-4"),
    "v100-8": Node(profile="v100-8"),
    "vgpu": Node(profile="vgpu"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One start of a program.

    Attributes:
        flags: of the command line.
        config: its config file.
    """

    flags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def _shared(kind: str, replicas: int, *names: str, **more: object) -> dict[str, Any]:
    resources = [{"name": name, "replicas": replicas} for name in names or ("nvidia.com/gpu",)]
    return {"version": "v1", "sharing": {kind: {**more, "resources": resources}}}


def _strategy(*words: str) -> Case:
    first, *more = words
    return Case(flags=(f"--device-list-strategy={first}", *more))


PLUGIN = {
    "envvar": Case(),
    "device-specs": Case(flags=("--pass-device-specs",)),
    "cdi-cri": _strategy("cdi-cri"),
}
"""On every node."""
PLUGIN_FULL = {
    "envvar-index": Case(flags=("--device-id-strategy=index",)),
    "volume-mounts": _strategy("volume-mounts"),
    "volume-mounts-index": _strategy("volume-mounts", "--device-id-strategy=index"),
    "cdi-annotations": _strategy("cdi-annotations"),
    "cdi-annotations-prefix": _strategy("cdi-annotations", "--cdi-annotation-prefix=example.com/"),
    "cdi-annotations-and-cri": _strategy("cdi-annotations,cdi-cri"),
    "cdi-cri-and-envvar": _strategy("cdi-cri,envvar"),
    "cdi-cri-index": _strategy("cdi-cri", "--device-id-strategy=index"),
    "device-specs-dev-root": Case(flags=("--pass-device-specs", "--nvidia-dev-root=/somewhere")),
    "gds-gdrcopy-mofed": Case(flags=("--gds-enabled", "--gdrcopy-enabled", "--mofed-enabled")),
    "time-slicing": Case(config=_shared("timeSlicing", 2)),
    "time-slicing-packed": Case(
        config=_shared("timeSlicing", 2), flags=("--shared-devices-allocation-policy=packed",)
    ),
    "time-slicing-renamed": Case(config=_shared("timeSlicing", 2, renameByDefault=True)),
    "time-slicing-one-each": Case(
        config=_shared("timeSlicing", 2, failRequestsGreaterThanOne=True)
    ),
    "refused-strategy": _strategy("somehow"),
    "refused-mps": Case(config=_shared("mps", 2)),
}
PLUGIN_OF_NODE = {
    "hgx-h100": {
        "imex": Case(config={"version": "v1", "imex": {"channelIDs": [0]}}),
        "imex-cdi-cri": Case(
            config={"version": "v1", "imex": {"channelIDs": [0]}},
            flags=("--device-list-strategy=cdi-cri",),
        ),
        "gds-cdi-cri": _strategy("cdi-cri", "--gds-enabled", "--gdrcopy-enabled"),
    }
}
PLUGIN_MIG = {
    "single": Case(flags=("--mig-strategy=single",)),
    "mixed": Case(flags=("--mig-strategy=mixed",)),
    "mixed-index": Case(flags=("--mig-strategy=mixed", "--device-id-strategy=index")),
    "mixed-device-specs": Case(flags=("--mig-strategy=mixed", "--pass-device-specs")),
    "mixed-cdi-cri": _strategy("cdi-cri", "--mig-strategy=mixed"),
    "mixed-time-slicing": Case(
        flags=("--mig-strategy=mixed",),
        config=_shared("timeSlicing", 2, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
    ),
}

GFD = {
    "none": Case(),
    "single": Case(flags=("--mig-strategy=single",)),
    "mixed": Case(flags=("--mig-strategy=mixed",)),
    "time-slicing": Case(config=_shared("timeSlicing", 4)),
    "time-slicing-renamed": Case(config=_shared("timeSlicing", 4, renameByDefault=True)),
    "mps": Case(config=_shared("mps", 4)),
    "vfio": Case(flags=("--device-discovery-strategy=vfio",)),
}
GFD_MIG = {
    "mixed-time-slicing": Case(
        flags=("--mig-strategy=mixed",),
        config=_shared("timeSlicing", 4, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
    ),
}
MACHINE = "Simulated Machine (42)"
"""In the file from which gpu-feature-discovery reads the product's name."""


@dataclass(frozen=True, kw_only=True)
class InPods:
    """A cluster of one node, with the programs in pods.

    Attributes:
        node: of NODES; the UUIDs are the same as without a cluster.
        resources: that pods request, in the order in which the plugin registers them.
        starts: of the device plugin.
    """

    node: str
    resources: tuple[str, ...]
    starts: Mapping[str, Case]


IN_PODS = {
    "a100-80-in-pods": InPods(
        node="a100-80", resources=("nvidia.com/gpu",),
        starts={
            "envvar": Case(),
            **{name: _strategy(name) for name in ("volume-mounts", "cdi-annotations", "cdi-cri")},
        },
    ),
    "h100-mig-in-pods": InPods(
        node="h100-mig", resources=("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
        starts={
            "mixed": PLUGIN_MIG["mixed"],
            "mixed-cdi-cri": PLUGIN_MIG["mixed-cdi-cri"],
        },
    ),
}  # fmt: skip


def plugin(name: str) -> dict[str, Case]:
    """Return the cases of the device plugin for a node."""
    node = NODES[name]
    cases = {**PLUGIN, **PLUGIN_OF_NODE.get(name, {})}
    cases.update(PLUGIN_FULL if node.full else {})
    cases.update(PLUGIN_MIG if node.has_mig else {})
    return cases


def gfd(name: str) -> dict[str, Case]:
    """Return the cases of gpu-feature-discovery for a node."""
    return {**GFD, **(GFD_MIG if NODES[name].has_mig else {})}
