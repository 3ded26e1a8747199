# SPDX-License-Identifier: Apache-2.0
"""Hook apply in roots that try to stop it, to fill the memory, or to get at other files."""

import os
import resource
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.container.rootfs.libraries import NAME_LIMIT
from nvct.linux import elf, ldcache
from nvct.linux.constants import MS_BIND
from nvct.linux.kernel import KERNEL
from nvct_sim.elf_writer import shared_object
from tests.support import cpu
from tests.support.containers import Container
from tests.support.forked import in_mount_namespace, run_forked

CPU_S = 8
MEMORY = 400 << 20
ROUNDS = 500
SLOW = "/d/.." * 800 + "/x"
FOLDER = "/usr/driver"


@pytest.fixture
def container(tmp_path: Path) -> Container:
    new_container = Container(tmp_path)
    new_container.file("/lib64/ld-linux-x86-64.so.2")
    new_container.file("/d/x")
    new_container.library(f"{FOLDER}/libcuda.so.1", "libcuda.so.1")
    return new_container


def cache(
    count: int, strings: bytes, name: Callable[[int], int], path: Callable[[int], int]
) -> bytes:
    """Return an ld.so.cache with records that point to arbitrary offsets of its strings."""
    base = ldcache.HEADER + count * ldcache.ENTRY
    records = b"".join(
        struct.pack("<iIIIQ", ldcache.FLAGS["x86_64"], base + name(i), base + path(i), 0, 0)
        for i in range(count)
    )
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, count, len(strings), 2, 0)
    return head + records + strings


def bounded(container: Container, *more: str) -> None:
    """Run the hook with little memory; it must end soon, whatever it says."""

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with cpu.at_most(CPU_S):
            assert container.hook("apply", "--folder", FOLDER, *more) in (0, 1)

    assert run_forked(child) == 0


def test_a_cache_with_many_slow_paths_of_libc_does_not_stop_the_hook(container: Container) -> None:
    strings = b"libc.so.6\0" + SLOW.encode() + b"\0"
    data = cache(60_000, strings, lambda _: 0, lambda i: 10 + 5 * (i % 700))
    container.file("/etc/ld.so.cache", data)
    bounded(container)


@pytest.mark.parametrize("count", [60_000, 600_000])
def test_a_cache_whose_strings_overlap_does_not_fill_the_memory(
    container: Container, count: int
) -> None:
    strings = b"z" * 4000 + b"\0/" + b"a" * 4000 + b"/x\0"
    data = cache(count, strings, lambda i: i % 3000, lambda i: 4001 + i % 3000)
    container.file("/etc/ld.so.cache", data)
    bounded(container)


def test_many_slow_links_to_libraries_do_not_stop_the_hook(container: Container) -> None:
    container.link("/slow0", "/d/x")
    for number in range(1, 36):
        container.link(f"/slow{number}", "d/.." + "/d/.." * 750 + f"/slow{number - 1}")
    for number in range(5000):
        container.link(f"{FOLDER}/libcuda.so.{number + 2}", "/slow35")
    bounded(container)


def test_libraries_with_thousands_of_dependencies_cost_no_seconds(container: Container) -> None:
    library = bytearray(
        shared_object("x86_64", soname="libcuda.so.2", needed=["libneed.so"] * 1000)
    )
    library += b"n" * 8192
    first = container.file(f"{FOLDER}/libcuda.so.x0", bytes(library))
    for number in range(1, 4000):
        os.link(first, first.with_name(f"libcuda.so.x{number}"))
    bounded(container)
    assert elf.Elf(bytes(library)).needed == ["libneed.so"] * 1000


def test_a_drop_in_with_thousands_of_folders_does_not_stop_the_hook(container: Container) -> None:
    lines = ["# CUDA forward compatibility"] + [f"/d/..{'/d/..' * (i % 500)}/d" for i in range(60)]
    container.file("/etc/ld.so.conf.d/00-nvct.conf", "\n".join(lines * 3))
    with cpu.at_most(CPU_S):
        assert container.hook("update-ldcache", "--folder", FOLDER) == 0


