# SPDX-License-Identifier: Apache-2.0
"""`nvct demo` as a user starts it: every case as expected, and nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvct.sim import possible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 240
PROGRAM = Path(sys.executable).with_name("nvct")
DENIED = ("--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
FOLDERS = (
    "/run/nvct", "/run/nvidia", "/etc/cdi", "/var/run/cdi", "/var/lib/nvct-sim", "/var/lib/nvct",
    "/etc/nvidia-container-runtime",
)  # fmt: skip


@pytest.fixture
def able() -> None:
    reason = possible.can_run_containers()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80"}


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
    done = subprocess.run(
        [*before, PROGRAM, "demo"], check=False, capture_output=True, text=True, env=env,
        timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
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


def test_where_containers_cannot_run_it_says_why_and_shows_what_they_would_get(
    env: dict[str, str],
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the simulated NVML")
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv is None:
        pytest.skip("no setpriv to take a privilege away")
    before = left(env)
    said = demo(env, *((str(setpriv), *DENIED) if os.geteuid() == 0 else ()))
    words = " ".join(said.split())
    assert "No container is started here" in words
    assert "this process lacks CAP_SYS_ADMIN" in words
    assert "8 of 8 bundles were as expected" in words
    assert "WRONG" not in said
    assert "nvidia3, nvidia-caps/nvidia-cap489, nvidia-caps/nvidia-cap490" in said
    assert "'gpu0', which names no device" in words
    check_left(env, before)
