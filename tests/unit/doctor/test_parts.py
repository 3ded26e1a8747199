# SPDX-License-Identifier: Apache-2.0
"""What nvct status says of each part: there and right, not there, to be looked at."""

from __future__ import annotations

import shutil

import pytest

from nvct.compile import refresh
from nvct.config import load
from nvct.config.model import Config
from nvct.container.plan.store import Store
from nvct.doctor import parts
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine.model import Engine
from nvct.engine.status import Status
from nvct.errors import HostError
from nvct.version import __version__
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from nvct.doctor.model import Part


@pytest.fixture
def lab() -> Generator[Lab]:
    shim_lab = Lab()
    shim_lab.driver(gpus=2)
    yield shim_lab
    shim_lab.remove()


def node(lab: Lab, **given: object) -> Node:
    """Return a lab as the checks look at it; what it has is read when a check asks for it."""
    host = Node(settings=load.load(str(lab.config_toml)), env=lab.env)
    vars(host).update(given)
    return host


def test_keys_without_effect_are_reported_and_alarm_nobody(lab: Lab) -> None:
    lab.keys["nvidia-container-cli"]["debug"] = "/var/log/x"
    lab.configure()

    part = parts.configuration(node(lab))

    assert part.health == "ok"
    assert part.lines[0] == str(lab.config_toml)
    assert part.lines[1].startswith("nvidia-container-cli.debug has no effect: ")
    assert len(part.lines) == 2


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_a_misspelled_key_is_reported(mark: bytes, lab: Lab) -> None:
    lab.configure(modus="cdi")
    lab.config_toml.write_bytes(mark + lab.config_toml.read_bytes())

    part = parts.configuration(node(lab))

    assert part.health == "ok"
    key, similar = "nvidia-container-runtime.modus", "nvidia-container-runtime.mode"
    told = f"{key} has no effect: there is no such key; did you mean {similar}?"
    assert part.lines[1:] == (told,)


def test_a_value_that_was_replaced_is_to_be_looked_at(lab: Lab) -> None:
    lab.configure(**{"log-level": "loud"})

    assert parts.configuration(node(lab)).health == "attention"
    assert parts.configuration(Node(settings=Config(), env={})).health == "absent"


def test_a_gpu_without_a_node_is_a_fault_of_its_own(lab: Lab) -> None:
    part = parts.driver(node(lab))
    assert part.lines[0].endswith(", 2 GPUs")
    (lab.home / "dev/nvidia1").unlink()
    part = parts.driver(node(lab))
    (finding,) = part.findings
    assert finding.reason.name == "DeviceNodesMissing"
    assert finding.evidence.endswith("dev/nvidia1 is no device node: GPU 1 is left out")


def test_a_module_without_libraries_is_something_to_look_at_and_no_driver_is_not(
    lab: Lab,
) -> None:
    shutil.rmtree(lab.home / "driver/usr")
    part = parts.driver(node(lab))

    told = part.to_dict()

    assert part.health == "attention"
    assert told["lines"] == list(part.lines)
    (finding,) = part.findings
    assert told["findings"] == [finding.to_dict()]
    assert finding.to_dict()["reason"] == "DriverNotFound"
    assert f"{finding.evidence}; {finding.remedy}" == part.lines[0]
    shutil.rmtree(lab.home / "proc/driver")
    host = node(lab)
    assert (parts.driver(host).health, host.inventory) == ("absent", None)


def specs(lab: Lab) -> Part:
    """Check the specifications of a lab beside a host without a driver."""
    return parts.specs(node(lab, discovery=HostError("x")))


def test_hooks_are_a_part_of_their_own(lab: Lab) -> None:
    assert parts.hooks(node(lab)).health == "absent"
    lab.hook.write_text(f"#!/bin/sh\necho nvct: {__version__}\n", encoding="utf-8")
    hook = {"hookName": "createContainer", "path": str(lab.hook)}
    lab.spec(kind="acme.com/card", devices={"x": {"hooks": [hook]}})

    part = parts.hooks(node(lab))

    assert [one.reason.name for one in part.findings] == ["HookWithoutEnvironment"]
    assert "has no env, so an image could run code in it" in part.lines[0]
    assert specs(lab).health == "ok"


