# SPDX-License-Identifier: Apache-2.0
"""The NVLink fabric and the fabric manager on odd hosts: what cannot be seen is not blamed."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvct.doctor import hardware
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import GpuReadiness
from tests.unit.doctor import broken_nodes as hosts


def in_a_container(home: Path) -> None:
    """Make procfs that of another PID namespace."""
    (home / "proc/self/ns").mkdir(parents=True)
    (home / "proc/self/ns/pid").touch()


def test_a_manager_that_is_not_seen_is_not_blamed(tmp_path: Path) -> None:
    node = hosts.switches(tmp_path, manager=False)
    in_a_container(tmp_path)

    part = hardware.fabric(node)

    assert (part.health, [one.severity for one in part.findings]) == ("ok", ["unknown"])
    assert "another PID namespace" in part.lines[0]


def test_each_gpu_that_waits_is_named(tmp_path: Path) -> None:
    gpus = tuple(GpuReadiness(bus_id=f"00000000:{n}0:00.0", fabric=2) for n in range(1, 7))
    part = hardware.fabric(hosts.node_of(tmp_path, readiness=gpus))

    assert part.lines == (
        (
            "GPUs 0000:10:00.0, 0000:20:00.0, 0000:30:00.0, 0000:40:00.0 and 2 more: the fabric is "
            "In Progress"
        ),
    )
    assert part.findings[0].severity == "warning"  # the switches are another host's


@pytest.mark.parametrize("state", [None, 0, 1])
def test_gpus_without_a_fabric_need_none(state: int | None, tmp_path: Path) -> None:
    part = hardware.fabric(hosts.node_of(tmp_path, readiness=hosts.readiness(fabric=state)))
    assert part.findings == ()
    assert state != 1 or part.lines == ("1 GPU without a fabric to register with",)


@pytest.mark.parametrize("printed", ["", "usage: x", "\udcff", "5.8.0"])
def test_a_manager_that_does_not_tell_its_release(printed: str, tmp_path: Path) -> None:
    node = hosts.switches(tmp_path)
    program = hosts.write(tmp_path, "bin/nv-fabricmanager")
    program.chmod(0o755)
    (tmp_path / "proc/900/root").symlink_to("/")

    part = hardware.fabric(node, lambda *_: hosts.completed(printed), (str(program.parent),))

    assert part.findings == ()


@pytest.mark.parametrize("at_the_same_path", [False, True])
def test_a_manager_in_a_container_has_its_own_program(
    at_the_same_path: bool, tmp_path: Path
) -> None:
    program = hosts.write(tmp_path, "bin/nv-fabricmanager")
    program.chmod(0o755)
    node = hosts.switches(tmp_path)
    if at_the_same_path:
        hosts.write(tmp_path, f"proc/900/root{program}")

    part = hardware.fabric(
        node, lambda *_: hosts.completed("560.1.2"),
        (str(program.parent),),
    )  # fmt: skip

    assert part.findings == ()


def test_after_an_update_of_the_driver_a_reboot_is_advised(tmp_path: Path) -> None:
    (finding,) = hosts.a_manager_of_another_release(tmp_path, True).findings  # noqa: FBT003

    assert finding.to_dict()["remedy"].startswith("After an update, reboot")


def test_a_users_process_is_no_fabric_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hosts.switches(tmp_path)
    os.chown(tmp_path / "proc/900", 1234, 1234)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert hardware.fabric(node).health == "attention"


@pytest.mark.parametrize(
    ("readiness", "first_s", "words"),
    [
        ((), None, "does not exist"),
        (hosts.readiness(persistence=False), 0.2, "first answer took 0.2 s"),
        (hosts.readiness(persistence=None), 3.0, "first answer took 3.0 s"),
    ],
)
def test_persistence_is_a_fault_only_if_the_start_was_slow(
    readiness: tuple[GpuReadiness, ...], first_s: float | None, words: str, tmp_path: Path
) -> None:
    hosts.write(tmp_path, "sys/module/nvidia/version", "580.159.04\n")

    part = hardware.persistence(hosts.started(tmp_path, readiness, first_s))

    assert [finding.severity for finding in part.findings] == ["note"]
    assert words in part.lines[0]


def test_the_daemons_socket_is_enough(tmp_path: Path) -> None:
    hosts.write(tmp_path, "sys/module/nvidia/version", "580.159.04\n")
    hosts.write(tmp_path, "run/nvidia-persistenced/socket")

    part = hardware.persistence(hosts.started(tmp_path, hosts.readiness(persistence=False), 9.0))

    assert part.findings == ()


def test_an_nvml_that_answers_late_is_said_to(tmp_path: Path) -> None:
    session = SimpleNamespace(first_answer_s=8.7)

    part = hardware.nvml(hosts.node_of(tmp_path, session=session, nvml=MigState(gpus=())))

    assert part.lines == ("answers about 0 GPUs, the first time after 8.7 s",)
