# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvct_sim.native import build as native
from tests.support.nvml_node import CACHE, NvmlNode, make_node

FIELDS = (
    "", "=", "id=4294967295", "gpu=99999999999999999999", "slices=0", "slices=4294967295",
    "size=0", "size=4294967295", "start=4294967290", "placements=0:0,1:0", "placements=1:4294967295",
    "placements=8:1", "max=4294967295", "minor=4294967295", "memory=18446744073709551615",
    "bus=::::", "name=" + "A" * 500, "uuid=" + "x" * 300, "profile=7", "sm=0",
)  # fmt: skip
COMMANDS = (
    ("-L",), (), ("mig", "-lgip"), ("mig", "-lgi"), ("mig", "-lci"), ("mig", "-cgi", "19,9", "-C"),
    ("mig", "-dci"), ("mig", "-dgi"), ("--version",),
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[NvmlNode, tuple[str, ...]]:
    """One node for all examples: each writes the whole state."""
    built = native.build(CACHE, strict=True)
    node = make_node(tmp_path_factory.mktemp("nvml") / "node", built)
    node.add_mig_devices(1, 3)
    return node, tuple(node.lines())


@given(
    damage=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(FIELDS))),
    command=st.sampled_from(COMMANDS),
)
@settings(max_examples=40, deadline=None)
def test_no_damaged_state_crashes_nvidia_smi(
    prepared: tuple[NvmlNode, tuple[str, ...]],
    damage: list[tuple[int, int, str]],
    command: tuple[str, ...],
) -> None:
    node, healthy = prepared
    lines = list(healthy)
    for number, position, text in damage:
        fields = lines[number % len(lines)].split("\t")
        fields[position % len(fields)] = text
        lines[number % len(lines)] = "\t".join(fields)
    node.write_text("\n".join(["nvct-sim\t1\t5", *lines, "end\t5\n"]).encode())

    result = node.smi(*command)

    assert result.returncode >= 0, result
    assert result.stderr == ""
