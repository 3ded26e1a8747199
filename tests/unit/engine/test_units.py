# SPDX-License-Identifier: Apache-2.0
"""systemd units: the command line that starting one would run."""

from pathlib import Path

import pytest

from nvct.engine import processes
from tests.unit.engine.fake_host import FakeHost

LIB = "/usr/lib/systemd/system/docker.service"
DROP_INS = "/etc/systemd/system/docker.service.d"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def _args(host: FakeHost) -> tuple[str, ...]:
    return processes.of_unit("docker", host.files).args


def test_an_emptied_command_is_replaced_by_the_drop_ins(host: FakeHost) -> None:
    host.file(LIB, "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
    host.file(f"{DROP_INS}/20-b.conf", "[Service]\nExecStart=\nExecStart=-/usr/bin/dockerd -c 2\n")
    host.file(f"{DROP_INS}/10-a.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd 1\n")
    assert _args(host) == ("/usr/bin/dockerd", "-c", "2")


def test_the_admins_unit_hides_the_packages(host: FakeHost) -> None:
    host.file(LIB, "[Service]\nExecStart=/usr/bin/dockerd package\n")
    host.file(
        "/etc/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd admin\n"
    )
    host.file("/usr/lib/systemd/system/docker.service.d/x.conf", "[Service]\nEnvironment=A=1\n")
    host.file("/etc/systemd/system/docker.service.d/x.conf", "[Service]\nEnvironment=A=2\n")
    unit = processes.of_unit("docker", host.files)
    assert unit.args == ("/usr/bin/dockerd", "admin")
    assert unit.env == {"A": "2"}


def test_a_backslash_continues_a_line_and_comments_are_ignored(host: FakeHost) -> None:
    host.file(
        LIB,
        "[Unit]\nExecStart=/no\n[Service]\nExecStart=/usr/bin/crio \\\n# why\n  --a \\\n  --b\n;x=y\n",
    )
    assert _args(host) == ("/usr/bin/crio", "--a", "--b")


def test_variables_are_filled_in_as_systemd_does(host: FakeHost) -> None:
    host.file(
        LIB,
        '[Service]\nEnvironment="OPTS=--x --y" NAME=n\nEnvironmentFile=-/etc/none\n'
        "EnvironmentFile=/etc/sysconfig/docker\n"
        "ExecStart=/usr/bin/dockerd $OPTS --name=${NAME} $UNSET ${UNSET} $$5 'a b'\n",
    )
    host.file("/etc/sysconfig/docker", "# more\nNAME='m'\n")
    assert _args(host) == (
        "/usr/bin/dockerd", "--x", "--y", "--name=m", "", "$5", "a b",
    )  # fmt: skip


def test_a_masked_or_missing_unit_starts_nothing(host: FakeHost) -> None:
    assert processes.of_unit("docker", host.files) == processes.Process(engine="docker")
    host.file(LIB, "[Service]\nExecStart=/usr/bin/dockerd\n").folder("/etc/systemd/system")
    (host.root / "etc/systemd/system/docker.service").symlink_to("/dev/null")
    assert processes.of_unit("docker", host.files) == processes.Process(engine="docker")


def test_unclosed_quotes_are_taken_literally(host: FakeHost) -> None:
    host.file(LIB, "[Service]\nExecStart=/usr/bin/dockerd it's\n")
    assert _args(host) == ("/usr/bin/dockerd", "it's")
