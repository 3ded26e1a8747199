# SPDX-License-Identifier: Apache-2.0
"""Broken hosts: each has one clear error or warning, and what else is there still works.

The texts are golden: what a user reads is part of the behavior.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nvct.cdi.make.generate import generate
from nvct.errors import LINE_LIMIT, NvctError, NvmlError, line
from nvct.host import modes
from nvct.host.nvml.model import Nvml
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import BUSES, LIB, VERSION, FakeNvml, HostTree, elf_bytes, nvml_gpu

LOADED = f"driver/{LIB}/libcuda.so.{VERSION}"


class Broken(NamedTuple):
    """A host with something wrong."""

    host: HostTree
    nvml: Nvml | None = None


def healthy(base: Path, *, gpus: int = 1) -> HostTree:
    host = HostTree(base).module().user_space()
    for index in range(gpus):
        host.gpu(index)
    return host


def bind(host: HostTree, driver: str, index: int = 0) -> HostTree:
    """Give a GPU to another kernel driver."""
    bus = f"0000:{BUSES[index]}:00.0"
    host.write(f"sys/bus/pci/devices/{bus}/vendor", "0x10de\n")
    host.write(f"sys/bus/pci/devices/{bus}/class", "0x030200\n")
    return host.link(f"sys/bus/pci/drivers/{driver}/{bus}", f"../../devices/{bus}")


def no_driver(base: Path) -> Broken:
    (base / "driver/usr").mkdir(parents=True)
    return Broken(HostTree(base))


def no_driver_root(base: Path) -> Broken:
    return Broken(HostTree(base))


def nouveau(base: Path) -> Broken:
    (base / "driver/usr").mkdir(parents=True)
    return Broken(bind(HostTree(base), "nouveau"))


def nouveau_has_one_gpu_of_two(base: Path) -> Broken:
    return Broken(bind(healthy(base), "nouveau", 1))


def module_only(base: Path) -> Broken:
    (base / "driver/usr").mkdir(parents=True)
    return Broken(HostTree(base).module().gpu(0))


def libraries_only(base: Path) -> Broken:
    return Broken(HostTree(base).user_space())


def libraries_of_two_drivers(base: Path) -> Broken:
    return Broken(HostTree(base).user_space().library("libcuda", suffix="570.10.01"))


def libraries_of_another_driver(base: Path) -> Broken:
    host = healthy(base)
    host.version = "570.10.01"
    return Broken(host.module())


def nvml_of_another_driver(base: Path) -> Broken:
    host = healthy(base).instance(0, 7, 0, (66, 67))
    text = f"nvmlInit of {host.driver}/{LIB}/libnvidia-ml.so.{VERSION} failed: driver/library"
    return Broken(host, FakeNvml(error=NvmlError(f"{text} version mismatch")))


def nvml_without_permission(base: Path) -> Broken:
    host = healthy(base).instance(0, 7, 0, (66, 67))
    return Broken(host, FakeNvml(error=NvmlError("nvmlInit failed: insufficient permissions")))


def no_gpu(base: Path) -> Broken:
    return Broken(healthy(base, gpus=0))


def lost_gpu(base: Path) -> Broken:
    host = healthy(base, gpus=2).instance(1, 7, 0, (66, 67))
    refused = ("NVML refuses GPU 0: gpu is lost",)
    return Broken(host, FakeNvml(gpus=(nvml_gpu(1, instances=((7, 0),)),), warnings=refused))


def gpu_without_a_minor(base: Path) -> Broken:
    host = healthy(base, gpus=2)
    place = f"proc/driver/nvidia/gpus/0000:{BUSES[1]}:00.0/information"
    text = (base / place).read_text().replace("Device Minor: \t 1\n", "")
    host.write(place, text)
    return Broken(host, FakeNvml(error=NvmlError("nvmlInit failed: gpu is lost")))


def gpu_node_missing(base: Path) -> Broken:
    host = healthy(base, gpus=2)
    (base / "dev/nvidia1").unlink()
    return Broken(host)


def every_gpu_node_missing(base: Path) -> Broken:
    host = healthy(base, gpus=2)
    for index in range(2):
        (base / f"dev/nvidia{index}").unlink()
    return Broken(host)


def uvm_node_missing(base: Path) -> Broken:
    host = healthy(base)
    (base / "dev/nvidia-uvm").unlink()
    return Broken(host)


def nvidiactl_missing(base: Path) -> Broken:
    host = healthy(base)
    (base / "dev/nvidiactl").unlink()
    return Broken(host)


def mig_node_missing(base: Path) -> Broken:
    host = healthy(base, gpus=2).instance(0, 7, 0, (66, 67))
    (base / "dev/nvidia-caps/nvidia-cap67").unlink()
    return Broken(host, FakeNvml(gpus=(nvml_gpu(0, instances=((7, 0),)), nvml_gpu(1))))


def mig_minors_missing(base: Path) -> Broken:
    host = healthy(base, gpus=2).instance(0, 7, 0, (66, 67))
    (base / "proc/driver/nvidia-caps/mig-minors").unlink()
    (base / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access").unlink()
    return Broken(host, FakeNvml(gpus=(nvml_gpu(0, instances=((7, 0),)), nvml_gpu(1))))


def cache_damaged(base: Path) -> Broken:
    host = healthy(base)
    host.write("driver/etc/ld.so.cache", b"glibc-ld.so.cache1.1" + b"\xff" * 40)
    return Broken(host)


def cache_unreadable(base: Path) -> Broken:
    host = healthy(base)
    (host.driver / "etc/ld.so.cache").mkdir(parents=True)
    return Broken(host)


def cache_is_a_loop_of_links(base: Path) -> Broken:
    return Broken(healthy(base).link("driver/etc/ld.so.cache", "ld.so.cache"))


def libcuda_is_a_loop_of_links(base: Path) -> Broken:
    host = healthy(base)
    (base / LOADED).unlink()
    return Broken(host.link(LOADED, f"libcuda.so.{VERSION}"))


def library_folder_is_a_loop_of_links(base: Path) -> Broken:
    host = HostTree(base).module().gpu(0)
    return Broken(host.link(f"driver/{LIB}", "x86_64-linux-gnu"))


def link_leaves_the_driver_root(base: Path) -> Broken:
    host = healthy(base)
    (base / LOADED).unlink()
    outside = host.write(f"outside/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1"))
    return Broken(host.link(LOADED, str(outside)))


def hostile_names(base: Path) -> Broken:
    host = healthy(base)
    folder = os.fsencode(host.driver / LIB)
    for name in (b"libnvidia-\n\x1b[31m", b"libnvidia-\xff\xfe", b"libnvidia-x::"):
        with open(folder + b"/" + name + f".so.{VERSION}".encode(), "wb") as file:
            file.write(elf_bytes("libnvidia-evil.so.1"))
    longest = "libnvidia-" + "x" * (255 - len(f"libnvidia-.so.{VERSION}"))
    return Broken(host.library(longest))


def library_is_a_fifo(base: Path) -> Broken:
    host = healthy(base)
    (base / LOADED).unlink()
    os.mkfifo(base / LOADED)
    return Broken(host)


def library_is_no_elf_file(base: Path) -> Broken:
    host = healthy(base)
    host.write(LOADED, "a truncated download")
    return Broken(host)


def library_lacks_a_member(base: Path) -> Broken:
    host = healthy(base)
    name = f"libnvidia-eglcore.so.{VERSION}"
    needed = (f"libnvidia-glsi.so.{VERSION}", "libc.so.6")
    host.write(f"driver/{LIB}/{name}", shared_object(soname=name, needed=needed))
    return Broken(host)


def mps_directory_is_somebody_elses(base: Path) -> Broken:
    host = healthy(base)
    (host.driver / "tmp/nvidia-mps").mkdir(parents=True)
    os.chown(host.driver / "tmp/nvidia-mps", 1000, 1000)
    return Broken(host)


BROKEN: tuple[Callable[[Path], Broken], ...] = (
    no_driver, no_driver_root, nouveau, nouveau_has_one_gpu_of_two, module_only, libraries_only,
    libraries_of_two_drivers, libraries_of_another_driver, nvml_of_another_driver,
    nvml_without_permission, no_gpu, lost_gpu, gpu_without_a_minor, gpu_node_missing,
    every_gpu_node_missing, uvm_node_missing, nvidiactl_missing, mig_node_missing,
    mig_minors_missing, cache_damaged, cache_unreadable, cache_is_a_loop_of_links,
    libcuda_is_a_loop_of_links, library_folder_is_a_loop_of_links, link_leaves_the_driver_root,
    hostile_names, library_is_a_fifo, library_is_no_elf_file, library_lacks_a_member,
    mps_directory_is_somebody_elses,
)  # fmt: skip


def outcome(broken: Broken, mode: str = "auto") -> str:
    """Return what `nvidia-ctk cdi generate` would say, and which devices it would write."""
    options = broken.host.options(broken.nvml)
    said, ending = [], ""
    try:
        inventory = modes.discover(mode, broken.host.roots, options)
        said = [f"warning: {sentence}" for sentence in inventory.warnings]
        spec = generate(inventory)
        ending = f"devices: {' '.join(device['name'] for device in spec['devices'])}"
    except NvctError as error:
        # The temporary folder must not decide what is shortened: as if it were the host's root.
        error.message = error.message.replace(str(broken.host.base), "")
        error.hint = error.hint.replace(str(broken.host.base), "")
        ending = line("nvidia-ctk", error)
    return "\n".join([*said, ending]).replace(str(broken.host.base), "") + "\n"


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_broken_host_says_what_is_wrong(
    tmp_path: Path, golden: Callable[[str, str], None], make: Callable[[Path], Broken]
) -> None:
    if make is mps_directory_is_somebody_elses and os.geteuid() != 0:
        pytest.skip("needs root: it gives a directory to somebody else")

    text = outcome(make(tmp_path))

    golden(f"hosts/failures/{make.__name__}.txt", text)
    *warnings, ending = text.splitlines()
    assert all(row.startswith("warning: ") for row in warnings)
    assert len(ending) <= LINE_LIMIT
    assert all(row.isprintable() for row in text.splitlines())


def test_linker_cache_of_a_megabyte_is_read_once_and_fast(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.library("libnvidia-cfg", "libnvidia-cfg.so.1", folder="opt/nvidia/lib")
    entries = [(f"libfiller{n}.so.1", f"/usr/lib/filler/libfiller{n}.so.1") for n in range(13000)]
    entries.append(("libnvidia-cfg.so.1", "/opt/nvidia/lib/libnvidia-cfg.so.1"))
    data = ldcache.merge(None, entries, machine="x86_64")
    host.write("driver/etc/ld.so.cache", data)

    start = time.process_time()
    found = modes.discover("nvml", host.roots, host.options())  # fmt: skip
    took = time.process_time() - start

    assert len(data) > 1_000_000
    assert f"/opt/nvidia/lib/libnvidia-cfg.so.{VERSION}" in {f.container_path for f in found.files}
    assert found.warnings == ()
    assert took < 1


def test_socket_and_node_of_the_driver_survive_everything_else_missing(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    for folder in ("sys", "driver/lib", "driver/usr/bin"):
        for path in sorted((tmp_path / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    place = tmp_path / "run/nvidia-persistenced"
    place.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(place, os.O_PATH)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)

        found = modes.discover("nvml", host.roots, host.options())  # fmt: skip

    assert [f.container_path for f in found.files if f.kind == "socket"] == [
        "/run/nvidia-persistenced/socket"
    ]
    assert found.notes == (f"{host.driver} has no nvidia-smi",)
    assert [gpu.node is not None for gpu in found.gpus] == [True]
