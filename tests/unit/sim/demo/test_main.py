# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.demo.main: configuration, environment, cleanup."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvct import paths
from nvct.config import load
from nvct.errors import HostError
from nvct_sim.demo import main


def test_the_configuration_is_read_back_as_it_was_meant() -> None:
    text = main.config('/a "b"/ü', "/usr/bin/crun", "/f\n")
    config = load.from_toml(text.encode(), "config.toml")
    assert config.driver_root == '/a "b"/ü'
    assert config.runtimes == ("/usr/bin/crun",)
    assert config.farm_dir == "/f\n"
    assert config.accept_volume_mounts


def test_only_display_variables_of_the_callers_environment_reach_the_cases(tmp_path: Path) -> None:
    env = {"NO_COLOR": "1", "NVIDIA_VISIBLE_DEVICES": "all", "LD_PRELOAD": "x", "PATH": "/evil"}
    environment = main.environment(tmp_path, env)
    assert environment["NO_COLOR"] == "1"
    assert environment[paths.CONFIG_ENV] == str(tmp_path / "config.toml")
    assert "/evil" not in environment["PATH"]
    assert not {"NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"} & set(environment)


def test_the_folder_is_removed_at_the_end() -> None:
    with main.folder() as work:
        (work / "file").write_text("x")
    assert not work.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_folder_is_removed_after_a_signal(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
    works: list[Path] = []

    def work() -> None:
        with main.folder() as folder:
            works.append(folder)
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)  # the handler runs here

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert not works[0].exists()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


PART = """
import os, sys, time
from nvct_sim.demo import main as place
from nvct.errors import HostError
def part():
    if sys.argv[1] == "fail":
        raise HostError("it is broken", hint="mend it")
    try:
        print("started", flush=True)
        time.sleep(20)
    finally:
        os.kill(os.getpid(), 15)  # a second signal has no effect
        print("cleaned", flush=True)
sys.exit(place.inner(part))
"""


def start(what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PART, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_part_cleans_up_and_prints_nothing(number: signal.Signals) -> None:
    with start("sleep") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
        assert process.wait(10) == main.STOPPED
        assert process.stdout.read() == b"cleaned\n"
        assert process.stderr.read() == b""


def test_a_part_that_was_stopped_stops_the_whole() -> None:
    process = start("sleep")
    assert process.stdout
    process.stdout.readline()
    process.terminate()
    with process, pytest.raises(KeyboardInterrupt):
        main.wait(process)


def test_an_error_of_a_part_is_one_line() -> None:
    with start("fail") as process:
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 1
    assert stderr.decode().splitlines() == ["nvct: it is broken; mend it [host]"]


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(HostError, match="nvct-nonsense is missing"):
        main.program("nvct-nonsense")
