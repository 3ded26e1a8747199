# SPDX-License-Identifier: Apache-2.0
"""The catalogue of reasons: each is found on a host that has it, documented, and mendable."""

import re
import textwrap
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nvct import errors
from nvct.cdi.check.conflicts import Kind
from nvct.cli.main import program
from nvct.doctor import docker, messages, specifications
from nvct.doctor.reasons import Reason
from nvct.version import __version__
from tests.support.explained import VISIBLE, explained
from tests.support.shim_lab import Lab
from tests.unit.doctor import broken_hosts
from tests.unit.doctor.broken_nodes import BUILDERS
from tests.unit.doctor.test_agent_status import FIRST_FAULTS

DOCUMENT = Path(__file__).parents[3] / "docs/reasons.md"
LIST = "\n<!-- made from nvct/doctor/reasons.py -->\n"


def test_for_every_reason_there_is_a_host_that_has_it() -> None:
    """Also in test_broken_nodes.py, test_docker.py and test_agent_status.py."""
    of_nodes = {Reason[reason] for reason, *_ in BUILDERS.values()}
    of_agents = {reason for _, reason, *_ in FIRST_FAULTS}
    assert {*Reason} == {*broken_hosts.CASES, *of_nodes, *of_agents, *docker.CAUSES}


@pytest.mark.parametrize("reason", broken_hosts.CASES, ids=lambda reason: reason.name)
def test_a_reason_is_found_on_a_host_that_has_it(reason: Reason, lab: Lab) -> None:
    found = broken_hosts.CASES[reason](lab)

    (first, *_) = [finding for finding in found if finding["reason"] == reason.name]
    assert first["severity"] in {"note", "warning", "error"}
    assert first["evidence"]
    assert first["remedy"] or first["severity"] == "note"


def test_a_healthy_host_has_no_fault(lab: Lab) -> None:
    lab.driver()
    lab.configure()
    lab.hook.write_text(f"#!/bin/sh\necho nvct: {__version__}\n", encoding="utf-8")
    path = lab.home / "cdi/nvidia.yaml"
    words = ["--config", str(lab.config_toml), "cdi", "generate", "--output", str(path)]
    assert CliRunner().invoke(program("nvct"), words).exit_code == 0
    lab.asks(VISIBLE + "0")

    found = [*broken_hosts.node(lab), *broken_hosts.driver_root(lab), *explained(lab)["findings"]]

    assert [one for one in found if one["severity"] not in {"ok", "note"}] == []


def test_a_create_that_fails_for_want_of_a_node_names_that(lab: Lab) -> None:
    lab.driver(gpus=1)
    (lab.home / "dev/nvidia0").unlink()
    lab.asks(VISIBLE + "0")

    told = explained(lab)

    assert told["error"]["code"] == "host"
    assert told["findings"] == [
        {
            "reason": "DeviceNodesMissing",
            "severity": "error",
            "evidence": told["error"]["message"],
            "remedy": told["error"]["hint"],
        }
    ]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_reason_has_an_id_a_question_evidence_and_a_remedy(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+)+", reason.name)
    assert re.fullmatch(r"[A-Z].*\?", reason.question)
    assert re.fullmatch(r"[^.].*[^.]", reason.evidence)
    assert re.fullmatch(r"[A-Z].*\.", reason.remedy)


def test_no_two_reasons_ask_the_same() -> None:
    questions = [reason.question for reason in Reason]
    assert len(questions) == len({*questions}) == len({reason.name for reason in Reason}) > 40


def test_every_difference_and_every_cause_has_a_reason() -> None:
    kinds = Kind.__args__  # type: ignore[attr-defined]  # of a Literal
    assert set(specifications.REASONS) == set(kinds)
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    codes = {one.code for one in classes if issubclass(one, errors.NvctError)}
    assert set(messages.REASONS) < codes
    assert docker.CAUSES.keys() < set(Reason)


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_the_commands_of_a_remedy_exist(reason: Reason) -> None:
    for line in re.findall(r"`((?:nvct|nvidia-ctk) [^`]+)`", reason.remedy):
        name, *words = line.split()
        command: click.Command = program(name)
        context = click.Context(command)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        options = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("-")} <= options, line


def rendered() -> str:
    """Return the list as the document has it."""
    sections = []
    for reason in Reason:
        items = (f"- evidence: {reason.evidence}", f"- remedy: {reason.remedy}")
        lines = [
            textwrap.fill(item, 110, subsequent_indent="  ", break_on_hyphens=False)
            for item in items
        ]
        sections.append("\n".join([f"\n## {reason.name}\n", f"{reason.question}\n", *lines, ""]))
    return "".join(sections)


def test_the_document_lists_every_reason(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    head, mark, listed = text.partition(LIST)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(head + mark + rendered(), encoding="utf-8")
        return
    assert mark
    assert listed == rendered()
