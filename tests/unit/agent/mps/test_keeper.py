# SPDX-License-Identifier: Apache-2.0
"""The keeper with the stand-in for nvidia-cuda-mps-control, and with a simulated nvidia-smi."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.mps import control, keeper
from nvct.agent.mps.control import Control
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.agent.mps.place import Place
from nvct.errors import HostError
from nvct_sim.native import build
from tests.support.nvml_node import CACHE, NvmlNode, gpu_uuid, make_node

GPU = "nvidia.com/gpu"
DAEMON = Daemon(
    resource=GPU, uuids=(gpu_uuid(0), gpu_uuid(1)), limits={"0": 20480, "1": 900}, percentage=25
)
PERCENTAGE = "get_default_active_thread_percentage"
MODES = ("--query-gpu=compute_mode", "--format=csv,noheader")


class Lab:
    """A node, and a folder for MPS."""

    def __init__(self, folder: Path, node: NvmlNode) -> None:
        self.folder, self.node = folder, node
        self.place = Place(str(folder), is_private=False)

    def say(self, command: str) -> str:
        return self.run(said=f"{command}\n")

    def run(self, *words: str, said: str = "") -> str:
        """Run the control program; files, not pipes, for a daemon would keep a pipe open."""
        with tempfile.TemporaryFile("w+") as output:
            subprocess.run(
                ["nvidia-cuda-mps-control", *words], env=self.place.environment(GPU), input=said,
                stdout=output, text=True, check=False, timeout=10,
            )  # fmt: skip
            output.seek(0)
            return output.read().strip()

    def allocate(self, amount: str) -> str:
        """Return what a client is told that allocates memory."""
        return self.run("--sim-client", amount)

    def modes(self) -> list[str]:
        return self.node.smi(*MODES).stdout.splitlines()

    def pid(self) -> int:
        self.say(PERCENTAGE)  # it has written its number before it answers
        pid = (self.folder / GPU / "pipe/nvidia-cuda-mps-control.pid").read_text().split()[-1]
        return int(pid)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    built = build.build(CACHE)
    node = make_node(tmp_path / "node", built)
    monkeypatch.setenv("PATH", f"{built['nvidia-cuda-mps-control'].parent}:{os.environ['PATH']}")
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        lab = Lab(Path(folder), node)
        yield lab
        lab.say("quit")


@pytest.fixture
def kept(lab: Lab) -> Iterator[keeper.Keeper]:
    kept = keeper.Keeper(lab.place)
    kept.want([DAEMON], starts=True)
    assert kept.state == {GPU: keeper.NOT_YET}
    look(kept)
    yield kept
    kept.want([], starts=True)
    kept.settle()


def look(kept: keeper.Keeper) -> None:
    kept.look()
    kept.settle()


def test_a_daemon_is_started_with_its_limits_in_exclusive_mode(
    lab: Lab, kept: keeper.Keeper
) -> None:
    assert kept.state == {GPU: ""}
    assert lab.say(PERCENTAGE) == "25.0"
    limits = [lab.say(f"get_default_device_pinned_mem_limit {n}") for n in range(3)]
    assert limits == ["20G", "900M", ""]
    assert lab.modes() == ["Exclusive_Process", "Exclusive_Process", "Default", "Default"]


def test_a_daemon_that_is_not_wanted_any_more_ends(
    lab: Lab, kept: keeper.Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_ends: list[str] = []
    end_child = Control.end_child

    def look_and_end(control: Control) -> None:
        as_it_ends.extend(lab.modes())
        end_child(control)

    monkeypatch.setattr(Control, "end_child", look_and_end)
    kept.want([], starts=True)
    kept.settle()

    assert kept.state == {}
    # Later than this, the mode could be that of another keeper's daemon.
    assert set(as_it_ends) == {"Default"}
    assert lab.say(PERCENTAGE).startswith("Cannot find")
    assert set(lab.modes()) == {"Default"}


def test_one_that_ends_is_started_again(lab: Lab, kept: keeper.Keeper) -> None:
    os.kill(lab.pid(), signal.SIGKILL)
    while not lab.say(PERCENTAGE).startswith("Cannot find"):
        time.sleep(0.01)

    states = list[str]()
    while not states or states[-1] != "":
        look(kept)
        states.append(kept.state[GPU])

    assert keeper.ENDED in states  # so that its devices are unhealthy for a moment
    assert lab.say(PERCENTAGE) == "25.0"


def test_limits_that_root_in_a_container_has_raised_are_set_back(
    lab: Lab, kept: keeper.Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.allocate("21G") == "out of memory: limit 20480M"
    (server,) = lab.say("get_server_list").split()
    lab.say("set_default_device_pinned_mem_limit 0 80G")
    lab.say(f"set_device_pinned_mem_limit {server} 0 80G")
    look(kept)
    assert lab.allocate("21G") == "allocated: limit 81920M"

    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + keeper.AGAIN_S)
    look(kept)

    assert kept.state == {GPU: ""}
    assert lab.allocate("21G") == "out of memory: limit 20480M"
    assert lab.say("get_default_device_pinned_mem_limit 0") == "20G"


def test_a_daemon_of_another_process_gets_the_limits_also_for_clients_after_an_early_one(
    lab: Lab,
) -> None:
    """Its server has the limits of the moment when it started, which were none."""
    pipe, log = lab.place.folders(GPU)
    for folder in (pipe, log):
        os.makedirs(folder)
    lab.run("-d")
    pid = lab.pid()
    assert lab.allocate("70G") == "allocated: no limit"
    early = keeper.Keeper(lab.place)
    early.want([DAEMON], starts=True)
    look(early)
    assert (early.state, lab.pid()) == ({GPU: ""}, pid)
    assert lab.say("get_default_device_pinned_mem_limit 1") == "900M"
    assert lab.allocate("70G") == "out of memory: limit 20480M"
    early.want([], starts=True)
    early.settle()


def test_limits_that_somebody_has_changed_are_set_again(lab: Lab, kept: keeper.Keeper) -> None:
    lab.say("set_default_active_thread_percentage 100")

    look(kept)

    assert (kept.state, lab.say(PERCENTAGE)) == ({GPU: ""}, "25.0")


def test_one_who_may_not_start_daemons_waits_for_right_limits(
    lab: Lab, kept: keeper.Keeper
) -> None:
    other = keeper.Keeper(lab.place)
    other.want([DAEMON], starts=False)
    lab.say("set_default_device_pinned_mem_limit 0 5000M")
    look(other)
    assert other.state == {GPU: "the memory limit of GPU 0 is 4G, not 20480M"}
    lab.say("set_default_device_pinned_mem_limit 0 20480M")
    look(other)
    assert other.state == {GPU: ""}

    kept.want([], starts=True)
    kept.settle()
    look(other)

    assert other.state == {GPU: keeper.NO_DAEMON}


def test_a_daemon_that_cannot_start_is_tried_again_later(lab: Lab) -> None:
    gone = Daemon(resource=GPU, uuids=(gpu_uuid(9),), percentage=50)
    kept = keeper.Keeper(lab.place)
    kept.want([gone], starts=True)

    look(kept)

    assert kept.state == {GPU: "nvidia-smi has failed: No devices were found"}
    look(kept)
    assert kept.state == {GPU: "nvidia-smi has failed: No devices were found"}
    kept.want([], starts=True)


def test_without_the_program_the_reason_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = keeper.Keeper(Place(str(tmp_path), is_private=False))
    kept.want([DAEMON], starts=True)

    look(kept)

    assert kept.state == {GPU: "nvidia-smi cannot be started: No such file or directory"}
    kept.want([], starts=True)


@pytest.fixture
def process(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[keeper.KeeperProcess]:
    monkeypatch.setattr(keeper, "of_environment", lambda _: lab.place)
    process = keeper.KeeperProcess()
    yield process
    process.close()


def test_the_process_answers_at_once_and_stops_its_daemons(
    lab: Lab, process: keeper.KeeperProcess
) -> None:
    assert process.exchange(Wanted()) == {}
    wanted = Wanted(daemons=(DAEMON,))
    # The keeper may not have read the request yet, or have done what it says already.
    assert process.exchange(wanted) in ({}, {GPU: keeper.NOT_YET}, {GPU: ""})
    assert _settles(process, wanted, {GPU: ""})
    assert (lab.folder / "shm").stat().st_mode & 0o7777 == 0o1777
    nothing = Wanted()
    first = process.exchange(nothing).get(GPU, "")
    assert first in (keeper.NOT_YET, keeper.ENDING, "")
    assert _settles(process, nothing, {})

    assert lab.say(PERCENTAGE).startswith("Cannot find")


def test_it_stops_its_daemons_though_all_processes_get_a_signal(
    lab: Lab, process: keeper.KeeperProcess
) -> None:
    """As systemd ends a service."""
    wanted = Wanted(daemons=(DAEMON,))
    process.exchange(wanted)
    assert _settles(process, wanted, {GPU: ""})
    assert process.pid is not None

    os.kill(process.pid, signal.SIGTERM)
    process.close()

    assert lab.say(PERCENTAGE).startswith("Cannot find")
    assert set(lab.modes()) == {"Default"}


def _settles(process: keeper.KeeperProcess, wanted: Wanted, state: dict[str, str]) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if process.exchange(wanted) == state:
            return True
        time.sleep(0.02)
    return False


STAND_IN = """#!/bin/sh
case $CUDA_MPS_PIPE_DIRECTORY in
*mute*) exec sleep 60;;
*endless*) exec yes;;
esac
exec {program} "$@"
"""


@pytest.fixture
def hostile(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Replace the sockets of some daemons, as their pods can."""
    program = shutil.which("nvidia-cuda-mps-control")
    script = tmp_path / "hostile/nvidia-cuda-mps-control"
    script.parent.mkdir()
    script.write_text(STAND_IN.format(program=program))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return lab


@pytest.mark.usefixtures("hostile")
def test_daemons_that_do_not_answer_delay_no_other(
    process: keeper.KeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper.KeeperProcess, "STOP_S", 0.1)
    mute = [Daemon(resource=f"nvidia.com/mute{n}", uuids=()) for n in range(3)]
    process.exchange(Wanted(daemons=tuple(mute)))
    time.sleep(0.5)  # it waits for them
    began = time.monotonic()

    wanted = Wanted(daemons=(*mute, DAEMON))
    while process.exchange(wanted)[GPU] != "":
        assert time.monotonic() - began < control.START_S
        time.sleep(0.02)

    assert process.exchange(wanted)[mute[0].resource] != ""
    began = time.monotonic()
    while GPU in process.exchange(Wanted(daemons=tuple(mute))):
        assert time.monotonic() - began < control.START_S
        time.sleep(0.02)


def test_an_answer_without_end_is_cut(hostile: Lab) -> None:
    control = Control(Daemon(resource="nvidia.com/endless", uuids=()), hostile.place)

    with pytest.raises(HostError, match="answers with more than 4096 bytes"):
        control.difference(thorough=False)
