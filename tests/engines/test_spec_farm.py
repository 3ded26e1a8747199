# SPDX-License-Identifier: Apache-2.0
"""Docker and Podman with a specification in layout farm: restarted, committed, entered again."""

from collections.abc import Callable

import pytest

from tests.engines import configured, docker_run, releases
from tests.engines.box import Box
from tests.engines.daemons import SPEC, Docker, Done, Podman

pytestmark = pytest.mark.slow
DEVICE = f"--device={configured.DEVICE}"
CHECK = "nvidia-smi -L; ldconfig -p | grep 'libcuda.so.1 '; cat /etc/OpenCL/vendors/nvidia.icd"
RUN = ("--network=none", DEVICE)
LISTED = "/.nvct/driver/lib64/libcuda.so.1"


def finds_the_driver(completed: Done) -> None:
    """Assert that CHECK found one GPU and one driver."""
    configured.has_one_gpu(completed)
    assert completed.stdout.count("libcuda.so.1 ") == 1, completed
    assert LISTED in completed.stdout, completed


def is_first(completed: Done, *, farm: bool) -> None:
    """Assert that the linker finds the layout's library first, and in classic no other."""
    entries = [line for line in completed.stdout.splitlines() if "libcuda.so.1 " in line]
    assert entries[0].endswith(LISTED) == farm, completed
    assert farm or len(entries) == 1, completed


WITH_CDI = [
    releases.of_release("trixie"), *releases.in_full("forky"), *releases.in_full("resolute")
]  # fmt: skip
"""Releases whose Docker reads CDI specifications."""


@pytest.fixture(scope="module", params=releases.ALL)
def podman(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Podman:
    """Podman, and a specification in layout farm."""
    return configured.started(lambda: Podman(machine_of(request.param)))


def test_podman(podman: Podman) -> None:
    """One GPU, with a read-only root, after a restart, in exec sessions, and of a commit."""
    group = f"--cgroup-parent=/{podman.box.cgroup}"
    write(podman, "auto")
    finds_the_driver(podman.run(CHECK, DEVICE))
    finds_the_driver(podman.run(CHECK, DEVICE, "--read-only"))
    image = podman.words("", "")[-4]
    made = podman.podman("create", "--name=kept", group, *RUN, image, "/bin/sh", "-c", CHECK)
    assert made.returncode == 0, made
    for _ in range(2):
        finds_the_driver(podman.podman("start", "--attach", "kept"))
    assert podman.podman("commit", "kept", "committed").returncode == 0
    again = (group, *RUN, "localhost/committed", "/bin/sh", "-c", CHECK)
    finds_the_driver(podman.podman("run", "--rm", *again))
    lives = podman.podman("run", "-d", "--name=lives", group, *RUN, image, "/bin/sleep", "99")
    assert lives.returncode == 0, lives
    finds_the_driver(podman.podman("exec", "lives", "/bin/sh", "-c", CHECK))
    podman.podman("rm", "--force", "--time=0", "lives")


def test_podman_after_the_layout_has_changed(podman: Podman) -> None:
    """A container of layout farm starts in layout classic, and the other way."""
    group = f"--cgroup-parent=/{podman.box.cgroup}"
    image = podman.words("", "")[-4]
    made = podman.podman("create", "--name=moved", group, *RUN, image, "/bin/sh", "-c", CHECK)
    assert made.returncode == 0, made
    for layout in ("auto", "classic", "auto"):
        write(podman, layout)
        done = podman.podman("start", "--attach", "moved")
        configured.has_one_gpu(done)
        is_first(done, farm=layout == "auto")


def write(daemon: Podman | Docker, layout: str) -> None:
    """Write the specification anew in a layout."""
    done = daemon.box.call(
        "nvidia-ctk", "cdi", "generate", f"--layout={layout}", f"--output={SPEC}",
        "--cdi-version-max=0.5.0",
    )  # fmt: skip
    assert done.returncode == 0, done


@pytest.fixture(scope="module", params=WITH_CDI)
def docker(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Docker:
    """Docker that reads a specification in layout farm."""
    daemon = configured.started(lambda: Docker(machine_of(request.param)))
    daemon.configure("--cdi.enabled")
    daemon.restart()
    return daemon


def test_docker(docker: Docker) -> None:
    """One GPU, with a read-only root, after a restart, in exec sessions, and of a commit."""
    for flags in ((), ("--read-only",)):
        finds_the_driver(docker.run(CHECK, DEVICE, "--runtime=runc", *flags))
    kept = ("--name=kept", *RUN, "--runtime=runc", "plain:test", "/bin/sh", "-c", CHECK)
    assert docker.docker("create", *kept).returncode == 0
    for layout in ("auto", "auto", "classic", "auto"):
        write(docker, layout)
        done = docker.docker("start", "--attach", "kept")
        configured.has_one_gpu(done)
        is_first(done, farm=layout == "auto")
    assert docker.docker("commit", "kept", "committed").returncode == 0
    run = (*RUN, "--runtime=runc", "committed", "/bin/sh", "-c", CHECK)
    is_first(docker_run.run(docker.box, *run), farm=True)
    lives = ("--name=lives", *RUN, "--runtime=runc", "plain:test", "/bin/sleep", "99")
    assert docker.docker("run", "-d", *lives).returncode == 0
    finds_the_driver(docker.docker("exec", "lives", "/bin/sh", "-c", CHECK))
    docker.docker("rm", "--force", "lives", "kept")
