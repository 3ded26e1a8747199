# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.rootfs, container_support and oci_runtime."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import BundleError, ContainerNotPossibleError, HostError
from nvct.linux import elf, ldcache
from nvct.linux.kernel import KERNEL
from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import oci_runtime, rootfs, run_folder
from nvct_sim.bundle import config
from nvct_sim.elf_writer import shared_object
from nvct_sim.oci_runtime import python_command
from tests.support.processes import captured

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

    reason = rootfs.can_run_containers(programs=[str(tmp_path), *DEFAULT_PATH_DIRS])

    assert reason == f"{tmp_path}/runc cannot run a container: cgroup trouble"


# Unit tests for nvct_sim.oci_runtime: the hook that shows the node's files to containers.


OTHER = {"path": "/usr/bin/other", "args": ["other"]}


def write(folder: Path, **more: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**config(["/bin/true"]), **more}), encoding="utf-8")
    return path


def hooks(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return list(document.get("hooks", {}).get("createContainer", []))


def test_the_hook_is_the_first_and_has_the_root_as_argument(tmp_path: Path) -> None:
    path = write(tmp_path, hooks={"createContainer": [OTHER], "poststop": [OTHER]})

    oci_runtime.add_hook(str(path), KERNEL)

    first, *others = hooks(path)
    assert others == [OTHER]
    assert first["path"] == sys.executable
    assert first["args"][-1] == f"{tmp_path}/rootfs"
    assert json.loads(path.read_text())["hooks"]["poststop"] == [OTHER]


def test_an_absolute_root_stays(tmp_path: Path) -> None:
    path = write(tmp_path, root={"path": "/var/lib/merged"})

    oci_runtime.add_hook(str(path), KERNEL)

    assert hooks(path)[0]["args"][-1] == "/var/lib/merged"


def test_a_second_edit_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    oci_runtime.add_hook(str(path), KERNEL)
    before = path.read_bytes()

    oci_runtime.add_hook(str(path), KERNEL)

    assert path.read_bytes() == before
    assert len(hooks(path)) == 1


@pytest.mark.parametrize(
    "more", [{"linux": {"namespaces": [{"type": "pid"}]}}, {"linux": {}}, {"root": None}]
)
def test_a_config_without_a_mount_namespace_is_not_changed(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    path = write(tmp_path, **more)
    before = path.read_bytes()

    oci_runtime.add_hook(str(path), KERNEL)

    assert path.read_bytes() == before


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json: No such file"):
        oci_runtime.add_hook(f"{tmp_path}/config.json", KERNEL)


def test_the_real_runtime_is_found_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "runc").touch(mode=0o755)

    assert (
        oci_runtime.find_runtime("runc", ("", run_folder.PROGRAMS, str(tmp_path)))
        == f"{tmp_path}/runc"
    )
    with pytest.raises(HostError, match="no crun in"):
        oci_runtime.find_runtime("crun", (str(tmp_path),))


def test_other_commands_are_passed_to_the_runtime_unchanged(tmp_path: Path) -> None:
    real = tmp_path / "runc"
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    command = python_command("oci_runtime.main()", "runc", "--root", "/r s", "delete", "create")

    done = captured(command, env={"PATH": str(tmp_path)})

    assert (done.stdout, done.stderr) == ("<--root></r s><delete><create>", "")
