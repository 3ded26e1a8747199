# SPDX-License-Identifier: Apache-2.0
"""`nvct demo` as a user starts it: every case as expected, and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct_sim import rootfs
from tests.support.processes import captured

TIMEOUT_S = 240
PROGRAM = Path(sys.executable).with_name("nvct")
NOBODY = 65534
DENIED = ("--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
COMPILE_ONCE = """#!/bin/sh
output= words= last=
for word; do
  case $last in -o) output=$word ;; *) words="$words $word" ;; esac
  last=$word
done
compiled={folder}/$(echo "$words" | cksum | tr ' ' -)
if [ -e "$compiled" ]; then
  exec cp "$compiled" "$output"
fi
{compiler} "$@" && cp "$output" "$compiled.$$" && mv "$compiled.$$" "$compiled"
"""
"""A compiler that copies the file if the same command has run before. Each demonstration compiles
the simulated driver, which takes longer than all the rest of it."""
FOLDERS = (
    "/run/nvct", "/run/nvidia", "/etc/cdi", "/var/run/cdi", "/var/lib/nvct-sim", "/var/lib/nvct",
    "/etc/nvidia-container-runtime",
)  # fmt: skip


@pytest.fixture
def able() -> None:
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The variable PATH, with a compiler that compiles each file once."""
    folder, compiler = tmp_path_factory.mktemp("compiler"), shutil.which("cc")
    if compiler is None:
        return os.environ["PATH"]
    script = folder / "cc"
    script.write_text(COMPILE_ONCE.format(folder=folder, compiler=compiler), encoding="utf-8")
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def env(tmp_path: Path, path: str) -> dict[str, str]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {**os.environ, "PATH": path, "TMPDIR": str(folder), "COLUMNS": "80"}


def left(env: dict[str, str]) -> dict[str, list[str]]:
    """Return what a demonstration might leave on this machine."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    work = env["TMPDIR"]
    return {
        "mounts": [line for line in mounts if work in line],
        "cgroups": [path for path, _, _ in os.walk("/sys/fs/cgroup") if "nvct-demo" in path],
        "temporary": os.listdir(work),
        "folders": [f"{d}: {os.listdir(d) if Path(d).is_dir() else None}" for d in FOLDERS],
        "processes": list(_processes(work)),
    }


def check_left(env: dict[str, str], before: dict[str, list[str]]) -> None:
    """What others do on this machine meanwhile, another demonstration say, goes away again."""
    for _ in range(100):
        if left(env) == before:
            return
        time.sleep(0.2)
    assert left(env) == before


def _processes(word: str) -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if word in line:
            yield line


def demo(env: dict[str, str], *before: str) -> str:
    done = captured(
        [*before, PROGRAM, "demo"], env=env, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def without_times(said: str) -> str:
    """Leave out times, and what their width does to the table around them."""
    return re.sub(r"[ ─]+", " ", re.sub(r"\d+ ms", "N ms", said))


@pytest.mark.engine
@pytest.mark.usefixtures("able")
def test_it_runs_twice_alike_and_leaves_nothing(env: dict[str, str]) -> None:
    before = left(env)
    first = demo(env)
    assert "8 of 8 containers were as expected" in first
    assert "simulated" in first
    assert "WRONG" not in first
    assert "\x1b" not in first
    check_left(env, before)
    assert without_times(demo(env)) == without_times(first)
    check_left(env, before)


@pytest.mark.engine
@pytest.mark.usefixtures("able")
def test_two_at_once_do_not_disturb_each_other(env: dict[str, str]) -> None:
    before = left(env)
    started = [
        subprocess.Popen([PROGRAM, "demo"], stdout=subprocess.PIPE, text=True, env=env)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    check_left(env, before)


@pytest.mark.engine
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("1  The node", signal.SIGINT),
        ("two by index", signal.SIGTERM),
        ("a MIG device", signal.SIGINT),
    ],
)
def test_it_can_be_stopped_and_leaves_nothing(
    env: dict[str, str], moment: str, number: signal.Signals
) -> None:
    before = left(env)
    with subprocess.Popen(
        [PROGRAM, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        while moment not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, number)  # as a terminal does
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert said.strip() == "nvct: stopped"
    check_left(env, before)


@pytest.fixture
def as_user() -> list[str]:
    """Words that start a program as a user without root, who may read the checkout."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return []
    words = [str(setpriv), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if (
        setpriv is None
        or subprocess.run(
            [*words, PROGRAM, "--version"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("the checkout is in a folder that only its owner may enter")
    return words


def refused(env: dict[str, str], *before: str) -> str:
    """Return the only line of a demonstration that cannot run."""
    done = captured(
        [*before, PROGRAM, "demo"], env=env, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_without_root_it_says_what_to_run(as_user: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="nvct-test-"))  # tmp_path is closed to other users
    folder.chmod(0o1777)
    try:
        said = refused({"PATH": os.environ["PATH"], "TMPDIR": str(folder)}, *as_user)
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)
    assert "cannot run containers here: this process lacks CAP_SYS_ADMIN; as root, run: " in said
    assert f"{PROGRAM} demo" in said


def test_in_a_container_without_privileges_it_says_what_to_start(env: dict[str, str]) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("no privilege to take away")
    before = left(env)
    said = refused(env, "setpriv", *DENIED)
    assert "this process lacks CAP_SYS_ADMIN; if this is a container, start it with" in said
    check_left(env, before)


@pytest.mark.engine
@pytest.mark.usefixtures("able")
def test_without_a_compiler_it_says_what_to_install(env: dict[str, str]) -> None:
    before = left(env)
    said = refused({**env, "PATH": "/nonexistent"})
    assert "there is no C compiler (cc) to build" in said
    check_left(env, before)
