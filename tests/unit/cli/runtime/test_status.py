# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct runtime status and list."""

import json

from nvct.cli.runtime import status as runtime_status
from nvct.engine.model import Engine, State
from nvct.engine.status import Status
from tests.support.commands import invoke

DOCKER = Engine(
    engine="docker", pid=71, binary="/usr/bin/dockerd", version="28.5.2", unit="docker.service",
    socket="/run/docker.sock", config="/etc/docker/daemon.json",
)  # fmt: skip
K3S = Engine(
    engine="containerd", platform="k3s", config="/var/lib/rancher/k3s/config.toml",
    advice=("systemctl restart k3s",), leave=True,
)  # fmt: skip
STATE = State(
    files=("/etc/docker/daemon.json",),
    handlers={"nvidia": "/usr/bin/nvidia-container-runtime", "runc": ""},
    default="nvidia",
    cdi=True,
    spec_dirs=("/etc/cdi", "/run/cdi"),
)


def test_engines_are_a_table_with_dashes_for_what_is_not_there() -> None:
    assert list(runtime_status.table([DOCKER, K3S])) == [
        "ENGINE            VERSION  RUNS  UNIT            CONFIG",
        "docker            28.5.2   71    docker.service  /etc/docker/daemon.json",
        "containerd (k3s)  -        -     -               /var/lib/rancher/k3s/config.toml",
    ]
    assert list(runtime_status.table([])) == []


def test_status_says_what_an_engine_is_told() -> None:
    one = Status(engine=DOCKER, state=STATE, registered=("nvidia",), missing=("nvidia",))

    assert (
        runtime_status.text(one)
        == """\
docker 28.5.2, runs as process 71
  program:   /usr/bin/dockerd
  unit:      docker.service
  socket:    /run/docker.sock
  config:    /etc/docker/daemon.json
  files:     /etc/docker/daemon.json
  runtimes:  nvidia (/usr/bin/nvidia-container-runtime)
  default:   nvidia
  CDI:       on
  CDI from:  /etc/cdi, /run/cdi
  problem:   the program of its runtime nvidia, /usr/bin/nvidia-container-runtime, is not there
"""
    )


def test_status_says_what_to_do_where_a_platform_does_it() -> None:
    assert (
        runtime_status.text(Status(engine=K3S, problem="no TOML at line 3"))
        == """\
containerd (k3s), does not run
  config:    /var/lib/rancher/k3s/config.toml
  problem:   no TOML at line 3
  do:        systemctl restart k3s
"""
    )


def test_a_name_with_control_characters_is_shown_as_escapes() -> None:
    text = runtime_status.text(Status(engine=Engine(engine="docker", binary="/\x1b[2J")))

    assert "\x1b" not in text


def test_programs_read_the_same_as_people() -> None:
    shown = runtime_status.document(Status(engine=DOCKER, state=STATE, registered=("nvidia",)))

    assert json.loads(json.dumps(shown))["state"]["runtimes"] == {
        "nvidia": "/usr/bin/nvidia-container-runtime",
        "runc": "",
    }
    assert shown["pid"] == 71
    assert shown["nvidia"] == ("nvidia",)
    assert shown["nvidiaIsDefault"] is True
    assert "root" not in shown


def test_a_hosts_engines_are_listed_whatever_they_are() -> None:
    for command in ("list", "status"):
        argv = ["runtime", command, "--format=json"]
        done = invoke("nvct", argv, catch_exceptions=False)

        assert isinstance(json.loads(done.stdout), list)
        shown = invoke("nvct", argv[:2], catch_exceptions=False)
        assert shown.exit_code == 0
        assert shown.stdout or "no engine found" in shown.stderr
