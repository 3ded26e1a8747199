# SPDX-License-Identifier: Apache-2.0
"""What the cold kernel has beyond the hot one, and its declarations, messages and inotify."""

from __future__ import annotations

import errno
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest

from nvct.kernel import inotify
from nvct.kernel.calls import KERNEL
from nvct.kernel.declared import ffi
from nvct.kernel.inotify import Event, Inotify
from nvct.kernel.kmsg import FILE, Kmsg, Message, parse
from nvct.kernel.library import lib
from nvct_sim.native import build as native
from tests.support.forked import run_forked
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[3]
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
from nvct.kernel.calls import KERNEL
early = set(sys.modules)
try:
    KERNEL.umount2("/no/such/place")
except FileNotFoundError:
    pass
print(*sorted(early & {"_cffi_backend", "nvct.kernel.library"}))
print(*sorted((set(sys.modules) - early) & {"_cffi_backend", "cffi", "ctypes", "_ctypes"}))
"""


def test_only_a_call_loads_cffi_and_no_part_of_it_that_parses() -> None:
    command = [sys.executable, "-I", "-c", PROBE, str(REPOSITORY)]
    done = captured(command, check=True)
    assert done.stdout == "\n_cffi_backend\n"


def test_a_subreaper_gets_the_orphans_of_its_descendants() -> None:
    def child() -> None:
        reaper = os.getpid()
        KERNEL.set_child_subreaper()
        if not os.fork():
            parent = os.getpid()
            if not os.fork():
                while os.getppid() == parent:
                    time.sleep(0.005)
                os._exit(os.getppid() == reaper)
            os._exit(7)
        ends = {os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in range(2)}
        assert ends == {7, 1}

    assert run_forked(child) == 0


# declared.py is what cffi makes of declarations.h, and that is what the system's headers say.


DECLARATIONS = Path(__file__).parents[3] / "nvct/kernel/declarations.h"
HEADERS = (
    "stddef", "stdio", "sys/ioctl", "linux/bpf", "linux/filter", "linux/inotify", "linux/mount",
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


# kmsg.


XID = (
    b"6,1402,98765432,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.\n"
    b" SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n"
)


def test_a_record_of_the_driver() -> None:
    text = "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
    assert parse(XID) == Message(6, 0, 1402, 98765432, text)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            b"30,7,1,-;systemd[1]: started; done\n",
            Message(6, 3, 7, 1, "systemd[1]: started; done"),
        ),
        (b"4,8,2,c,caller=T1;part\n", Message(4, 0, 8, 2, "part")),
        (b"12,9,3,-;caf\\xc3\\xa9 \\x5cx41\n", Message(4, 1, 9, 3, "caf\u00e9 \\x41")),
        (b"12,9,3,-;\\xff\n", Message(4, 1, 9, 3, "\ufffd")),
        (b"5,10,4,-;\n", Message(5, 0, 10, 4, "")),
    ],
    ids=["facility", "more-fields", "escapes", "no-utf8", "empty"],
)
def test_forms_of_records(record: bytes, message: Message) -> None:
    assert parse(record) == message


@pytest.mark.parametrize("record", [b"", b"text", b"6,1;x", b"a,b,c,-;x"])
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match="no record of /dev/kmsg"):
        parse(record)


def test_a_recorded_stream_is_read_record_by_record() -> None:
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)  # a read returns one write
    with Kmsg(f"/proc/self/fd/{reading}", past=True) as kmsg:
        os.close(reading)
        assert kmsg.read() == []
        os.write(writing, XID)
        os.write(writing, XID.replace(b"1402", b"1405"))
        assert [message.sequence for message in kmsg.read()] == [1402, 1405]
        assert kmsg.read() == []
        os.write(writing, XID)
        os.close(writing)
        assert [message.sequence for message in kmsg.read()] == [1402]


def test_the_kernels_own_log() -> None:
    try:
        kmsg = Kmsg(past=True)
    except OSError as error:
        pytest.skip(f"{FILE} is not readable: {error.strerror}")
    with kmsg, Kmsg() as later:
        numbers = [message.sequence for message in kmsg.read()]
        assert numbers == sorted(set(numbers))
        assert len(numbers) > 1
        assert all(message.sequence >= numbers[-1] for message in later.read())
        assert not os.get_inheritable(kmsg.fileno())


# inotify.


CHANGES = inotify.CREATE | inotify.DELETE | inotify.MOVED_TO | inotify.DELETE_SELF
IGNORED = 0x8000  # IN_IGNORED, inotify(7): the watch has ended


@pytest.fixture
def events() -> Iterator[Inotify]:
    with Inotify() as events:
        yield events


def is_readable(events: Inotify) -> bool:
    return bool(select.select([events], [], [], 0)[0])


def test_the_changes_of_a_folder_are_read_in_their_order(events: Inotify, tmp_path: Path) -> None:
    watch = events.add(str(tmp_path), CHANGES)
    assert events.read() == []
    assert not is_readable(events)

    (tmp_path / "kubelet.sock").touch()
    (tmp_path / "other").write_text("a change of a file is not asked for")
    (tmp_path / "other").rename(tmp_path / "kubelet.sock")
    (tmp_path / "kubelet.sock").unlink()

    assert is_readable(events)
    assert events.read() == [
        Event(watch, inotify.CREATE, "kubelet.sock"),
        Event(watch, inotify.CREATE, "other"),
        Event(watch, inotify.MOVED_TO, "kubelet.sock"),
        Event(watch, inotify.DELETE, "kubelet.sock"),
    ]
    assert not is_readable(events)


def test_each_folder_has_a_number(events: Inotify, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first, second = (events.add(str(folder), CHANGES) for folder in folders)
    (folders[1] / "x").touch()
    (folders[0] / "y").touch()
    assert [(e.watch, e.name) for e in events.read()] == [(second, "x"), (first, "y")]


@pytest.mark.parametrize("name", [b"\xff", "\u20ac".encode(), b"x" * 255, b"x" * 15, b"x" * 16])
def test_names_are_whole(events: Inotify, tmp_path: Path, name: bytes) -> None:
    events.add(str(tmp_path), CHANGES)
    with open(os.fsencode(tmp_path) + b"/" + name, "wb"):
        pass
    assert [os.fsencode(e.name) for e in events.read()] == [name]


def test_a_removed_folder_ends_its_watch(events: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    watch = events.add(str(folder), CHANGES)
    folder.rmdir()
    masks = [inotify.DELETE_SELF, IGNORED]
    assert events.read() == [Event(watch, mask, "") for mask in masks]
    with pytest.raises(OSError, match="Invalid argument"):
        events.remove(watch)


def test_nothing_is_read_of_a_watch_that_was_removed(events: Inotify, tmp_path: Path) -> None:
    watch = events.add(str(tmp_path), CHANGES)
    events.remove(watch)
    (tmp_path / "x").touch()
    assert events.read() == [Event(watch, IGNORED, "")]


def test_lost_events_are_an_event(events: Inotify, tmp_path: Path) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        limit = int(file.read())
    if limit > 1 << 16:
        pytest.skip("this kernel's queue is very long")
    events.add(str(tmp_path), CHANGES)
    name = tmp_path / "x"
    for _ in range(limit // 2 + 1):
        name.touch()
        name.unlink()
    found: list[Event] = []
    while read := events.read():
        found += read
    assert len(found) == limit + 1
    assert found[-1] == Event(-1, inotify.OVERFLOW, "")


def test_only_a_folder_is_watched(events: Inotify, tmp_path: Path) -> None:
    for path, code in ((tmp_path / "file", errno.ENOTDIR), (tmp_path / "gone", errno.ENOENT)):
        if code == errno.ENOTDIR:
            path.touch()
        with pytest.raises(OSError, match=path.name) as caught:
            events.add(str(path), CHANGES)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))


def test_the_queue_does_not_outlive_an_exec(events: Inotify) -> None:
    assert not os.get_inheritable(events.fileno())
