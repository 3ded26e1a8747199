# SPDX-License-Identifier: Apache-2.0
"""Every device, node, mount, variable and hook function of nvidia-ctk 1.20.0 is in nvct's spec.

The other program's specs were recorded on simulated nodes (record.py). What differs is listed
here, with the reason; a difference that is not listed, or listed and gone, fails.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from nvct.cdi.make.generate import generate
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import StatNode, named_nodes
from nvct.host.nvml.model import NvmlGpu, NvmlMig
from nvct.host.roots import Roots
from nvct_sim import attach, kernelfs, tree
from nvct_sim.state import State
from tests.golden.incumbent.record import CASES, NODE
from tests.golden.incumbent.reduce import reduce
from tests.support.host_tree import FakeNvml

Reduced: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent
GROUPS = {"card": 44, "renderD": 105}  # of the host where the other program ran


class Difference(NamedTuple):
    """An edit that only one of the two has.

    Attributes:
        pattern: of the whole sentence that reduce() makes of it.
        cases: where it is.
    """

    pattern: str
    reason: str
    cases: tuple[str, ...]


KINDS = {
    "nvml": "nvidia.com/gpu",
    "management": "management.nvidia.com/gpu",
    "gdrcopy": "nvidia.com/gdrcopy",
    "gds": "nvidia.com/gds",
    "imex": "nvidia.com/imex-channel",
    "mofed": "nvidia.com/mofed",
    "nvswitch": "nvidia.com/nvswitch",
}
LIB = "/usr/lib/x86_64-linux-gnu"
GPUS = ("h100", "h100-mig", "hgx-h100")
DRIVER = (*GPUS, "management")
ONLY_OURS = (
    Difference(
        r"/dev/dri/by-path/pci-[0-9a-f:.]+-(card|render) 660 rwm gid \d+ from /dev/dri/\w+",
        "the links are nodes of the same number: no hook process for each device",
        GPUS,
    ),
    Difference(
        f"link (libnvidia-egl-[a-z0-9]+\\.so)\\.[0-9.]+::{LIB}/\\1\\.1",
        "the loader opens SONAMEs; the other program leaves these links to ldconfig",
        GPUS,
    ),
    Difference(
        r"/etc/vulkansc/icd\.d/nvidia_icd_vksc\.json from \$ROOT/usr/share/vulkansc/.*",
        "the library that it names is mounted by both; without it no loader finds that",
        GPUS,
    ),
    Difference(
        f"{LIB}/libnvidia-api\\.so\\.1",
        "a library of the driver whose name has no driver version; the other program has it "
        "behind a feature flag, and only where libnvidia-api.so is there as well",
        DRIVER,
    ),
    Difference(
        r"/lib/firmware/nvidia/V/gsp_\w+\.bin from \$ROOT/usr/lib/firmware/nvidia/V/gsp_\w+\.bin",
        "the same file: links are resolved inside the driver root, not when a runtime mounts it",
        DRIVER,
    ),
    Difference(
        "/usr/bin/nv-fabricmanager",
        "nvidia-container-cli gives it to containers, the other program's specs forgot it",
        ("hgx-h100", "management"),
    ),
    Difference(
        r"/dev/nvidia-caps-imex-channels/channel\d+ 666 rwm",
        "the mode that the host's node has and full access, as all other nodes have",
        ("imex",),
    ),
)
ONLY_THEIRS = (
    Difference(
        r"link \.\./\w+::/dev/dri/by-path/pci-[0-9a-f:.]+-(card|render)",
        "see the by-path nodes",
        GPUS,
    ),
    Difference(r"/lib/firmware/nvidia/V/gsp_\w+\.bin", "see the firmware", DRIVER),
    Difference(
        r"/dev/nvidia-caps-imex-channels/channel\d+ 0 ", "see the channels' modes", ("imex",)
    ),
)


def nvml_of(now: State) -> FakeNvml:
    """Return what NVML tells of a simulated node."""
    gpus = []
    for gpu in now.find("gpu"):
        instances = now.find("ci", gpu=gpu.fields["index"])
        places = sorted((int(ci.fields["gi"]), ci.fields) for ci in instances)
        mig = tuple(
            NvmlMig(index=number, uuid=ci["uuid"], gi=gi, ci=int(ci["id"]), profile="1g.10gb")
            for number, (gi, ci) in enumerate(places)
        )
        gpus.append(
            NvmlGpu(
                index=int(gpu.fields["index"]),
                minor=int(gpu.fields["minor"]),
                uuid=gpu.fields["uuid"],
                bus_id=kernelfs.proc_bus(gpu.fields["bus"]),
                name=gpu.fields["name"],
                mig_enabled=gpu.fields["mig"] == "1",
                mig=mig,
            )
        )
    return FakeNvml(gpus=tuple(gpus))


def with_groups(stat_node: StatNode) -> StatNode:
    """Give DRM nodes their groups, which only root can give them in a tree."""

    def stat(path: str) -> tuple[int, int, int, int, int] | None:
        found = stat_node(path)
        group = GROUPS.get(path.rpartition("/")[2].rstrip("0123456789"), 0)
        return (*found[:4], group) if found else None

    return stat


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def theirs(case: str) -> Reduced:
    content: Reduced = json.loads((FOLDER / f"{case}.json").read_text())
    return content


@pytest.fixture
def ours(case: str, tmp_path: Path) -> Reduced:
    profile, mode = CASES[case]
    node = tree.create(NODE, profile, tmp_path, native=False, nodes="plain", machine="x86_64")
    roots = Roots(
        driver_root=str(node.driver_root),
        dev_root=str(node.tree),
        **{name: str(node.tree / name) for name in ("proc", "sys", "etc", "run")},
    )
    options = DiscoveryOptions(
        nvml=nvml_of(node.state()),
        stat_node=with_groups(named_nodes(roots)),
        machine="x86_64",
    )
    spec = generate(modes.discover(mode, roots, options))
    places = {str(node.driver_root): "$ROOT", attach.DRIVER_ROOT: "$ROOT", str(node.tree): ""}
    return reduce(spec, places, node.installed)


def sentences(edits: dict[str, list[str]]) -> set[str]:
    return {f"{kind} {text}" for kind, texts in edits.items() for text in texts}


def explained(
    texts: set[str], table: tuple[Difference, ...], case: str
) -> tuple[set[str], set[Difference]]:
    """Return what no difference explains, and the differences that explain something."""
    used: set[Difference] = set()
    left = set()
    for text in texts:
        sentence = text.split(" ", 1)[1]
        fitting = {
            entry
            for entry in table
            if case in entry.cases and re.fullmatch(entry.pattern, sentence)
        }
        used |= fitting
        if not fitting:
            left.add(text)
    return left, used


def compared(ours: Reduced, theirs: Reduced) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the edits that only we have and only they have, of each place in a spec."""
    pairs = [(ours["common"], theirs["common"])]
    pairs += [
        (ours["devices"][n]["edits"], theirs["devices"][n]["edits"]) for n in theirs["devices"]
    ]
    for mine, other in pairs:
        yield sentences(mine) - sentences(other), sentences(other) - sentences(mine)


