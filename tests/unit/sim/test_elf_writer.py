# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.elf_writer."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.linux import elf
from nvct_sim.elf_writer import MACHINES, shared_object


@pytest.mark.parametrize("machine", MACHINES)
def test_soname_and_needed_are_read_back(machine: str) -> None:
    data = shared_object(machine, soname="libx.so.1", needed=["liba.so.2", "libb.so.3"])

    file = elf.Elf(data)

    assert (file.soname, file.needed) == ("libx.so.1", ["liba.so.2", "libb.so.3"])
    assert (file.machine, file.bits) == (machine, MACHINES[machine].bits)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_soname_is_optional(machine: str) -> None:
    assert elf.Elf(shared_object(machine)).soname is None


def test_a_note_section_is_found_by_name() -> None:
    name, value = b"NVIDIA\0\0", b"\x01\x02\x03\x04"
    note = b"\x07\0\0\0" + b"\x04\0\0\0" + b"\x01\0\0\0" + name + value
    data = shared_object(sections={".note.cuda.fwd_compatibility": note})

    (parsed,) = elf.Elf(data).notes(".note.cuda.fwd_compatibility")

    assert parsed[2] == value


def test_a_padded_library_has_the_requested_size() -> None:
    assert len(shared_object(soname="libx.so.1", size=8192)) == 8192


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="needs x86_64 or aarch64")
def test_the_loader_loads_it_and_finds_its_symbols(tmp_path: Path) -> None:
    path = tmp_path / "libx.so.1"
    symbols = {"first": b"one", "second": b"two", "third": b"three"}
    data = shared_object(
        platform.machine(), soname="libx.so.1", needed=["libc.so.6"], symbols=symbols
    )
    path.write_bytes(data)
    # A separate process, because a damaged library would end this one.
    program = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    at = ctypes.addressof(ctypes.c_char.in_dll(lib, name))\n"
        "    print(ctypes.string_at(at).decode())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(path), *symbols],
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout.split() == ["one", "two", "three"]


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="needs x86_64 or aarch64")
def test_a_missing_symbol_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "libx.so.1"
    path.write_bytes(shared_object(platform.machine(), symbols={"here": b"x"}))

    library = ctypes.CDLL(str(path))

    assert hasattr(library, "here")
    assert not hasattr(library, "there")
