# SPDX-License-Identifier: Apache-2.0
"""`make cluster`: a real Kubernetes of one node with simulated GPUs and nvct's chart, to play in.

It runs until `make cluster-down`. The programs that reach it are in a folder of the checkout. Files, processes and the
node vanish with it.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.engines.box import REPOSITORY
from tests.kubernetes import alone, image_alone
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import CHART, FARM, IN_NAMESPACE, TOOLKIT, allocatable
from tests.kubernetes.cluster import ADMIN, Cluster
from tests.kubernetes.device_plugin import simulated
from tests.support import program_image

FOLDER = Path(os.environ.get("NVCT_CLUSTER_DIR", "build/cluster")).absolute()
"""Of the programs that reach the cluster."""
PID, LOG, READY = (FOLDER / name for name in ("pid", "log", "ready"))
START_S, STOP_S, GPUS_S = 900.0, 60.0, 120.0
"""How long it may take: with the image, to end, and from the chart to the GPUs."""
USE = """\
A real Kubernetes runs on a simulated node with 8 GPUs, with nvct's chart in the namespace nvct.

  {folder}/kubectl get nodes
  {folder}/helm list --all-namespaces
  {folder}/node nvct doctor          # a command on the node; without one, a shell
  {folder}/nvct cluster status       # an admin's command
  {folder}/set xid 0 79              # a change of its GPUs: see nvct sim set -h

The image for pods is nvct:agent, with imagePullPolicy: Never. make cluster-down ends it all."""

SCRIPT = """\
#!/bin/sh
[ "$(id -u)" = 0 ] || exec sudo "$0" "$@"
exec {start} {words}
"""


def up() -> str:
    """Start the cluster in the background, and return how to use it.

    Raises:
        ContainerNotPossibleError: it does not start here.
    """
    if _holder():
        return USE.format(folder=os.path.relpath(FOLDER))
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with LOG.open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.kubernetes.playground", "hold"], cwd=REPOSITORY, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    PID.write_text(str(holder.pid))
    wait(lambda: READY.exists() or holder.poll() is not None, START_S)
    if not READY.exists():
        holder.terminate()
        PID.unlink()
        lines = LOG.read_text(errors="replace").strip().splitlines() or ["no reason given"]
        raise ContainerNotPossibleError(f"no cluster here: {lines[-1]}", hint=f"see {LOG}")
    return USE.format(folder=os.path.relpath(FOLDER))


def down() -> str:
    """End the cluster, and return a sentence."""
    holder = _holder()
    if not holder:
        return "no cluster runs; make cluster starts one"
    os.kill(holder, signal.SIGTERM)
    if not wait(lambda: not _holder(), STOP_S):
        return f"process {holder} does not end; see {LOG}"
    shutil.rmtree(FOLDER)
    return "the cluster, its node and their files are gone"


def hold() -> None:
    """Run the cluster until SIGTERM.

    Raises:
        ContainerNotPossibleError: it does not start here.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    program_image.archive()  # it may have to be built: minutes
    with alone.running() as cluster:
        image_alone.prepare(cluster)
        cluster.helm("install", "nvct", str(CHART), *IN_NAMESPACE, "--create-namespace", *FARM)
        if not wait(lambda: allocatable(cluster) > 0, GPUS_S):
            raise ContainerNotPossibleError("the node offers no GPU")
        _write_programs(cluster)
        READY.touch()
        while True:
            time.sleep(3600)


def _write_programs(cluster: Cluster) -> None:
    """Write programs that run those of the same names in the cluster's machine."""
    env = dict(cluster.box.env)
    admin, node = env | ADMIN, env | {"PATH": f"{TOOLKIT}:{env['PATH']}"}
    nvct = f'{shlex.quote(sys.executable)} -I -m nvct.cli nvct "$@"'
    for name, variables, command in (
        ("kubectl", admin, 'kubectl "$@"'),
        ("helm", admin, 'helm "$@"'),
        ("nvct", admin, nvct),
        ("node", node, '"${@:-sh}"'),
    ):
        settings = [f"{key}={value}" for key, value in variables.items()]
        enter = shlex.join(["env", *settings, *cluster.box.entrance])
        _write(name, enter, f'--wd="$PWD" -- {command}')
    machine = simulated(cluster)
    of_node = ("-I", "-m", "nvct.cli", "nvct", "sim", f"--base={machine.tree.parent}", "set")
    _write("set", shlex.join([sys.executable, *of_node, machine.name]), '"$@"')


def _write(name: str, start: str, words: str) -> None:
    path = FOLDER / name
    path.write_text(SCRIPT.format(start=start, words=words))
    path.chmod(0o755)


def _holder() -> int:
    """Return the process that holds the cluster, 0 if none does."""
    try:
        number = int(PID.read_text())
        words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return number if b"tests.kubernetes.playground" in words else 0


def main() -> int:
    """Do what the word says: up, down or hold."""
    try:
        if sys.argv[1] == "hold":
            hold()
        print({"up": up, "down": down}[sys.argv[1]]())
    except (ContainerNotPossibleError, pytest.skip.Exception) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
