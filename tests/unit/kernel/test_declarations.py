# SPDX-License-Identifier: Apache-2.0
"""declared.py is what cffi makes of declarations.h, and that is what the system's headers say."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import pytest

from nvct.kernel.declared import ffi
from nvct.kernel.library import lib
from nvct_sim.native import build as native
from tests.support.processes import captured

DECLARATIONS = Path(__file__).parents[3] / "nvct/kernel/declarations.h"
HEADERS = (
    "stddef", "stdio", "sys/ioctl", "linux/bpf", "linux/capability", "linux/filter", "linux/inotify", "linux/mount",
    "linux/openat2", "linux/prctl", "linux/seccomp",
)  # fmt: skip
DEFINED = re.findall(r"^#define (\w+)", DECLARATIONS.read_text(), re.MULTILINE)
STRUCTS = re.findall(r"^((?:struct|union) \w+) {", DECLARATIONS.read_text(), re.MULTILINE)


def test_the_generated_module_is_that_of_the_declarations(
    golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    declared = cffi.FFI()
    declared.cdef(DECLARATIONS.read_text())
    declared.set_source("nvct.kernel.declared", None)
    declared.emit_python_code(str(tmp_path / "declared.py"))

    golden("../../nvct/kernel/declared.py", (tmp_path / "declared.py").read_text())


def fields(type_: Any, prefix: str = "") -> list[tuple[str, int, int]]:
    """Return (name, offset, size) of the fields of a struct and of the structs in it."""
    found = []
    for name, field in type_.fields:
        if field.type.kind in ("struct", "union"):
            inner = fields(field.type, f"{prefix}{name}.")
            found += [(n, field.offset + offset, size) for n, offset, size in inner]
        elif field.type.kind != "array" or field.type.length:
            found.append((prefix + name, field.offset, ffi.sizeof(field.type)))
    return found


def test_numbers_and_layouts_are_those_of_the_systems_headers(tmp_path: Path) -> None:
    compiler = native.find_compiler()
    expected = [f"{name} {getattr(lib, name)}" for name in DEFINED]
    lines = [f'printf("{name} %lld\\n", (long long){name});' for name in DEFINED]
    for struct in STRUCTS:
        for name, offset, size in fields(ffi.typeof(struct)):
            expected.append(f"{struct}.{name} {offset} {size}")
            lines.append(
                f'printf("{struct}.{name} %zu %zu\\n", offsetof({struct}, {name}),'
                f" sizeof(({struct} *)0)->{name});"
            )
        if struct != "union bpf_attr":  # it has the members of other commands too
            expected.append(f"{struct} {ffi.sizeof(struct)}")
            lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
    includes = [f"#include <{name}.h>" for name in HEADERS]
    source = "\n".join([*includes, "int main(void) {", *lines, "return 0; }"])
    program = tmp_path / "layout"
    command = [compiler, "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)

    found = captured([program], check=True).stdout
    assert found.splitlines() == expected


def test_the_types_of_arguments_are_checked() -> None:
    with pytest.raises(TypeError):
        lib.umount2("/a/str/is/no/path", 0)
    with pytest.raises(OverflowError):
        lib.setns(1 << 40, 0)
    with pytest.raises(TypeError):
        lib.unshare()