def test_too_many_names_in_a_drivers_folder_are_an_error_message(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    def child() -> None:
        folder = container.root / FOLDER[1:]
        KERNEL.mount("none", str(folder), "tmpfs")
        fd = os.open(folder, os.O_RDONLY)
        for number in range(NAME_LIMIT + 1):
            os.symlink("x", f"lib\n{number}.so.1", dir_fd=fd)
        with cpu.at_most(CPU_S):
            assert container.hook("apply", "--folder", FOLDER) == 1

    in_mount_namespace(child)
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["mountinfo", "maps", "environ"])
@pytest.mark.parametrize(
    ("loader", "path"),
    [
        ("/lib/ld-musl-{machine}.so.1", "/etc/ld-musl-{machine}.path"),
        ("/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.conf.d/00-nvct.conf"),
        ("/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache"),
    ],
)
def test_nothing_of_the_hooks_own_process_gets_into_the_image(
    container: Container, loader: str, path: str, name: str
) -> None:
    machine = os.uname().machine
    container.file(loader.format(machine=machine))
    path = path.format(machine=machine)
    container.link(path, f"/proc/self/{name}")

    def child() -> None:
        (container.root / "proc").mkdir()
        KERNEL.mount("proc", str(container.root / "proc"), "proc")
        assert container.hook("apply", "--folder", FOLDER) == 0
        KERNEL.umount2(str(container.root / "proc"), 0)
        target = container.root / path[1:]
        if target.exists() and not target.is_symlink():
            text = target.read_bytes()
            for secret in (b"rw,", b"r-xp", b"PATH="):
                assert secret not in text

    in_mount_namespace(child)


@pytest.mark.parametrize("folder", ["etc", "etc/ld.so.conf.d", "opt/links", "opt"])
def test_a_link_of_the_image_does_not_lead_writes_into_a_volume(
    container: Container, tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (container.root / "vol").mkdir()
    target = container.root / folder
    if target.exists():
        target.rename(container.root / "away")
    container.link(folder, "/vol")

    def child() -> None:
        KERNEL.mount(str(volume), str(container.root / "vol"), None, MS_BIND)
        link = "libx.so.1::/opt/links/sub/libx.so"
        assert container.hook("apply", "--link", link, "--folder", FOLDER) == 1

    in_mount_namespace(child)
    assert os.listdir(volume) == []
    assert not capfd.readouterr().err.count("\n") > 1


def test_a_volume_mounted_over_a_folder_itself_is_written_to(
    container: Container, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    (volume / "real").mkdir(parents=True)
    (volume / "ld.so.conf.d").symlink_to("real")
    (container.root / "etc").mkdir()

    def child() -> None:
        KERNEL.mount(str(volume), str(container.root / "etc"), None, MS_BIND)
        assert container.hook("apply", "--folder", FOLDER) == 0

    in_mount_namespace(child)
    assert sorted(os.listdir(volume)) == ["ld.so.cache", "ld.so.conf", "ld.so.conf.d", "real"]
    assert os.listdir(volume / "real") == ["00-nvct.conf"]


def test_a_link_does_not_lead_chmod_into_a_volume(container: Container, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "secret").write_text("x")
    (volume / "secret").chmod(0o600)
    (container.root / "vol").mkdir()
    container.link("/dev/dri", "/vol/secret")

    def child() -> None:
        KERNEL.mount(str(volume), str(container.root / "vol"), None, MS_BIND)
        assert container.hook("chmod", "--mode", "755", "--path", "/dev/dri") == 1

    in_mount_namespace(child)
    assert (volume / "secret").stat().st_mode & 0o777 == 0o600


def _swap_for_ever(root: Path, outside: Path, names: tuple[str, ...]) -> None:
    """Exchange folders for links that lead outside, and back, as fast as it goes."""
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    while True:
        for name in names:
            target, aside = root / name, root / f"{name}.aside"
            target.rename(aside)
            target.symlink_to(outside)
            target.unlink()
            aside.rename(target)


def test_folders_swapped_while_the_hook_runs_do_not_lead_out(
    container: Container, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ld.so.cache").write_text("the host's")
    (outside / "libcuda.so.1").write_text("the host's")
    names = ("etc", "etc/ld.so.conf.d", FOLDER[1:], "usr/links", "usr")
    pid = os.fork()
    if pid == 0:
        try:
            _swap_for_ever(container.root, outside, names)
        finally:
            os._exit(1)
    try:
        for number in range(ROUNDS):
            link = f"libcuda.so.1::/usr/links/{number}/libcuda.so"
            assert container.hook("apply", "--link", link, "--folder", FOLDER) in (0, 1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert sorted(os.listdir(outside)) == ["ld.so.cache", "libcuda.so.1"]
    assert (outside / "ld.so.cache").read_text() == "the host's"
    assert "defect" not in capfd.readouterr().err