def test_specs_absent_right_drifted_and_damaged(lab: Lab) -> None:
    assert parts.specs(node(lab)).health == "absent"
    damaged = lab.home / "cdi/x.json"
    damaged.write_text("{", encoding="utf-8")
    assert specs(lab).health == "attention"
    damaged.unlink()
    lab.spec(kind="acme.com/card")
    assert specs(lab).health == "ok"
    lab.spec(name="gone.json", kind="acme.com/other", devices={
        "x": {"mounts": [{"hostPath": "/no/such/file", "containerPath": "/x"}]}
    })  # fmt: skip
    part = specs(lab)
    assert part.health == "attention"
    assert any("/no/such/file" in line for line in part.lines)


def test_plans_are_fresh_until_the_host_changes(lab: Lab) -> None:
    assert parts.plans(node(lab)).health == "absent"
    refresh.own_plan(str(lab.config_toml), str(lab.run_dir))
    assert parts.plans(node(lab)).lines[-1].endswith(", fresh")
    lab.configure("# changed\n")
    assert "has changed" in parts.plans(node(lab)).lines[-1]


def test_what_is_no_plan_is_said_to_be_made_anew(lab: Lab) -> None:
    Store(str(lab.run_dir)).write("own.plan", b"{}")
    assert parts.plans(node(lab)).lines == ("own: damaged; the next container replaces it",)


def test_no_view_is_nothing_wrong(lab: Lab) -> None:
    assert parts.farm(node(lab)).health == "absent"


def systemd(*, runs: bool = True) -> Node:
    return Node(settings=Config(), env={}, booted=runs)


def _systemctl(folder: Path, active: str, enabled: str, load_state: str = "loaded") -> str:
    path = folder / "systemctl"
    path.write_text(
        f"#!/bin/sh\necho LoadState={load_state}\necho ActiveState={active}\n"
        f"echo UnitFileState={enabled}\necho Result=exit-code\n", encoding="utf-8",
    )  # fmt: skip
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("active", "health"), [("active", "ok"), ("inactive", "attention"), ("failed", "attention")]
)
def test_units_that_run_and_that_do_not(tmp_path: Path, active: str, health: str) -> None:
    part = parts.units(systemd(), _systemctl(tmp_path, active, "enabled"))
    assert part.health == health
    assert part.lines[0].startswith(f"nvidia-cdi-refresh.path: {active}, enabled")


def test_without_systemd_there_are_no_units(tmp_path: Path) -> None:
    assert parts.units(systemd(runs=False)).health == "absent"
    gone = parts.units(systemd(), _systemctl(tmp_path, "", "", "not-found"))
    assert gone.lines[0].endswith("not installed")
    assert "not installed" in parts.units(systemd(), "/no/such").lines[0]


RULES = '[nvct.policy]\ndefault = "deny"\n'
CHECKED = RULES + 'engine-devices = "checked"\n'


@pytest.mark.parametrize(
    ("text", "others", "evidence"),
    [
        ("", ("docker",), []),
        (RULES, (), ["the policy does not apply to devices that engines give"]),
        (CHECKED, (), []),
        (CHECKED, ("docker",), ["the policy sees no devices of docker's containers unless"]),
    ],
)
def test_a_gap_of_the_policy_is_named(
    text: str, others: tuple[str, ...], evidence: list[str]
) -> None:
    host = Node(settings=load.from_toml(text.encode(), "").replaced(path=""), env={})
    host.statuses = [Status(engine=Engine(engine=name)) for name in others]
    found = [
        finding.evidence
        for finding in parts.configuration(host).findings
        if finding.reason is Reason.EngineDevicesUnchecked
    ]
    assert len(found) == len(evidence)
    assert all(text.startswith(start) for text, start in zip(found, evidence, strict=True))
