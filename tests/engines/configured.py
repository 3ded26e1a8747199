# SPDX-License-Identifier: Apache-2.0
"""Checks that hold for every engine that `nvct runtime` configures."""

import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.engines.box import PROGRAMS
from tests.engines.checks import NODES, UUID
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd, Crio, Daemon, Done
from tests.engines.engines import CONFIG

Kind = TypeVar("Kind", bound=Daemon)

__all__ = ["DEVICE", "HANDLERS", "NODES", "ONE"]
ONE = "NVIDIA_VISIBLE_DEVICES=0"
DEVICE = "nvidia.com/gpu=0"
HANDLERS = {"nvidia": ONE, "nvidia-cdi": ONE, "nvidia-legacy": ONE}
"""The runtimes that configure registers, and a container's request for a GPU to each."""


def started(make: Callable[[], Kind]) -> Kind:
    """Return a started engine, or skip."""
    try:
        daemon = make()
        daemon.start()
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    return daemon


def cleaned(daemon: Kind) -> Kind:
    """Return an engine without nvct's changes, also after another test's changes."""
    is_changed = daemon.snapshot() != daemon.original
    if is_changed:
        daemon.reset()
    if is_changed or not daemon.is_as_started:
        daemon.restart()
    return daemon


def has_one_gpu(completed: Done) -> None:
    assert completed.returncode == 0, completed
    assert len(UUID.findall(completed.stdout)) == 1, completed


def has_no_gpu(completed: Done) -> None:
    """Assert that NODES found no GPU."""
    assert completed.stdout == "0\n", completed


DENY = '\n[nvct.policy]\ndefault = "deny"\nengine-devices = "checked"\n'


def starts_pods_without_a_gpu(daemon: Containerd | Crio) -> None:
    """Assert that a policy that denies everything refuses neither a pod nor its sandbox."""
    daemon.configure()
    daemon.restart()
    before = daemon.box.read(CONFIG)
    daemon.box.write(CONFIG, before + DENY)
    try:
        has_no_gpu(daemon.pod(NODES, Pod(handler="nvidia")))
        refused = daemon.pod(NODES, Pod(handler="nvidia", privileged=True))
        assert "denies engine devices" in refused.stderr, refused
    finally:
        daemon.box.write(CONFIG, before)


def is_idempotent(daemon: Daemon, *flags: str) -> None:
    daemon.configure(*flags)
    once = daemon.snapshot()
    assert once != daemon.original
    output = daemon.configure(*flags)
    assert "unchanged" in output.stderr, output
    assert daemon.snapshot() == once
    daemon.undo()
    assert daemon.snapshot() == daemon.original


def is_undone(daemon: Daemon, *flags: str) -> None:
    """Assert that undo restores the files exactly, and the engine runs with them."""
    daemon.configure(*flags)
    daemon.restart()
    daemon.undo()
    assert daemon.snapshot() == daemon.original
    daemon.restart()
    assert daemon.run("echo runs").stdout == "runs\n"


def does_as_planned(daemon: Daemon, *flags: str) -> None:
    """Assert that the diff that plan prints is the change that configure makes."""
    plan = daemon.nvct("plan", f"--runtime={daemon.engine}", *flags)
    assert plan.returncode == 0, plan
    assert daemon.snapshot() == daemon.original, "plan changed files"
    planned = [line[1:] for line in plan.stdout.splitlines() if _is_new(line)]
    daemon.configure(*flags)
    before, current = _lines(daemon.original), _lines(daemon.snapshot())
    assert planned
    assert [line for line in planned if line not in current] == []
    assert [line for line in current if line not in before and line not in planned] == []


def takes_the_incumbents_words(daemon: Daemon) -> None:
    """Assert that nvidia-ctk registers a runtime and prints the incumbent's messages."""
    path = f"--nvidia-runtime-path={PROGRAMS}/nvidia-container-runtime"
    completed = daemon.box.call(
        "nvidia-ctk", "runtime", "configure", f"--runtime={daemon.engine}", path
    )
    assert completed.returncode == 0, completed
    assert "Wrote updated config to /etc/" in completed.stderr, completed
    assert f"It is recommended that {daemon.engine} daemon be restarted." in completed.stderr, (
        completed
    )


def is_told_of(daemon: Daemon, config: str) -> None:
    """Assert that status names the running engine, the file that it reads, and our handlers."""
    completed = daemon.nvct("status", "--format=json")
    assert completed.returncode == 0, completed
    statuses = json.dumps(
        [one for one in json.loads(completed.stdout) if daemon.engine in json.dumps(one)]
    )
    for word in (config, *HANDLERS):
        assert f'"{word}"' in statuses, (word, statuses)


def _is_new(line: str) -> bool:
    return line.startswith("+") and not line.startswith("+++ ")


def _lines(snapshot: dict[str, tuple[str, int, int, bytes]]) -> list[str]:
    return [line for file in snapshot.values() for line in file[3].decode().splitlines()]
