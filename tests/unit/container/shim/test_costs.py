# SPDX-License-Identifier: Apache-2.0
"""Limits of the CPU time that an image or a pod can make a create use."""

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.container.deliver import layout_classic
from nvct.errors import BundleError
from nvct.linux import ldcache
from nvct.oci.bundle import STEP_BUDGET, Bundle
from nvct_sim.elf_writer import shared_object
from tests.support.cuda_note import NOTE_SECTION, note
from tests.unit.container.deliver import test_layout_farm
from tests.unit.container.shim import images
from tests.unit.container.shim.images import CACHE, MACHINE

Image = images.Image | test_layout_farm.Image
CPU_S = 1.5
"""More than any of these takes now, and less than each of them took without a limit."""
LINKS, DEEP, LONG = 12, 30, 250


def _deep_links(image: Image) -> None:
    """Make mounts below a chain of links; each link leads through deep folders."""
    folder = "/d" * DEEP
    (image.root / folder[1:]).mkdir(parents=True)
    for number in range(LINKS):
        image.link(f"{folder}/l{number}", f"{folder}/l{number + 1}")
    (image.root / folder[1:] / f"l{LINKS}").mkdir()
    for number in range(20):
        image.mount(f"{folder}/l0/m{number}" + "/x" * LONG)


def _thousands_of_mounts(image: Image) -> None:
    _deep_links(image)
    folder = "/d" * DEEP
    for number in range(5000):
        image.mount(f"{folder}/l0/y{number}")


def _many_compat_libraries(image: Image) -> None:
    """Bring CUDA compatibility libraries, and as many files beside them as are read."""
    folder = image.root / "usr/local/cuda/compat"
    sections = {NOTE_SECTION: note("99.9", [580])}
    sections |= {f".note.{number}": b"" for number in range(3000)}
    data = shared_object(MACHINE, soname="libcuda.so.1", sections=sections)
    first = image.file("/usr/local/cuda/compat/libcuda.so.999.1", data)
    for number in range(900):
        os.link(first, folder / f"libother{number}.so")


def _deep_compat(image: Image) -> None:
    """Name a thousand libcuda in a folder 240 deep."""
    folder = "/usr" + "/c" * 240
    for number in range(1000):
        image.file(f"{folder}/libcuda.so.999.{number}")
    image.link("/usr/local/cuda/compat", folder)


def _cache(name: bytes, path: Callable[[int], int], text: bytes, count: int = 65_000) -> bytes:
    base = ldcache.HEADER + count * ldcache.ENTRY
    flags = ldcache.FLAGS[MACHINE]
    records = b"".join(
        struct.pack("<iIIIQ", flags, base, base + len(name) + 1 + path(i), 0, 0)
        for i in range(count)
    )
    strings = name + b"\0" + text + b"\0"
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, count, len(strings), 2, 0)
    return head + records + strings


def _cache_of_libc(image: Image) -> None:
    """Name 65,000 long paths, in bytes that are no UTF-8, for the C library."""
    image.file(CACHE, _cache(b"libc.so.6", lambda i: i % 99, b"/" + b"\xff" * 4000))


def _cache_of_libcuda(image: Image) -> None:
    image.file(CACHE, _cache(b"libcuda.so.1", lambda i: i % 99, b"/" + b"\xff" * 4000))


def _long_drop_in(image: Image) -> None:
    lines = [f"/{'x' * 200}{number}" for number in range(300)]
    image.file(images.DROP_IN, "\n".join(["# driver", *lines]))
    image.file(CACHE, _cache(b"libx.so", lambda i: i % 99, b"/" + b"\xff" * 4000))


def _long_names(image: Image) -> None:
    """Bring a cache of 65,000 long names, which overlap, and libraries to be sorted among them."""
    blocks, each, size = 65, 1000, 4090
    base = ldcache.HEADER + blocks * each * ldcache.ENTRY
    strings = b"".join(bytes([ord("x") - block]) * size + b"\0" for block in range(blocks))
    records = b"".join(
        struct.pack("<iIIIQ", ldcache.FLAGS[MACHINE], at, base, 0, 0)
        for block in range(blocks)
        for at in range(base + block * (size + 1), base + block * (size + 1) + each)
    )
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, blocks * each, len(strings), 2, 0)
    image.file(CACHE, head + records + strings)
    _newer_compat(image)
    for number in range(1000):
        soname = chr(ord("8") + number % blocks) * (size - 10 - number // blocks * 60)
        path = f"/usr/local/cuda/compat/lib{number}.so"
        image.file(path, shared_object(MACHINE, soname=soname))


def _newer_compat(image: Image) -> None:
    data = shared_object(
        MACHINE, soname="libcuda.so.1", sections={NOTE_SECTION: note("99.9", [580])}
    )
    image.file("/usr/local/cuda/compat/libcuda.so.999.1", data)


def _one_name_in_many_spellings(image: Image) -> None:
    """Add 60,000 names that compare equal to one of the driver's libraries."""
    name = b"libcuda.so." + b"0" * 180 + b"1\0"
    base = ldcache.HEADER + 60_000 * ldcache.ENTRY
    records = b"".join(
        struct.pack("<iIIIQ", ldcache.FLAGS[MACHINE], base + number * len(name), base, 0, 0)
        for number in range(60_000)
    )
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, 60_000, len(name) * 60_000, 2, 0)
    image.file(CACHE, head + records + name * 60_000)


