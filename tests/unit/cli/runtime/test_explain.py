# SPDX-License-Identifier: Apache-2.0
"""Command: nvct runtime explain."""

import json
import os
import pwd

from click.testing import CliRunner

from nvct.cli.runtime import status as runtime_explain
from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason

CAUSE = Finding(Reason.EngineNotRestarted, "error", "it came later", remedy="restart it")
NO = Finding(Reason.SnapWithoutHook, "ok", "no snap's")
OPEN = Finding(
    Reason.EngineCdiDisabled, "unknown", "it may not be read", remedy="run this as root"
)


def test_the_cause_comes_first_and_then_what_was_checked() -> None:
    assert runtime_explain.causes([NO, CAUSE], CAUSE) == (
        "docker run --gpus fails here: it came later\n"
        "  do: restart it\n"
        "\n"
        "checked:\n"
        "  no      snap           no snap's\n"
        "  yes     not-restarted  it came later\n"
    )


def test_what_could_not_be_judged_is_said_where_nothing_is_found() -> None:
    assert runtime_explain.causes([NO, OPEN], None) == (
        "docker run --gpus: no cause of a failure found, but not all could be checked\n"
        "  unknown: it may not be read (run this as root)\n"
        "\n"
        "checked:\n"
        "  no      snap  no snap's\n"
        "  unknown cdi   it may not be read\n"
    )
    first = runtime_explain.causes([NO], None).splitlines()[0]
    assert first == "docker run --gpus: no cause of a failure found"


def test_control_characters_are_shown_as_escapes() -> None:
    odd = Finding(Reason.ClientUsesDesktop, "error", "docker talks to \x1b[2J", remedy="x")
    assert "\x1b" not in runtime_explain.causes([odd], odd)


def test_sudo_looks_at_the_users_own_docker() -> None:
    user = pwd.getpwuid(os.getuid())
    given = {"HOME": "/root", "SUDO_USER": user.pw_name}
    assert runtime_explain.environ_of_user(given)["HOME"] == user.pw_dir
    for same in ({"HOME": "/x"}, {"HOME": "/x", "SUDO_USER": "no such user"},
                 {**given, "DOCKER_CONFIG": "/y"}):  # fmt: skip
        assert runtime_explain.environ_of_user(same) == same


def test_this_host_is_judged_and_the_exit_status_tells() -> None:
    done = CliRunner().invoke(runtime_explain.explain, ["--format=json"])
    found = json.loads(done.stdout)
    assert {"cause", "holds", "seen", "advice", "command", "reason"} == set(found["findings"][0])
    holding = [finding["cause"] for finding in found["findings"] if finding["holds"]]
    assert found["cause"] == (holding[0] if holding else "")
    assert done.exit_code == (1 if holding else 0)
