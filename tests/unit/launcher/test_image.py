# SPDX-License-Identifier: Apache-2.0
"""The static executable, made from its seed: forbidden and required contents."""

import ast
import importlib.util
from pathlib import Path
from struct import pack, unpack_from
from types import ModuleType

import pytest

STATIC = Path(__file__).parents[3] / "packaging/static"
READ, READ_WRITE = 4, 6
HEADER = 64
VARIABLES = 0x300
"""File offset of the seed's last segment."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"static_{name}", STATIC / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


image = load("image")
freeze = load("freeze")


def seed(*flags: int) -> bytes:
    """Return a program of segments with these rights; the last one is 8 bytes long in its file."""
    parts = b"".join(
        pack("<IIQQQQQQ", image.PT_LOAD, right, VARIABLES, 0x1000 * n, 0, 8, 24, 0x1000)
        for n, right in enumerate(flags)
    )
    head = pack("<16xHHIQQQIHHHHHH", 2, 62, 1, 0, HEADER, 0x400, 0, 64, 56, len(flags), 64, 5, 4)
    return (head + parts).ljust(VARIABLES, b"c") + b"variable" + b"sections"


def test_the_image_becomes_the_last_segment_with_room_for_the_heap() -> None:
    memory = b"m" * 4096

    image_bytes = image.program(seed(READ, READ_WRITE), memory)

    assert image_bytes[VARIABLES:] == memory
    assert image_bytes[HEADER + 2 * 56 : VARIABLES] == b"c" * (VARIABLES - HEADER - 2 * 56)
    assert unpack_from("<QQ", image_bytes, HEADER + 56 + 32) == (4096, 4096 + image.HEAP)
    assert unpack_from("<QQ", image_bytes, HEADER + 32) == (8, 24)
    assert unpack_from("<Q", image_bytes, 40) == (
        0,
    )  # no sections: they stood behind the variables
    assert unpack_from("<HHH", image_bytes, 58) == (0, 0, 0)


@pytest.mark.parametrize(
    "flags", [(READ,), (READ_WRITE, READ), (READ_WRITE, READ_WRITE)], ids=["none", "first", "two"]
)
def test_a_seed_whose_variables_are_not_its_last_segment_is_refused(flags: tuple[int]) -> None:
    with pytest.raises(SystemExit, match="not the last segment"):
        image.program(seed(*flags), b"m" * 4096)


@pytest.mark.parametrize("size", [0, 24])
def test_a_seed_that_did_not_start_the_interpreter_is_refused(size: int) -> None:
    with pytest.raises(SystemExit, match="did not get as far"):
        image.program(seed(READ, READ_WRITE), b"m" * size)


def test_random_parts_of_two_runs_are_zero() -> None:
    one, other = bytearray(b"x" * 80), bytearray(b"x" * 80)
    one[8:16], other[8:16] = b"address1", b"address2"
    other[75] = 0

    assert image.common(bytes(one), bytes(other)) == (b"x" * 8 + bytes(8) + b"x" * 56 + bytes(8))


@pytest.mark.parametrize(
    "other", [b"y" * 8 * (image.MOST + 1), b"x" * 8], ids=["many words", "another size"]
)
def test_two_runs_that_differ_in_more_are_refused(other: bytes) -> None:
    with pytest.raises(SystemExit, match="two runs of the seed differ"):
        image.common(b"x" * 8 * (image.MOST + 1), other)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("NOW = time.time()", "time.time"),
        ("if posix.getuid() == 0: ROOT = True", "posix.getuid"),
        ("class A:\n    here = posix.getcwd()", "posix.getcwd"),
        ("HOME = posix.environ", "posix.environ"),
        ("def f(a=sys.argv): pass", "sys.argv"),
        ("FLAGS = posix.O_RDONLY | posix.O_CLOEXEC", ""),
        ("def f():\n    return posix.getuid()", ""),
        ("F = lambda: time.time()", ""),
    ],
)
def test_a_module_that_asks_the_host_when_it_is_imported_is_named(
    text: str, question: str
) -> None:
    assert freeze.early(ast.parse(text)) == question


def test_both_know_the_size_of_the_heap() -> None:
    assert f"#define HEAP ({image.HEAP >> 20} << 20)" in (STATIC / "malloc.h").read_text()
