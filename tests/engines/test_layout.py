# SPDX-License-Identifier: Apache-2.0
"""How the driver comes where config.toml says nothing of it, into images of every shape."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nvct_sim import elf_writer, node_changes, rootfs
from tests.engines import checks, image
from tests.engines.conftest import Case
from tests.engines.engines import SHIM, Containerd, Docker, Done, Want
from tests.engines.releases import in_full, of_release

CASES = [
    of_release("trixie", Case("trixie", "auto", staged=False)),
    *in_full("resolute", Case("resolute", "auto", staged=False)),
]
"""Releases, with no word about the layout."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("start", CASES, indirect=True, scope="module"),
]
CUDA_PATHS = ("LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",)
"""As NVIDIA's own images have them."""
NEWER = "590.44.01"
COMPAT = "/usr/local/cuda-13/compat"
SCRIPT = f"nvidia-smi -L; {checks.LISTED}"


def no_cache(root: Path) -> None:
    (root / "etc/ld.so.cache").unlink()


def huge_cache(root: Path) -> None:
    with (root / "etc/ld.so.cache").open("ab") as file:
        file.truncate(64 << 20)


def lying_cache(root: Path) -> None:
    head = b"glibc-ld.so.cache1.1" + b"\xff" * 28
    (root / "etc/ld.so.cache").write_bytes(head + b"\xff" * 4096)


def empty_folder(root: Path) -> None:
    (root / "usr/local/nvidia").mkdir()


def full_folder(root: Path) -> None:
    (root / "usr/local/nvidia/lib64").mkdir(parents=True)
    (root / "usr/local/nvidia/lib64/libcuda.so.1").write_bytes(b"mine")


def link_to_a_folder(root: Path) -> None:
    (root / "opt/nv").mkdir(parents=True)
    (root / "usr/local/nvidia").symlink_to("/opt/nv")


def dangling_link(root: Path) -> None:
    (root / "usr/local/nvidia").symlink_to("/nowhere/at/all")


def link_out(root: Path) -> None:
    (root / "usr/local/nvidia").symlink_to("../../../../../../etc")


def newer_cuda(root: Path) -> None:
    folder = root / COMPAT.lstrip("/")
    folder.mkdir(parents=True)
    name = f"libcuda.so.{NEWER}"
    (folder / name).write_bytes(elf_writer.shared_object(soname="libcuda.so.1"))
    (folder / "libcuda.so.1").symlink_to(name)
    (root / "usr/local/cuda").symlink_to("cuda-13")


class Shape(NamedTuple):
    """An image, and what a container of it gets.

    Attributes:
        make: changes a root file system.
        layout: in which the driver is there.
        listed: whether ldconfig -p lists it.
        env: of the image.
    """

    make: Callable[[Path], None]
    layout: str = "farm"
    listed: bool = True
    env: tuple[str, ...] = ()


SHAPES = (
    Shape(no_cache),
    Shape(huge_cache, listed=False),
    Shape(lying_cache, listed=False),
    Shape(empty_folder),
    Shape(empty_folder, env=CUDA_PATHS),
    Shape(full_folder, "classic"),
    Shape(link_to_a_folder),
    Shape(dangling_link, "classic"),
)


def loaded(docker: Docker, shape: Shape) -> str:
    """Return the name of an image of a shape."""
    work = docker.box.work / docker.name()
    rootfs.build_rootfs(work / "root")
    shape.make(work / "root")
    name = f"{shape.make.__name__.replace('_', '-')}:{len(shape.env)}"
    image.archive(work / "root", name, work / "image.tar", env=shape.env)
    completed = docker.docker("load", "--input", str(work / "image.tar"))
    assert completed.returncode == 0, completed
    shutil.rmtree(work)
    return name


def has_one_gpu(completed: Done, shape: Shape) -> None:
    assert completed.returncode == 0, completed
    assert len(checks.UUID.findall(completed.stdout)) == 1, completed
    if shape.listed:
        checks.has_one_gpu(completed, shape.layout)


@pytest.mark.usefixtures("layout")
def test_a_view_of_links_is_what_containers_get(docker: Docker) -> None:
    checks.gives_what_is_asked_for(docker, "farm")
    assert "layout farm at /usr/local/nvidia" in docker.decided()


