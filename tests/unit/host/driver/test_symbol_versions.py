# SPDX-License-Identifier: Apache-2.0
"""Symbol versions of ELF files: of the C library, and of damaged files."""

import random
from pathlib import Path

import pytest

from nvct.errors import ElfError
from nvct.host.driver.symbol_versions import VersionedElf
from nvct_sim.elf_writer import shared_object

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64",
)  # fmt: skip
GLIBC = next((Path(one) for one in FOLDERS if Path(one, "libm.so.6").exists()), None)


@pytest.mark.skipif(GLIBC is None, reason="no glibc at a known place")
def test_the_versions_of_the_c_library() -> None:
    assert GLIBC is not None
    c, m = (VersionedElf((GLIBC / name).read_bytes()) for name in ("libc.so.6", "libm.so.6"))

    assert set(m.needs["libc.so.6"]) <= c.defines
    assert not set(m.needs["libc.so.6"]) <= m.defines
    assert all(name.startswith("GLIBC_") for name in c.defines)


def test_a_file_without_versions_has_none() -> None:
    elf = VersionedElf(shared_object(soname="libx.so.1", needed=["libc.so.6"]))

    assert (elf.needs, elf.defines, elf.needed) == ({}, set(), ["libc.so.6"])


@pytest.mark.skipif(GLIBC is None, reason="no glibc at a known place")
def test_a_damaged_file_raises_one_error() -> None:
    assert GLIBC is not None
    data = (GLIBC / "libm.so.6").read_bytes()
    chance = random.Random(7)
    at = data.find(b"GLIBC_")
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(20):
            start = chance.choice((0, max(at - 4096, 0), at, len(data) - 8192))
            damaged[min(start + chance.randrange(8192), len(data) - 1)] = chance.randrange(256)
        try:
            VersionedElf(bytes(damaged[: chance.randrange(64, len(data))]))
        except ElfError:
            pass
