# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.rootfs and container_support."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.linux import elf, ldcache
from nvct_sim import rootfs
from nvct_sim.elf_writer import shared_object

needs_busybox = pytest.mark.skipif(
    rootfs.find_program("busybox") is None, reason="needs busybox-static"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rootfs.build_rootfs(tmp_path / "root")
    return tmp_path / "root"


@needs_busybox
def test_the_loader_is_where_programs_expect_it(root: Path) -> None:
    loader = rootfs.LOADERS[platform.machine()]

    assert elf.Elf((root / loader.lstrip("/")).read_bytes()).machine == platform.machine()


@needs_busybox
def test_the_cache_lists_the_c_library(root: Path) -> None:
    cache = ldcache.parse((root / "etc/ld.so.cache").read_bytes())

    paths = [entry[1] for entry in cache.entries if entry[0] == "libc.so.6"]

    assert len(paths) == 1
    assert (root / paths[0].lstrip("/")).is_file()


@needs_busybox
def test_nothing_is_linked_to_the_host(root: Path) -> None:
    shared = [path for path in root.rglob("*") if path.is_file() and path.lstat().st_nlink > 1]

    assert shared == []


@needs_busybox
def test_mount_points_are_there_and_empty(root: Path) -> None:
    assert [os.listdir(root / name) for name in ("proc", "sys", "dev", "tmp", "run")] == [[]] * 5
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777


@needs_busybox
def test_applets_are_links_that_work_inside_the_root(root: Path) -> None:
    assert os.readlink(root / "usr/bin/id") == "/usr/bin/busybox"
    assert (root / "bin/sh").is_symlink()
    assert not (root / "sbin/ldconfig").is_symlink()


def test_without_busybox_the_error_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(ContainerNotPossibleError, match="no busybox") as caught:
        rootfs.build_rootfs(tmp_path / "root", programs=[str(tmp_path)])

    assert caught.value.hint == "install the package busybox-static"
    assert not (tmp_path / "root").exists()


def test_a_busybox_that_needs_libraries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_bytes(shared_object(needed=["libc.so.6"]))
    (tmp_path / "busybox").chmod(0o755)

    with pytest.raises(ContainerNotPossibleError, match="is not statically linked"):
        rootfs.static_busybox([str(tmp_path)])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_missing_runtime_is_a_reason_against_containers() -> None:
    reason = rootfs.can_run_containers(runtime="no-such-runtime")

    assert reason is not None
    assert "no no-such-runtime on this host" in reason or "lacks CAP_" in reason


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_failing_runtime_is_a_reason_with_its_own_message(tmp_path: Path) -> None:
    if rootfs.can_run_containers() is not None:
        pytest.skip("no containers here at all")
    (tmp_path / "runc").write_text(
        "#!/bin/sh\necho first >&2; echo 'cgroup trouble' >&2; exit 1\n"
    )
    (tmp_path / "runc").chmod(0o755)

    reason = rootfs.can_run_containers(programs=[str(tmp_path), *rootfs.PROGRAM_DIRS])

    assert reason == f"{tmp_path}/runc cannot run a container: cgroup trouble"