@pytest.mark.usefixtures("layout")
def test_where_every_file_would_be_a_mount_they_get_the_files(docker: Docker) -> None:
    docker.configure("auto", staged=True)

    checks.has_one_gpu(docker.run(SCRIPT), "classic")

    assert "layout classic: no view of driver" in docker.decided()
    assert "binds" not in docker.decided()
    assert "nvct-farm" not in (docker.box.root / "proc/1/mountinfo").read_text()


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.make.__name__}-{len(s.env)}")
def test_an_image_of_any_shape_gets_the_driver(docker: Docker, shape: Shape) -> None:
    name = loaded(docker, shape)

    has_one_gpu(docker.run(SCRIPT, Want(image=name)), shape)

    assert f"layout {shape.layout}" in docker.decided(), docker.decided()
    container = docker.keep(Want(image=name))
    if shape.listed:
        has_one_gpu(docker.exec(container, SCRIPT), shape)
    docker.remove(container)


@pytest.mark.usefixtures("layout")
def test_a_link_out_of_the_image_stays_in_it(docker: Docker) -> None:
    before = sorted((docker.box.root / "etc").iterdir())

    completed = docker.run("nvidia-smi -L", Want(image=loaded(docker, Shape(link_out))))

    assert sorted((docker.box.root / "etc").iterdir()) == before
    assert completed.returncode == 0, completed
    assert len(checks.UUID.findall(completed.stdout)) == 1, completed


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("env", [(), CUDA_PATHS], ids=["", "named"])
def test_newer_cuda_of_an_image_comes_before_the_driver(
    docker: Docker, env: tuple[str, ...]
) -> None:
    name = loaded(docker, Shape(newer_cuda, env=env))

    completed = docker.run(SCRIPT, Want(image=name))

    assert completed.returncode == 0, completed
    assert len(checks.UUID.findall(completed.stdout)) == 1, completed
    assert completed.stdout.splitlines()[-1] == f"{COMPAT}/libcuda.so.1", completed
    assert "layout farm at /usr/local/nvidia/drv" in docker.decided()
    container = docker.keep(Want(image=name))
    inside = docker.exec(container, f"ldconfig; {SCRIPT}")
    assert inside.stdout.splitlines()[-1] == f"{COMPAT}/libcuda.so.1", inside
    docker.remove(container)


@pytest.mark.usefixtures("layout")
def test_a_folder_of_ones_own_as_the_root_is_not_written_to(containerd: Containerd) -> None:
    root = containerd.box.work / "mine"
    rootfs.build_rootfs(root)
    before = {path: path.read_bytes() for path in (root / "etc").rglob("*") if path.is_file()}

    completed = containerd.ctr(
        "run", "--rm", f"--runc-binary={SHIM}", f"--cgroup=/{containerd.box.cgroup}/mine",
        "--env=NVIDIA_VISIBLE_DEVICES=0", "--rootfs", str(root), containerd.name(),
        "/bin/sh", "-c", "nvidia-smi -L",
    )  # fmt: skip

    assert completed.returncode == 0, completed
    assert len(checks.UUID.findall(completed.stdout)) == 1, completed
    after = {path: path.read_bytes() for path in (root / "etc").rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if path in before} == before
    assert not (root / "etc/ld.so.conf.d/00-nvct.conf").exists()


@pytest.mark.usefixtures("layout")
def test_a_program_that_was_overwritten_is_left_out_until_the_boot(docker: Docker) -> None:
    """An installer that writes into the files themselves changes hard links too."""
    node, old = docker.node, docker.node.installed
    checks.has_one_gpu(docker.run(SCRIPT), "farm")
    smi = node.driver_root / "usr/bin/nvidia-smi"
    same = smi.with_name(".same-inode")
    same.hardlink_to(smi)
    upgraded = node_changes.upgrade(node, checks.NEW)
    same.write_bytes(smi.read_bytes())
    same.rename(smi)
    try:
        between = docker.run(f"ls {checks.VIEW}/lib64 {checks.VIEW}/bin; {checks.LISTED}")

        assert between.returncode == 0, between
        assert f"libcuda.so.{old}\n" in between.stdout
        assert "nvidia-smi" not in between.stdout, "it is the new driver's"
        assert between.stdout.endswith(f"{checks.VIEW}/lib64/libcuda.so.1\n"), between
    finally:
        node_changes.reload_module(upgraded)
    after = docker.run(f"ls {checks.VIEW}/lib64; {SCRIPT}")
    node_changes.reload_module(node_changes.upgrade(upgraded, old))  # for the tests after it
    checks.has_one_gpu(after, "farm")
    assert f"libcuda.so.{checks.NEW}\n" in after.stdout