def test_the_devices_have_the_same_names(ours: Reduced, theirs: Reduced) -> None:
    names = [
        {first: device["names"] for first, device in spec["devices"].items()}
        for spec in (ours, theirs)
    ]
    assert names[0] == names[1]


def test_every_edit_is_in_both_or_its_absence_has_a_reason(
    ours: Reduced, theirs: Reduced, case: str
) -> None:
    used: set[Difference] = set()
    for only_ours, only_theirs in compared(ours, theirs):
        left, found = explained(only_ours, ONLY_OURS, case)
        assert left == set(), "only ours, and no reason is given"
        used |= found
        left, found = explained(only_theirs, ONLY_THEIRS, case)
        assert left == set(), "only theirs, and no reason is given"
        used |= found
    expected = {entry for entry in (*ONLY_OURS, *ONLY_THEIRS) if case in entry.cases}
    assert used == expected, "a difference is listed and gone"


def test_only_gpus_are_of_the_kind_of_gpus(ours: Reduced, theirs: Reduced, case: str) -> None:
    # The other program's command line calls all of them nvidia.com/gpu; such files collide.
    assert theirs["kind"] == "nvidia.com/gpu"
    assert ours["kind"] == KINDS.get(CASES[case][1])


def test_by_path_nodes_stand_for_the_links_of_the_other_program(
    ours: Reduced, theirs: Reduced
) -> None:
    for name, device in theirs["devices"].items():
        links = [text.split() for text in device["edits"].get("functions", [])]
        wanted = {tuple(reversed(words[1].split("::"))) for words in links if words[0] == "link"}
        nodes = [text.split() for text in ours["devices"][name]["edits"]["nodes"]]
        have = {
            (words[0], words[-1].replace("/dev/dri/", "../"))
            for words in nodes
            if words[0].startswith("/dev/dri/by-path/")
        }
        assert have == wanted
