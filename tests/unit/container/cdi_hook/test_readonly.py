# SPDX-License-Identifier: Apache-2.0
"""Roots that are read-only before the hook runs, as crun makes them."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from nvct.container.cdi_hook import apply
from nvct.container.cdi_hook.context import Context
from nvct.container.plan.hook_command import Options
from nvct.errors import HostError
from nvct.linux import constants as c
from nvct.linux import ldcache
from nvct.linux.kernel import KERNEL, Kernel
from tests.support.containers import Container
from tests.support.forked import in_a_mount_namespace, in_mount_namespace, run_forked
from tests.support.hot import HOT_ENV
from tests.support.recording_kernel import RecordingKernel

LINK = "libcuda.so.580::/usr/lib/libcuda.so.1"
FLAGS = c.MS_REMOUNT | c.MS_BIND | c.MS_NOSUID | c.MS_NODEV


def read_only(container: Container, *, readonly: object = True) -> None:
    """Mount the root over itself and close it, as crun does; config.json asks for it."""
    container.write_config({"root": {"path": "rootfs", "readonly": readonly}})
    root = str(container.root)
    KERNEL.mount(root, root, None, c.MS_BIND)
    KERNEL.mount(None, root, None, FLAGS | c.MS_RDONLY)


def cannot_write(container: Container) -> bool:
    with pytest.raises(OSError) as refused:
        container.file("/new")
    return refused.value.errno == errno.EROFS


@in_a_mount_namespace
def test_files_are_written_and_the_root_stays_read_only(container: Container) -> None:
    container.file("/usr/lib/libcuda.so.580")

    read_only(container)
    mounts = Path("/proc/thread-self/mountinfo").read_text()
    pid = os.fork()  # the hook is a process of its own, in the container's mount namespace
    if pid == 0:
        os._exit(container.hook("apply", "--link", LINK))
    assert os.waitpid(pid, 0)[1] == 0
    assert (container.root / "usr/lib/libcuda.so.1").readlink() == Path("libcuda.so.580")
    assert Path("/proc/thread-self/mountinfo").read_text() == mounts
    assert cannot_write(container)


@in_a_mount_namespace
def test_mount_flags_stay_set_while_files_are_written(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOT_ENV, raising=False)

    read_only(container)
    assert container.hook("apply", "--link", LINK) == 0
    # This process was the hook, so it has the mounts of the hook.
    flags = os.statvfs(".").f_flag
    assert not flags & os.ST_RDONLY
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV


@in_a_mount_namespace
def test_the_params_mask_is_mounted_where_the_container_sees_it(container: Container) -> None:
    params = container.file("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n")
    (container.root / "dev").mkdir()
    proc = container.proc
    container.params("ModifyDeviceFiles: 1\n")
    (proc / "self").rename(proc / "gone")
    (proc / "self").symlink_to("/proc/self")

    read_only(container)
    KERNEL.mount("none", str(container.root / "dev"), "tmpfs")
    pid = os.fork()
    if pid == 0:
        flags = ("--mask-params", "--link", LINK, "--proc-root", str(proc))
        os._exit(container.hook("apply", *flags))
    assert os.waitpid(pid, 0)[1] == 0
    assert params.read_text() == "ModifyDeviceFiles: 0\n"
    assert (container.root / "usr/lib/libcuda.so.1").is_symlink()


@pytest.mark.parametrize("readonly", [False, None, "yes"])
def test_a_root_that_config_json_does_not_make_read_only_stays_read_only(
    container: Container, capfd: pytest.CaptureFixture[str], readonly: object
) -> None:
    def hooked() -> None:
        read_only(container, readonly=readonly)
        assert container.hook("apply", "--link", LINK) == 1
        assert cannot_write(container)

    in_mount_namespace(hooked)
    assert "Read-only file system" in capfd.readouterr().err


def test_a_root_that_is_read_only_on_the_host_stays_read_only(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    def hooked() -> None:
        read_only(container)
        read_only(container)  # the runtime's own mount of a read-only folder
        assert container.hook("apply", "--link", LINK) == 1

    in_mount_namespace(hooked)
    assert "Read-only file system" in capfd.readouterr().err


def test_a_root_that_is_not_a_mount_is_not_made_writable(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    def hooked() -> None:
        read_only(container)
        inner = container.root / "inner"
        container.write_config({"root": {"path": str(inner), "readonly": True}})
        assert container.hook("apply", "--link", LINK) == 1

    (container.root / "inner").mkdir()
    in_mount_namespace(hooked)
    assert "Read-only file system" in capfd.readouterr().err


class RefusingKernel(Kernel):
    """A kernel that lets this process have no namespace."""

    def unshare(self, *_args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")


@in_a_mount_namespace
def test_a_missing_permission_to_remount_is_reported(container: Container) -> None:
    read_only(container)
    state = container.bundle.parent / "state"
    state.write_text(json.dumps({"bundle": str(container.bundle)}))
    options = Options()
    options.given = {"container-spec": [str(state)]}
    context = Context(options, -1, pytest.fail, kernel=RefusingKernel())
    with pytest.raises(HostError, match="a hook cannot write to the read-only root"):
        context.root()
    context.close()


# A hook that is killed at any moment leaves complete files; the next start finishes the work.


def container_in(folder: Path) -> Container:
    container = Container(folder)
    container.file("/lib64/ld-linux-x86-64.so.2")
    container.library("/drv/libcuda.so.580.1", "libcuda.so.1")
    old = ldcache.merge(None, [("libc.so.6", "/lib/libc.so.6")], machine="x86_64")
    container.file("/etc/ld.so.cache", old)
    return container


def run_apply(container: Container, kernel: Kernel) -> None:
    state = container.bundle / "state"
    state.write_text(f'{{"bundle": "{container.bundle}"}}')
    options = Options()
    options.given = {
        "container-spec": [str(state)],
        "folder": ["/drv"],
        "link": ["libcuda.so.580.1::/drv/libcuda.so.1"],
    }
    context = Context(options, -1, pytest.fail, kernel=kernel)
    try:
        apply.run(context)
    finally:
        context.close()


def without_temporaries(tree: dict[str, str]) -> dict[str, str]:
    return {path: data for path, data in tree.items() if "/.nvct-" not in path}


def test_after_a_kill_at_any_point_the_cache_is_complete_and_the_next_start_finishes(
    tmp_path: Path,
) -> None:
    complete = container_in(tmp_path / "whole")
    before = complete.tree()["etc/ld.so.cache"]
    recorder = RecordingKernel()
    run_apply(complete, recorder)
    after = complete.tree()
    names = recorder.names()
    assert {"symlink", "rename", "write"} <= set(names)
    points = [
        (name, when, number)
        for name in dict.fromkeys(names)
        for number in range(1, names.count(name) + 1)
        for when in ("before", "after")
    ]

    for point in points:
        container = container_in(tmp_path / "killed")
        status = run_forked(lambda c=container, p=point: run_apply(c, RecordingKernel(p)))  # type: ignore[misc]  # bound here
        assert os.WTERMSIG(status) == signal.SIGKILL, point
        assert container.tree()["etc/ld.so.cache"] in {before, after["etc/ld.so.cache"]}, point
        run_apply(container, Kernel())
        assert without_temporaries(container.tree()) == after, point
        shutil.rmtree(tmp_path / "killed")
