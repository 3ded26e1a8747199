# SPDX-License-Identifier: Apache-2.0
"""Records where they cannot be kept: no create fails or waits for it, and `nvct log` says why."""

import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from nvct.container import recorder
from nvct.container.plan.store import Store
from nvct.doctor import decisions
from nvct.errors import RequestError
from nvct.linux import files
from nvct_sim import rootfs
from tests.support.shim_lab import BOOT, PROGRAM, REPOSITORY, Lab, started

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
NOBODY = 65534
WAIT_S = 60


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    made.driver()
    made.asks(VISIBLE + "1")
    yield made
    made.remove()


def write(lab: Lab, count: int = 1) -> None:
    store = Store(str(lab.run_dir))
    for number in range(count):
        recorder.refused(store, "shim", f"/run/{number}", RequestError("x"))
    store.close()


def problems(lab: Lab) -> list[str]:
    """Return what `nvct log` warns of, without the path of the run directory."""
    done = lab.invoke("nvct", "log")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [one for one in done.stderr.splitlines() if one.startswith("warning: ")]
    return [one.removeprefix("warning: ").replace(str(lab.run_dir), "RUN") for one in lines]


def records(lab: Lab) -> int:
    return len(decisions.look([str(lab.run_dir)]).records)


def in_namespace(lab: Lab, options: str, before: str = ":") -> tuple[str, str]:
    """Create a container whose run directory is a tmpfs of its own.

    Args:
        lab: the host.
        options: of mount(8) for the tmpfs.
        before: commands in the tmpfs before the create.

    Returns:
        What the create and then `nvct log` printed.
    """
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(f"no mount namespaces here: {reason}")
    python = f"{REPOSITORY}/.venv/bin/python"
    script = (
        f"mount -t tmpfs -o size=4k,mode=700 none {lab.run_dir} && cd {lab.run_dir} && {{ {before}; }}"
        f' && mount -o remount,{options} {lab.run_dir}; cd /; "$@" >&2 || exit 7; echo == >&2; '
        f"exec {python} -m nvct.cli nvct log"
    )
    words = [*started(BOOT, lab.cold), PROGRAM, "create", "--bundle", str(lab.bundle), "x"]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *words],
        env=lab.env, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done
    created, _, logged = done.stderr.partition("==\n")
    assert "Traceback" not in done.stderr, done
    assert "runc create" in created, done
    return created, done.stdout + logged.replace(str(lab.run_dir), "RUN")


def test_a_full_run_directory(lab: Lab) -> None:
    _, logged = in_namespace(lab, "rw", "head -c 4096 /dev/zero > fill")
    assert "warning: RUN: its file system is full: nothing is recorded\n" in logged


def test_a_run_directory_that_becomes_full_within_a_record(lab: Lab) -> None:
    write(lab)
    line = (lab.run_dir / recorder.NAME).read_text(encoding="utf-8")
    lines = line * (4096 // len(line))
    (lab.home / "lines").write_text(lines, encoding="utf-8")
    _, logged = in_namespace(lab, "rw", f"cp {lab.home}/lines {recorder.NAME}")
    assert "RUN: its file system is full" in logged
    assert logged.count("refused /run/0: x") == 4096 // len(line)
    assert f"warning: RUN/{recorder.NAME}: 1 damaged record, line " in logged


def test_a_read_only_run_directory(lab: Lab) -> None:
    _, logged = in_namespace(lab, "ro")
    assert "warning: RUN: its file system is read-only: nothing is recorded\n" in logged


def test_a_record_after_one_that_was_cut_off_is_read(lab: Lab) -> None:
    write(lab)
    path = lab.run_dir / recorder.NAME
    path.write_bytes(path.read_bytes()[:40])
    write(lab)

    assert records(lab) == 1
    assert problems(lab) == [f"RUN/{recorder.NAME}: 1 damaged record, line 1"]


def full_pipe(path: Path) -> int:
    """Open a FIFO for reading, and fill it."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except BlockingIOError:
        return fd


@pytest.mark.parametrize(
    "is_open", [False, True], ids=["no reader", "a reader that reads nothing"]
)
def test_a_fifo_stops_no_create(lab: Lab, *, is_open: bool) -> None:
    path = lab.run_dir / recorder.NAME
    os.mkfifo(path)
    fd = full_pipe(path) if is_open else -1

    assert lab.create().status == 0  # within its time

    if is_open:
        os.close(fd)
    assert problems(lab) == [f"RUN/{recorder.NAME}: it is not a regular file: nothing is recorded"]


def test_a_link(lab: Lab, tmp_path: Path) -> None:
    (lab.run_dir / recorder.NAME).symlink_to(tmp_path / "other")

    assert lab.create().status == 0

    assert not (tmp_path / "other").exists()
    assert problems(lab) == [f"RUN/{recorder.NAME}: it is a link: nothing is recorded"]


@pytest.mark.parametrize("name", [recorder.NAME, recorder.OLD])
def test_a_folder_in_the_place_of_a_file(lab: Lab, name: str) -> None:
    (lab.run_dir / name).mkdir()

    assert lab.create().status == 0

    text = "it is not a regular file: nothing is recorded"
    assert problems(lab) == [f"RUN/{name}: {text}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_of_another_user_is_named(lab: Lab) -> None:
    write(lab)
    os.chown(lab.run_dir / recorder.NAME, NOBODY, NOBODY)

    assert lab.create().status == 0

    (problem,) = problems(lab)
    assert (
        problem == f"RUN/{recorder.NAME}: it belongs to uid {NOBODY}, who can change its records"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_of_another_user_is_not_read(lab: Lab) -> None:
    write(lab)
    os.chown(lab.run_dir, NOBODY, NOBODY)

    assert lab.create().status == 0

    assert records(lab) == 0
    assert problems(lab) == [f"RUN: it belongs to uid {NOBODY}: nothing is recorded"]


def test_a_folder_that_others_can_write_is_named(lab: Lab) -> None:
    lab.run_dir.chmod(0o777)

    assert lab.create().status == 0

    assert problems(lab) == ["RUN: other users have access, its mode is 777: nothing is recorded"]


def test_a_huge_file_is_not_read(lab: Lab) -> None:
    with (lab.run_dir / recorder.OLD).open("wb") as file:
        file.truncate(1 << 40)
    write(lab)

    assert records(lab) == 1
    assert problems(lab) == [f"RUN/{recorder.OLD}: not read, because it is over 4 MiB"]


def test_a_file_that_shrinks_while_it_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lab, 100)
    path = lab.run_dir / recorder.NAME
    read_all = files.read_all

    def shrunk(fd: int, size: int, limit: int) -> bytes | None:
        os.truncate(path, 1000)
        return read_all(fd, size, limit)

    monkeypatch.setattr(decisions, "read_all", shrunk)

    assert 0 < records(lab) < 100


def test_following_ends_when_its_reader_does(lab: Lab) -> None:
    write(lab)
    began = time.monotonic()
    follow = f"{REPOSITORY}/.venv/bin/python -m nvct.cli nvct log --follow"
    done = subprocess.run(
        ["sh", "-c", f"{follow} | head -1"], env=lab.env, cwd=REPOSITORY, capture_output=True,
        text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip

    assert done.stdout.endswith("refused /run/0: x [bad-request]\n"), done
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 30
