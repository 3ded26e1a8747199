# SPDX-License-Identifier: Apache-2.0
"""A container named `mine` that waits while it is looked at, on each engine."""

import contextlib
import threading
from collections.abc import Iterator

from tests.engines.cri import Pod
from tests.engines.daemons import IMAGE, Containerd, Crio, Docker, Podman

WAIT = "sleep 98765"
RUN = ("run", "--detach", "--network=none", "--name=mine")


@contextlib.contextmanager
def of_docker(docker: Docker, *options: str) -> Iterator[None]:
    """Run it with options of `docker run`, and remove it afterwards."""
    done = docker.docker(*RUN, *options, IMAGE, *WAIT.split())
    assert done.returncode == 0, done
    yield
    assert docker.docker("rm", "--force", "mine").returncode == 0


@contextlib.contextmanager
def of_podman(podman: Podman, *options: str) -> Iterator[None]:
    """Run it with options of `podman run`, and remove it afterwards."""
    group = f"--cgroup-parent=/{podman.box.cgroup}"
    done = podman.podman(*RUN, group, *options, IMAGE, *WAIT.split())
    assert done.returncode == 0, done
    yield
    assert podman.podman("rm", "--force", "--time=0", "mine").returncode == 0


@contextlib.contextmanager
def of_cri(engine: Containerd | Crio, pod: Pod) -> Iterator[None]:
    """Run a pod with it, which the CRI gives an id alone, and end it afterwards."""
    thread = threading.Thread(target=engine.pod, args=(WAIT, pod))
    thread.start()
    try:
        yield
    finally:
        engine.box.call("pkill", "-KILL", "-f", f"^{WAIT}")
        thread.join()
