# SPDX-License-Identifier: Apache-2.0
"""Parsers of the kernel's files accept any content; paths stay in their roots."""

from hypothesis import given
from hypothesis import strategies as st

from nvct.cdi.make import naming
from nvct.cdi.make.edits import tidy
from nvct.errors import NvctError
from nvct.host import procfs
from nvct.host.gpu.nodes import parse_minors
from nvct.host.model import DeviceNode, Gpu, Inventory
from nvct.host.roots import Roots, below, join

parts = st.lists(st.sampled_from(["a", "b", "..", ".", "", "run"]), max_size=6)
paths = parts.map(lambda p: "/" + "/".join(p))


@given(paths, paths)
def test_container_path_of_a_host_path_is_the_path_again(root: str, path: str) -> None:
    roots = Roots(driver_root=root)

    inside = join("/", path)
    assert roots.container_path(roots.host_path(inside)) == inside


@given(paths, paths)
def test_path_is_cut_at_whole_components_only(root: str, path: str) -> None:
    root = Roots(driver_root=root).driver_root

    cut = below(root, path)

    assert cut == join("/", path) or join(root, cut) == join("/", path)


@given(st.text())
def test_any_text_is_a_bus_id_in_one_form_or_none(text: str) -> None:
    bus_id = procfs.canonical_bus_id(text)

    assert bus_id == procfs.canonical_bus_id(bus_id)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_bus_id_keeps_its_numbers(domain: int, bus: int, device: int, function: int) -> None:
    bus_id = procfs.canonical_bus_id(f"{domain:08X}:{bus:02X}:{device:02X}.{function}")

    assert procfs.bus_key(bus_id) == (domain, bus, device, function)


@given(st.dictionaries(st.tuples(st.integers(0, 15), st.integers(0, 14)), st.integers(3, 900)))
def test_mig_minors_are_read_back_from_the_kernels_form(table: dict[tuple[int, int], int]) -> None:
    minors = {f"gpu{gpu}/gi{gi}/access": minor for (gpu, gi), minor in table.items()}

    assert parse_minors("".join(f"{k} {v}\n" for k, v in minors.items())) == minors


@given(st.text())
def test_any_mig_table_is_read(text: str) -> None:
    for name in parse_minors(text):
        assert name in text


def machine(count: int) -> Inventory:
    node = DeviceNode(
        path="/dev/x", host_path="/dev/x", major=1, minor=1, mode=0, uid=0, gid=0, reason="test"
    )
    gpus = tuple(
        Gpu(index=n, minor=n, uuid=f"GPU-{n:04x}", bus_id="", model="X", node=node)
        for n in range(count)
    )
    return Inventory(driver_version="1", gpus=gpus)


words = st.one_of(
    st.integers(-1, 9).map(str),
    st.integers(0, 9).map(lambda n: f"GPU-{n:04x}"),
    st.text(max_size=4),
)


@given(st.integers(0, 8), st.lists(words, max_size=4))
def test_a_selection_has_exactly_the_listed_devices(count: int, ids: list[str]) -> None:
    inventory = machine(count)
    try:
        chosen = naming.select(inventory, ids)
    except NvctError:
        return

    if "all" not in ids:
        named = {name for pair in chosen for name in naming.names(*pair, ("index", "uuid"))}
        assert set(ids) <= named
        assert all({str(gpu.index), gpu.uuid} & set(ids) for gpu, _ in chosen)


nodes = st.lists(
    st.sampled_from(["/dev/a", "/dev/b", "/dev/c/d", "/dev"]).map(lambda p: {"path": p})
)


@given(nodes, nodes)
def test_tidying_twice_is_tidying_once(device: list[object], common: list[object]) -> None:
    edits = {"deviceNodes": common}
    once = tidy({"deviceNodes": device}, edits)

    assert tidy(once, edits) == once
    assert all(entry in device for entry in once.get("deviceNodes", []))
