# SPDX-License-Identifier: Apache-2.0
"""What nvct status says of each part: there and right, not there, to be looked at."""

import shutil
from pathlib import Path

import pytest

from nvct.compile import refresh
from nvct.config import load
from nvct.config.model import Config
from nvct.doctor import parts
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine.model import Engine
from nvct.engine.status import Status
from tests.support.shim_lab import Lab

pytestmark = pytest.mark.usefixtures("driver")


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
    told = f"{key} has no effect: no such key exists; did you mean {similar}?"
    assert part.lines[1:] == (told,)


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


def test_plans_are_fresh_until_the_host_changes(lab: Lab) -> None:
    assert parts.plans(node(lab)).health == "absent"
    refresh.own_plan(str(lab.config_toml), str(lab.run_dir))
    assert parts.plans(node(lab)).lines[-1].endswith(", fresh")
    lab.configure("# changed\n")
    assert "has changed" in parts.plans(node(lab)).lines[-1]


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
        (CHECKED, ("docker",), ["the policy applies to docker's containers only if"]),
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