def _long_link_texts(image: Image) -> None:
    """Make each compat library a chain of links with long texts of dots."""
    _newer_compat(image)
    for number in range(36):
        image.link(f"/q{number}", "./" * 2040 + f"q{number + 1}")
    image.file("/q36/libz.so", shared_object(MACHINE, soname="libz.so"))
    for number in range(1000):
        image.link(f"/usr/local/cuda/compat/lib{number}.so", "/q0/libz.so")


def _many_variables(image: Image) -> None:
    image.config["process"]["env"] += [f"V{number}=x" for number in range(50_000)]


HOSTILE: tuple[Callable[[Image], None], ...] = (
    _deep_links, _thousands_of_mounts, _many_compat_libraries, _deep_compat, _cache_of_libc,
    _cache_of_libcuda, _long_drop_in, _many_variables, _long_names, _one_name_in_many_spellings,
    _long_link_texts,
)  # fmt: skip


@pytest.mark.parametrize("shape", HOSTILE)
@pytest.mark.parametrize("layout", [images.Image, test_layout_farm.Image])
def test_no_image_costs_seconds(
    tmp_path: Path, layout: type[Image], shape: Callable[[Image], None]
) -> None:
    image = layout(tmp_path)
    shape(image.glibc())
    before = time.process_time()

    image.create()

    assert time.process_time() - before < CPU_S


def test_a_path_is_walked_once(tmp_path: Path) -> None:
    image = images.Image(tmp_path)
    _deep_links(image.glibc())
    bundle = Bundle(str(image.bundle / "config.json"), json.dumps(image.config))
    notes: list[str] = []

    edits = image.edits()
    layout = layout_classic.decide(bundle, str(image.bundle), edits, notes.append)
    images.written(layout, edits, notes)

    assert notes == ["without a hook"]
    assert STEP_BUDGET - bundle.steps_left < 20 * (LINKS + 1) * (DEEP + 2) + 1000


def test_beyond_the_budget_the_hook_does_the_work(tmp_path: Path) -> None:
    image = images.Image(tmp_path)
    _thousands_of_mounts(image.glibc())
    before = image.tree()

    document, notes = image.create()

    assert notes == ["with a hook: the paths in the container take too many steps to follow"]
    assert document["hooks"]
    assert image.tree() == before


def test_beyond_the_budget_there_is_no_view(tmp_path: Path) -> None:
    image = test_layout_farm.Image(tmp_path)
    _thousands_of_mounts(image.glibc())
    before = image.tree()

    created = image.create()

    assert created.reason == "the paths in the container take too many steps to follow"
    assert image.tree() == before


def test_a_budget_ends_before_anything_is_written_or_not_at_all(tmp_path: Path) -> None:
    """Whatever is left for it, the root is as before or as with all of the budget."""
    complete = images.Image(tmp_path / "complete")
    complete.glibc().create()

    steps_left, outcomes = 0, set()
    while "without a hook" not in outcomes:
        image = images.Image(tmp_path / str(steps_left))
        before = image.glibc().tree()
        bundle = Bundle(str(image.bundle / "config.json"), json.dumps(image.config))
        bundle.steps_left = steps_left
        notes: list[str] = []
        edits = image.edits()
        layout = layout_classic.decide(bundle, str(image.bundle), edits, notes.append)
        images.written(layout, edits, notes)
        outcomes.update(notes)
        assert image.tree() == (complete.tree() if notes == ["without a hook"] else before)
        steps_left += 25

    assert len(outcomes) == 2


def test_a_duplicate_among_many_annotations_is_found_quickly() -> None:
    names = ",".join([f'"k{number}":""' for number in range(20_000)])
    before = time.process_time()

    with pytest.raises(BundleError, match="duplicate key k19999"):
        Bundle("config.json", f'{{"annotations":{{{names},"k19999":""}}}}')

    assert time.process_time() - before < CPU_S
