# SPDX-License-Identifier: Apache-2.0
"""nvct doctor: every check on a host, what it prints, and what it mends."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvct.cli import doctor as command
from nvct.cli.doctor import text
from nvct.compile import live_host
from nvct.config import load
from nvct.config.model import Config
from nvct.doctor import checks, inside, mends
from nvct.doctor.model import Finding, Part
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine import docker_host
from nvct.engine.model import Engine
from nvct.errors import NvmlError
from nvct.host.model import Inventory
from nvct.host.roots import Roots
from tests.support.shim_lab import Lab
from tests.unit.engine.docker_lab import DockerLab

PAGE = Path(__file__).parents[3] / "docs/doctor.md"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver()
    return lab


def node(lab: Lab, **more: object) -> Node:
    settings = load.load(str(lab.config_toml))
    return Node(settings=settings, env=lab.env, booted=False, **more)  # type: ignore[arg-type]


def doctor(lab: Lab, *words: str) -> tuple[int, str]:
    done = lab.invoke("nvct", "doctor", *words)
    return done.exit_code, done.output


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_each_check_says_something_on_a_healthy_host(check: checks.Check, lab: Lab) -> None:
    if check.name == "folders" and os.geteuid():
        pytest.skip("needs root: the folders of specifications are this user's")
    part = check.look(node(lab))

    assert part.lines
    errors = [one.reason for one in part.findings if one.severity == "error"]
    # The library of this host is a file with a header, and no code.
    assert errors == ([Reason.DriverNotWorking] if check.name == "nvml" else [])


def test_names_are_words_and_no_name_is_taken_twice() -> None:
    names = [check.name for check in checks.CHECKS]
    assert len(set(names)) == len(names)
    assert all(name.isalpha() and name.islower() for name in names)
    assert all(check.question.endswith("?") for check in checks.CHECKS)


def test_the_answer_names_what_is_wrong_and_what_to_do(lab: Lab) -> None:
    lab.spec(kind="acme.com/nic", devices={"0": {"deviceNodes": [{"path": "/dev/no-such"}]}})

    status, said = doctor(lab, "--only", "specs,plans")

    assert status == 1
    assert "LOOK specs" in said
    assert "/dev/no-such" in said
    assert "do: Run `nvidia-ctk system create-device-nodes --all`." in said
    assert "2 checks, 1 with a fault" in said


def test_an_unknown_check_is_refused_with_the_names_there_are(lab: Lab) -> None:
    done = lab.invoke("nvct", "doctor", "--only", "gpu")

    assert "no check has the name 'gpu'" in str(done.exception)


def test_security_looks_only_at_what_protects_the_host(lab: Lab) -> None:
    _, said = doctor(lab, "--security", "--json")

    assert [one["name"] for one in json.loads(said)] == [
        "hooks",
        "folders",
        "toolkit",
        "management",
        "images",
    ]


def test_the_page_lists_every_check_with_its_question_and_every_mend() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (\w+)\n\n(.*\?)\n\n- looks at: .", page, re.MULTILINE)
    assert sections == [(check.name, check.question) for check in checks.CHECKS]
    linked = set(re.findall(r"\[(\w+)\]\(reasons\.md#", page))
    assert linked <= {reason.name for reason in Reason}

    mended = re.findall(r"^\| (`.*`) \| `nvct (.*)` \|$", page, re.MULTILINE)
    told = {
        name: tuple(words.split()) for names, words in mended for name in re.findall(r"\w+", names)
    }
    assert told == {reason.name: words for reason, words in mends.COMMANDS.items()}


def test_a_config_toml_that_cannot_be_read_is_a_fault_beside_the_other_checks(lab: Lab) -> None:
    lab.config_toml.write_text("no toml")

    status, said = doctor(lab, "--only", "config,folders", "--json")

    config, folders = json.loads(said)
    assert status == 1
    assert config["findings"][0]["reason"] == "ConfigurationInvalid"
    assert "is not TOML" in config["lines"][0]
    assert folders["lines"]


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("nvidia-container-runtime", "mode", "foo"),
        ("nvidia-container-cli", "ldconfig", "/sbin/ldconfig"),
    ],
)
def test_a_value_that_creates_refuse_is_a_fault_of_doctor_and_status(
    table: str, key: str, value: object, lab: Lab
) -> None:
    lab.keys[table][key] = value
    lab.configure()
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")
    assert lab.create().status != 0

    status, said = doctor(lab, "--only", "config", "--json")
    shown = lab.invoke("nvct", "status")

    (told,) = json.loads(said)
    assert status == shown.exit_code == 1
    assert told["findings"][0]["reason"] == "ConfigurationInvalid"
    assert f"{table}.{key} cannot be" in told["lines"][1]
    assert f"{table}.{key} cannot be" in shown.output


def test_an_engine_without_a_low_level_runtime_is_a_fault(lab: Lab) -> None:
    lab.configure(runtimes=["/no/such/runc"])
    (config,) = checks.named(["config"])

    without = config.look(node(lab))
    part = config.look(node(lab, engines=[Engine(engine="docker")]))

    assert without.health == "ok"
    assert [one.reason for one in part.findings] == [Reason.RuntimeProgramMissing]
    assert "none of the low-level runtimes /no/such/runc is installed" in part.lines[1]


def lines_of(part: Part, width: int = 0) -> list[str]:
    return [*text([part], is_root=True, width=width)]


def test_what_to_do_follows_the_lines_that_need_it() -> None:
    reset, reboot = "Reset it with `nvidia-smi --gpu-reset`.", "Reboot."
    found = tuple(
        Finding(Reason.DeviceUnhealthy, "error", name, remedy=remedy)
        for name, remedy in (("a", reset), ("b", reset), ("c", reboot))
    )
    part = Part(name="health", health="attention", lines=("a", "b", "c"), findings=found)

    assert lines_of(part)[:5] == [
        "LOOK health  a",
        "             b",
        f"             do: {reset}",
        "             c",
        "             do: Reboot.",
    ]
    assert f"               {reset[12:]}" not in lines_of(part, 60)


def test_a_line_that_says_what_to_do_is_not_said_twice() -> None:
    remedy = "reboot, or reload the nvidia modules"
    finding = Finding(Reason.DriverNotFound, "error", "another", remedy=remedy)
    part = Part(
        name="driver", health="attention", lines=(f"another; {remedy}",), findings=(finding,)
    )

    assert lines_of(part)[1:] == ["", "1 check, 1 with a fault"]


def test_what_may_not_be_seen_has_a_mark_and_is_counted() -> None:
    finding = Finding(Reason.GpuLostAtReload, "unknown", "x")
    part = Part(name="reload", health="absent", lines=("x",), findings=(finding,))

    assert lines_of(part) == [
        "?    reload  x", "", "1 check, none with a fault, 1 incomplete"
    ]  # fmt: skip


def test_nobody_waits_twice_for_a_driver_that_hangs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(_settings: Config) -> Inventory:
        raise NvmlError("NVML hangs: process 7 waits in the driver", hint="reboot")

    monkeypatch.setattr(live_host, "discover", hangs)
    host = node(lab)
    host.session = SimpleNamespace(mig=lambda: pytest.fail("asked again"))  # type: ignore[assignment]

    driver, nvml = (check.look(host) for check in checks.named(["driver", "nvml"]))

    assert [one.reason for one in driver.findings] == [Reason.NvmlHung]
    assert nvml.findings == driver.findings
    assert nvml.lines == ("NVML hangs: process 7 waits in the driver",)


def test_who_waits_for_a_slow_driver_is_told_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = doctor(lab, "--only", "driver")
    monkeypatch.setattr(command, "PATIENCE_S", 0.05)
    look = live_host.discover

    def slowly(settings: Config) -> Inventory:
        time.sleep(0.5)
        return look(settings)

    monkeypatch.setattr(live_host, "discover", slowly)
    slow = doctor(lab, "--only", "driver")
    silent = lab.invoke("nvct", "--quiet", "doctor", "--only", "driver")

    assert command.WAITS not in quick[1] + silent.output
    assert slow[1].count(command.WAITS) == 1
    assert slow[0] == quick[0]


def test_all_checks_together_discover_the_host_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    discover, looked = live_host.discover, []

    def counted(settings: Config) -> Inventory:
        looked.append(settings)
        return discover(settings)

    monkeypatch.setattr(live_host, "discover", counted)
    host = node(lab)
    for check in checks.CHECKS:
        check.look(host)

    assert looked == [host.settings]


@contextlib.contextmanager
def as_user() -> Iterator[None]:
    """Act as another user than root, who may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_agent_that_may_not_be_asked_is_not_said_to_be_missing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o000)
    monkeypatch.setattr(checks, "AGENT_DIR", str(folder))
    (agent,) = checks.named(["agent"])
    host = node(lab)

    with as_user():
        part = agent.look(host)

    assert part.lines == (f"{folder} cannot be read: Permission denied",)
    assert part.health == "absent"


