# SPDX-License-Identifier: Apache-2.0
"""Why docker run --gpus fails: each cause on a host that has it and no other."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from nvct.doctor import docker
from nvct.doctor.model import Finding, Severity
from nvct.doctor.reasons import Reason
from nvct.engine import docker_host
from nvct.engine.journal import Entry, Journal, Page, Record
from nvct.engine.model import Files
from nvct.engine.writing import PathState
from tests.unit.engine.docker_lab import CDI_HOOK, HOUR, RUNTIME_HOOK, DockerLab, working

USER_SOCKET = "unix:///run/user/1000/docker.sock"


def hooked(folder: Path) -> DockerLab:
    """A host with a GPU, Docker's client and the runtime's hook."""
    return DockerLab(folder).gpu().program("/usr/bin/docker").program(f"/usr/bin/{RUNTIME_HOOK}")


def test_nothing_is_found_where_all_is_well(tmp_path: Path) -> None:
    lab = working(tmp_path)
    assert lab.cause() == ""
    assert {found.severity for found in lab.findings().values()} == {"ok", "note"}


@pytest.mark.parametrize("way", ["link", "script"])
def test_podmans_docker_is_recognized(tmp_path: Path, way: str) -> None:
    lab = DockerLab(tmp_path).gpu().dockerd()
    if way == "link":
        lab.program("/usr/bin/podman").tree.link("usr/bin/docker", "podman")
    else:
        lab.program("/usr/bin/docker", '#!/usr/bin/sh\nexec /usr/bin/podman "$@"\n')
    assert lab.cause() == "podman"
    assert "podman run --device nvidia.com/gpu=all" in lab.findings()["podman"].remedy


def test_docker_desktops_context_is_recognized_and_docker_host_wins_over_it(
    tmp_path: Path,
) -> None:
    lab = working(tmp_path).context("desktop-linux", "unix:///root/.docker/desktop/docker.sock")
    assert lab.cause() == "desktop"
    found = lab.findings()["desktop"]
    assert "by the context desktop-linux" in found.evidence
    assert found.remedy.startswith("docker context use default")
    lab.environ["DOCKER_HOST"] = "unix:///run/docker.sock"
    assert lab.cause() == ""
    lab.environ |= {"DOCKER_HOST": "", "DOCKER_CONTEXT": "default"}
    assert lab.cause() == ""


def test_docker_desktops_client_on_windows_is_recognized(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).gpu()
    desktop = "mnt/wsl/docker-desktop/cli-tools/usr/bin/docker"
    lab.program(desktop).tree.link("usr/bin/docker", str(lab.tree.base / desktop))
    assert lab.cause() == "desktop"
    assert "on Windows" in lab.findings()["desktop"].evidence


@pytest.mark.parametrize("endpoint", ["ssh://me@gpu1", "tcp://10.0.0.1:2376"])
def test_a_daemon_on_another_host_is_not_judged(tmp_path: Path, endpoint: str) -> None:
    lab = working(tmp_path)
    lab.environ["DOCKER_HOST"] = endpoint
    assert lab.cause() == "other-host"
    assert "not-restarted" not in lab.findings()
    assert endpoint in lab.findings()["other-host"].evidence


def test_a_host_without_gpus_is_told_first(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).program("/usr/bin/docker").dockerd()
    lab.tree.write("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    lab.tree.write("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")
    assert lab.cause() == "no-gpu"


def test_a_gpu_without_its_driver_is_told_last(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).program("/usr/bin/docker").program(f"/usr/bin/{RUNTIME_HOOK}")
    device = "sys/bus/pci/devices/0000:18:00.0"
    lab.tree.write(f"{device}/vendor", "0x10de\n")
    lab.tree.write(f"{device}/class", "0x030200\n")
    lab.tree.link("sys/bus/pci/drivers/nouveau/0000:18:00.0", "../../devices/0000:18:00.0")
    assert lab.dockerd().cause() == "no-driver"
    assert "nouveau has the GPU" in lab.findings()["no-driver"].evidence


def test_no_daemon_is_told(tmp_path: Path) -> None:
    assert DockerLab(tmp_path).gpu().program("/usr/bin/docker").cause() == "no-daemon"


def test_a_missing_program_and_half_an_installation_are_told(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).gpu().program("/usr/bin/docker").dockerd()
    assert lab.cause() == "not-installed"
    found = lab.findings()["not-installed"]
    assert RUNTIME_HOOK in found.evidence
    assert found.remedy.endswith("systemctl restart docker")
    lab.program(f"/usr/bin/{CDI_HOOK}")
    assert lab.cause() == "not-installed"
    assert "the toolkit is incomplete" in lab.findings()["not-installed"].evidence


def test_a_program_that_may_not_be_executed_is_missing(tmp_path: Path) -> None:
    lab = working(tmp_path)
    (lab.tree.base / f"usr/bin/{RUNTIME_HOOK}").chmod(0o644)
    assert lab.cause() == "not-installed"


def test_a_program_that_came_after_dockerd_is_told(tmp_path: Path) -> None:
    lab = hooked(tmp_path)
    lab.dockerd(age=HOUR)
    assert lab.cause() == "not-restarted"
    found = lab.findings()["not-restarted"]
    assert found.remedy == "systemctl restart docker"
    assert f"/usr/bin/{RUNTIME_HOOK} was installed or replaced" in found.evidence


@pytest.mark.parametrize(("age", "cause"), [(2 * HOUR, ""), (HOUR / 2, "not-restarted")])
def test_a_program_that_was_replaced_after_dockerds_start_works(
    tmp_path: Path, age: float, cause: str
) -> None:
    """Its file had the runtime at its start: so it is after an upgrade, and a move to nvct."""
    lab = hooked(tmp_path)
    path = "/usr/bin/nvidia-container-runtime"
    lab.program(path)
    text = json.dumps({"runtimes": {"nvidia": {"path": path}}})
    file = lab.tree.write("etc/docker/daemon.json", text)
    os.utime(file, (time.time() - age,) * 2)
    lab.dockerd(age=HOUR)
    assert lab.cause() == cause


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ('{"runtimes": {"nvidia": {"path": "/opt/nvidia-container-runtime"}}}', ""),
        ("{}", "not-restarted"),
        ('{"runtimes": []}', "not-restarted"),
    ],
)
def test_a_file_that_nvct_changed_after_dockerds_start_had_the_runtime_before(
    tmp_path: Path, before: str, cause: str
) -> None:
    """So it is after `nvct migrate apply`, which has dockerd read its file without a restart."""
    lab = hooked(tmp_path)
    path = "/usr/bin/nvidia-container-runtime"
    text = json.dumps({"runtimes": {"nvidia": {"path": path}}})
    lab.program(path).tree.write("etc/docker/daemon.json", text)
    journal = Journal(str(lab.tree.base / "var/lib/nvct/engines"))
    config, mode = "/etc/docker/daemon.json", stat.S_IFREG | 0o644
    states = (PathState(mode=mode, text=each) for each in (before, text))
    entry = Entry(path=config, before=next(states), after=next(states))
    with journal.lock():
        journal.save(journal.path("docker", config), Page(done=Record(entries=(entry,))))
    lab.dockerd(age=HOUR)
    assert lab.cause() == cause


def test_a_link_that_came_after_dockerd_is_told(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).gpu().program("/usr/bin/docker").program(f"/opt/{RUNTIME_HOOK}")
    lab.tree.link(f"usr/bin/{RUNTIME_HOOK}", f"../../opt/{RUNTIME_HOOK}")
    lab.dockerd(age=HOUR)
    assert lab.cause() == "not-restarted"


def test_a_program_outside_the_daemons_path_is_told(tmp_path: Path) -> None:
    lab = hooked(tmp_path)
    lab.dockerd(env={"PATH": "/opt/docker/bin:relative:"})
    assert lab.cause() == "not-on-path"
    seen = lab.findings()["not-on-path"].evidence
    assert f"/usr/bin/{RUNTIME_HOOK} is not on dockerd's PATH, which is /opt/docker/bin" in seen


def test_a_daemon_whose_environment_is_hidden_is_judged_by_its_start_alone(tmp_path: Path) -> None:
    lab = hooked(tmp_path).dockerd(env={})
    assert lab.cause() == ""
    found = lab.findings()["not-on-path"]
    assert (found.severity, found.remedy) == ("unknown", "run this as root")
    assert hooked(tmp_path / "old").dockerd(env={}, age=HOUR).cause() == "not-restarted"


def test_a_snap_is_told(tmp_path: Path) -> None:
    lab = hooked(tmp_path)
    core = tmp_path / "core22"
    core.mkdir()
    snap = "/snap/docker/2963/bin"
    lab.dockerd(exe=f"{snap}/dockerd", root=core, env={"PATH": snap, "SNAP_NAME": "docker"})
    assert lab.cause() == "snap"
    assert "snap remove docker" in lab.findings()["snap"].remedy


def test_a_snap_that_has_the_program_is_not_blamed(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).gpu().program("/usr/bin/docker")
    snap = "/snap/docker/2963/bin"
    lab.program(f"{snap}/{RUNTIME_HOOK}")
    lab.dockerd(exe=f"{snap}/dockerd", env={"PATH": snap, "SNAP_NAME": "docker"})
    assert lab.cause() == ""


@pytest.mark.parametrize("late", [True, False])
def test_a_rootless_daemon_is_told_of_its_own(tmp_path: Path, *, late: bool) -> None:
    lab = hooked(tmp_path)
    lab.environ["DOCKER_HOST"] = USER_SOCKET
    env = {"PATH": "/usr/bin" if late else "/home/me/bin", "HOME": "/home/me"}
    env |= {"XDG_RUNTIME_DIR": "/run/user/1000", "ROOTLESSKIT_STATE_DIR": "/run/user/1000/x"}
    lab.dockerd(pid=900, uid=1000, env=env, age=HOUR if late else -HOUR)
    lab.dockerd()
    assert lab.cause() == "rootless"
    found = lab.findings()["rootless"]
    assert "/home/me/.config/docker/daemon.json" in found.evidence
    assert "systemctl --user restart" in found.remedy


def test_a_rootless_daemon_does_not_read_roots_runtimes(tmp_path: Path) -> None:
    lab = hooked(tmp_path)
    lab.environ["DOCKER_HOST"] = USER_SOCKET
    lab.tree.write("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "x"}}}')
    env = {"PATH": "/usr/bin", "HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1000"}
    lab.dockerd(uid=1000, env=env)
    assert lab.cause() == ""
    assert "not /etc/docker/daemon.json with nvidia" in lab.findings()["rootless"].evidence


def test_the_daemon_is_the_one_that_the_client_talks_to(tmp_path: Path) -> None:
    lab = working(tmp_path)
    env = {"PATH": "/home/me/bin", "HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1000"}
    lab.dockerd(pid=700, uid=1000, env=env)
    lab.dockerd("-H", "unix:///run/other.sock", pid=701, env={"PATH": "/none"})
    assert lab.cause() == ""
    lab.environ["DOCKER_HOST"] = "unix:///run/other.sock"
    assert lab.cause() == "not-on-path"
    lab.environ["DOCKER_HOST"] = USER_SOCKET
    assert lab.cause() == "rootless"


def test_a_containers_daemon_is_not_taken_for_the_hosts(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).gpu().program("/usr/bin/docker").dockerd()
    for name, number in (("812", 1), ("self", 2)):
        (lab.proc / name / "ns").mkdir(parents=True)
        (lab.proc / name / "ns/pid").symlink_to(f"pid:[{number}]")
    assert lab.cause() == "no-daemon"


@pytest.mark.parametrize(
    ("version", "hooks", "config", "spec", "cause"),
    [
        ("28.5.2", [CDI_HOOK], "{}", True, "not-installed"),
        ("29.2.0", [CDI_HOOK], "{}", True, ""),
        ("29.2.0", [CDI_HOOK], "{}", False, "cdi"),
        ("29.2.0", [CDI_HOOK], '{"features": {"cdi": false}}', True, "cdi"),
        ("29.2.0", [CDI_HOOK, RUNTIME_HOOK], '{"features": {"cdi": false}}', True, ""),
        ("29.2.0", [CDI_HOOK, RUNTIME_HOOK], "{}", False, ""),
        ("29.3.1", [], "{}", True, "not-installed"),
        ("20.10.24", [RUNTIME_HOOK], "{}", False, ""),
        ("", [RUNTIME_HOOK], "{}", False, ""),
        ("29.2.0", [CDI_HOOK], "{,}", True, ""),
    ],
)
def test_the_release_says_what_is_needed(
    tmp_path: Path, version: str, hooks: list[str], config: str, cause: str, *, spec: bool
) -> None:
    lab = DockerLab(tmp_path, version=version).gpu().program("/usr/bin/docker")
    for name in hooks:
        lab.program(f"/usr/bin/{name}")
    lab.tree.write("etc/docker/daemon.json", config)
    if spec:
        lab.spec()
    lab.dockerd()
    assert lab.cause() == cause
    unknown = not version or "," in config
    assert (lab.findings()["cdi"].severity == "unknown") == unknown
    asks = version == "29.3.1"
    assert ("no known GPU vendor found" in lab.findings()["not-installed"].evidence) == asks


def test_specs_are_looked_for_where_dockerd_does(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path, version="29.2.0").gpu().program("/usr/bin/docker").spec("opt/cdi")
    lab.program(f"/usr/bin/{CDI_HOOK}").dockerd("--cdi-spec-dir=/opt/cdi")
    assert lab.cause() == ""
    assert lab.look().daemons[0].specs == ("/opt/cdi/nvidia.json",)


def test_a_damaged_docker_configuration_is_no_obstacle(tmp_path: Path) -> None:
    lab = working(tmp_path)
    for text in ("{", "[]", '{"currentContext": 1}'):
        lab.tree.write("root/.docker/config.json", text)
        found = docker_host.client(Files(str(lab.tree.base)), lab.environ)
        assert (found.endpoint, found.program) == (docker_host.DEFAULT_ENDPOINT, "/usr/bin/docker")


def test_a_context_that_is_nowhere_leaves_it_open(tmp_path: Path) -> None:
    lab = working(tmp_path)
    lab.environ["DOCKER_CONTEXT"] = "gone"
    assert lab.findings()["other-host"].severity == "unknown"


def test_every_finding_is_a_sentence_with_a_way_out(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path).program("/usr/bin/docker").dockerd(age=HOUR)
    for found in lab.findings().values():
        assert found.evidence
        assert not found.evidence.endswith(".")
        assert found.remedy or not found.is_fault


def test_the_first_that_holds_is_the_cause() -> None:
    reasons = iter(docker.CAUSES)
    severities: list[Severity] = ["ok", "unknown", "note", "error", "error"]
    findings = [Finding(next(reasons), severity, "x") for severity in severities]
    assert docker.the_cause(findings) is findings[3]
    assert docker.the_cause(findings[:3]) is None


def test_what_stops_only_device_and_runtime_is_a_note(tmp_path: Path) -> None:
    lab = DockerLab(tmp_path, version="29.2.0").gpu().program("/usr/bin/docker")
    for name in (CDI_HOOK, RUNTIME_HOOK):
        lab.program(f"/usr/bin/{name}")
    found = lab.dockerd().findings()["cdi"]
    assert (found.reason, found.severity) == (Reason.SpecificationMissing, "note")
