# SPDX-License-Identifier: Apache-2.0
"""The stand-in for nvidia-cuda-mps-control: its daemon and its commands."""

import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct_sim.native import build
from tests.support.nvml_node import CACHE

PERCENTAGE = "get_default_active_thread_percentage"


class Control:
    """The program with a pipe directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = str(build.build(CACHE)["nvidia-cuda-mps-control"])
        self.env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder),
        }  # fmt: skip

    def run(self, *options: str, commands: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [self.program, *options], input=commands, env=self.env, stdout=subprocess.PIPE,
            text=True, timeout=10, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def start(self, *options: str) -> None:
        done = subprocess.run(
            [self.program, "-d", *options],
            env=self.env,
            stdout=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )
        assert done.returncode == 0

    def say(self, *commands: str) -> str:
        status, answer = self.run(commands="\n".join(commands))
        assert status == 0, answer
        return answer


@pytest.fixture
def control() -> Iterator[Control]:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        control = Control(Path(folder))
        control.start()
        yield control
        control.run(commands="quit")


def test_limits_are_set_and_read_back(control: Control) -> None:
    assert control.say(PERCENTAGE) == "100.0\n"
    control.say("set_default_active_thread_percentage 25")
    control.say("set_default_device_pinned_mem_limit 1 3840M")
    control.say("set_default_device_pinned_mem_limit 2 900M")

    assert control.say(PERCENTAGE) == "25.0\n"
    limits = [control.say(f"get_default_device_pinned_mem_limit {n}") for n in range(3)]
    assert limits == ["", "3G\n", "900M\n"]


def test_a_limit_by_uuid_has_no_effect(control: Control) -> None:
    uuid = "GPU-00000000-1111-5222-8333-000000000000"
    assert control.say(f"set_default_device_pinned_mem_limit {uuid} 900M") == ""
    assert control.say("get_default_device_pinned_mem_limit 0") == ""


@pytest.mark.parametrize(
    "command",
    [
        "set_default_device_pinned_mem_limit 0 4",
        "set_default_device_pinned_mem_limit 64 4G",
        "set_default_device_pinned_mem_limit",
        "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage none",
        "get_default_device_pinned_mem_limit -1",
        "set_device_pinned_mem_limit 1 0 4G",
    ],
)
def test_malformed_values_are_refused(control: Control, command: str) -> None:
    assert control.say(command) == "Invalid parameters\n"


def test_an_unknown_command_does_not_end_the_daemon(control: Control) -> None:
    assert control.say("dance", PERCENTAGE) == 'Unknown command "dance"\n100.0\n'


def test_servers_are_started_and_end_with_the_daemon(control: Control) -> None:
    control.say("start_server -uid 0")
    (pid,) = map(int, control.say("get_server_list").split())
    process = Path(f"/proc/{pid}")
    assert process.is_dir()

    assert control.run(commands="quit") == (0, "")

    assert not process.is_dir()
    assert control.run(commands=PERCENTAGE) == (1, "Cannot find MPS control daemon process\n")


def test_a_directory_has_one_daemon(control: Control) -> None:
    assert control.run("-f") == (1, "An instance of this daemon is already running\n")
    control.say(PERCENTAGE)  # the daemon runs: it has opened its log
    assert "Start" in (control.folder / "control.log").read_text()


def client(control: Control, amount: str, **env: str) -> str:
    """Return what a program is told that allocates memory, and ends."""
    done = subprocess.run(
        [control.program, "--sim-client", amount], env={**control.env, **env}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=10, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_client_has_the_smaller_one_of_the_servers_limit_and_its_own(control: Control) -> None:
    own = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    assert client(control, "70G") == "allocated: no limit"
    assert client(control, "2G", **{own: "0=1G"}) == "out of memory: limit 1024M"

    control.say("set_default_device_pinned_mem_limit 0 20000M")
    assert client(control, "70G") == "allocated: no limit"  # it is for servers to come
    (pid,) = control.say("get_server_list").split()
    control.say(f"set_device_pinned_mem_limit {pid} 0 20000M")

    assert client(control, "20000M") == "allocated: limit 20000M"
    assert client(control, "20001M") == "out of memory: limit 20000M"
    assert client(control, "20001M", **{own: "0=70G"}) == "out of memory: limit 20000M"
    assert client(control, "2G", **{own: "0=1G"}) == "out of memory: limit 1024M"


@pytest.mark.parametrize("options", [[], ["-M"]])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_clients_of_two_users_wait_for_each_other_without_the_option(
    control: Control, options: list[str]
) -> None:
    control.say("quit")
    control.start(*options)
    control.folder.chmod(0o755)
    (control.folder / "control").chmod(0o777)
    words = [control.program, "--sim-client", "1G"]
    pipes = {"env": control.env, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(words, **pipes) as first,  # type: ignore[call-overload]
        subprocess.Popen(words, **pipes, user=5001) as second,  # type: ignore[call-overload]
    ):
        assert first.stdout.readline() == b"allocated: no limit\n"
        has_started = bool(select.select([second.stdout], [], [], 0.5 if not options else 10)[0])
        assert has_started == bool(options)
        first.communicate(timeout=10)
        assert second.stdout.readline() == b"allocated: no limit\n"
        second.communicate(timeout=10)