@pytest.mark.parametrize("pids", [inside.HOST_PIDS, "pid:[4026532000]"])
def test_a_virtual_machine_made_of_an_image_is_no_container(pids: str, tmp_path: Path) -> None:
    """Its root still has .dockerenv, and is that of the kernel's first process."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/1").mkdir()
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "proc/self/ns/pid").symlink_to(pids)
    (tmp_path / "proc/1/root").symlink_to(tmp_path)

    assert inside.is_container({}, str(tmp_path)) == (pids != inside.HOST_PIDS)


@pytest.mark.parametrize(("root", "severity"), [("/", "note"), ("/host", "error")])
def test_a_container_needs_no_nodes_of_gpus_that_it_was_not_given(
    root: str, severity: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod of the agent looks at the host's folder, where a missing node is one."""
    monkeypatch.setattr(inside, "MARKS", ("proc",))
    monkeypatch.setattr(inside, "HOST_PIDS", "another")
    looked_at = node(lab)
    looked_at.roots = Roots(driver_root=root, dev_root=root)
    missing = Finding.each(Reason.DeviceNodesMissing, "error", ["/dev/nvidia3 does not exist"])

    part = inside.of_own_gpus(Part.of("8 GPUs", findings=missing), looked_at)

    assert [one.severity for one in part.findings] == [severity]
    assert part.health == ("ok" if severity == "note" else "attention")


def test_docker_is_not_said_to_be_well_where_no_dockerd_is_seen(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = DockerLab(tmp_path).gpu().program("/usr/bin/docker").look()
    seen = replace(host, hidden="/proc hides processes of others")
    monkeypatch.setattr(docker_host, "look", lambda *_: seen)
    (docker,) = checks.named(["docker"])

    part = docker.look(node(lab, engines=[Engine(engine="docker", config="/etc/docker/x.json")]))

    assert part.health == "absent"
    assert "no dockerd found that serves" in part.lines[0]
    assert [finding.severity for finding in part.findings] == ["unknown"]
