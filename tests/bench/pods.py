# SPDX-License-Identifier: Apache-2.0
"""Pods on a real kubelet and containerd: from the binding to the container's first word.

`python -m tests.bench pods` measures it alone, as root, after `make kubernetes`. Each way to give a
pod its GPU has a device plugin and, but for CDI, a runtime of its own. Its pods take turns with
pods without a GPU, and what counts is how much longer they take: most of the time of each is the
sandbox, which has no GPU. The pod names its node, so the scheduler has no part. The first word has
containerd's time.
"""

import contextlib
import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from nvct.errors import ContainerNotPossibleError
from nvct.launcher import install
from nvct_sim import run_folder
from tests.engines import box as boxes
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.engines import CONFIG
from tests.kubernetes import alone
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import (
    ENGINE_CONFIG,
    GPUS,
    TIMEOUT_S,
    allocatable,
    asks,
    prepare,
)

ROUNDS = int(os.environ.get("NVCT_BENCH_POD_ROUNDS", "10"))
HOT = Path(__file__).parents[2] / "build/static/nvct-hot"
RUNTIME = "nvidia-container-runtime"
PLUGIN = "nvidia-device-plugin"
SCRIPT = "echo started"
LIBRARIES = f"LD_LIBRARY_PATH={DRIVER_ROOT}/usr/lib/x86_64-linux-gnu"
OWN = f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n[nvct]\nlayout = "{{}}"\n'
FILES = (ENGINE_CONFIG, "/etc/containerd/conf.d/99-nvidia.toml")
"""Where `nvct runtime configure` may have named the runtime."""


class Way(NamedTuple):
    """A way to give a pod its GPU.

    Attributes:
        plugin: the command of the device plugin.
        runtime: the program behind the RuntimeClass, "" for pods without one.
        config: its config.toml.
    """

    name: str
    plugin: list[str]
    runtime: str = ""
    config: str = ""


def measure(work: Path) -> int:
    """Measure all ways and print a table; return the exit status."""
    boxes.GO.clear()  # programs in Go collect garbage as they do elsewhere
    try:
        with alone.running() as cluster:
            prepare(cluster)
            simulated = f'BinaryName = "{run_folder.PROGRAMS}/runc"'  # it takes 400 ms
            text = cluster.box.read(ENGINE_CONFIG)
            assert simulated in text
            cluster.box.write(ENGINE_CONFIG, text.replace(simulated, ""))
            rows = {way.name: _measured(cluster, way) for way in _ways(cluster, work)}
    except ContainerNotPossibleError as error:
        print(f"  pods are not measured: {error.message}")
        return 0
    _print(rows)
    return 0


def _ways(cluster: Cluster, work: Path) -> list[Way]:
    launchers = work / "pods-bin"
    launchers.mkdir()
    built = replace(install.default_built(), hot=str(HOT) if HOT.exists() else "")
    install.install(launchers, "c", built)
    own = [f"{PROGRAMS}/{PLUGIN}", f"--driver-root-ctr-path={DRIVER_ROOT}", f"--nvidia-driver-root={DRIVER_ROOT}",
           f"--nvidia-cdi-hook-path={launchers}/nvidia-cdi-hook"]  # fmt: skip
    runtime, program = str(launchers / RUNTIME), "nvct-hot" if HOT.exists() else "C launcher"
    ways = [
        Way(f"nvct, {layout} ({program})", [*own, "--device-list-strategy=envvar"], runtime, OWN.format(layout))
        for layout in ("farm", "classic")
    ]  # fmt: skip
    ways.append(
        Way(
            "nvct, the engine's CDI",
            [*own, "--device-list-strategy=cdi-cri"],
            "",
            OWN.format("farm"),
        )
    )
    peer = os.environ.get("NVCT_BENCH_PEER")
    if peer and Path(peer, PLUGIN).exists():
        starter = work / "peer-runtime"
        starter.write_text(f'#!/bin/sh\nPATH={peer}:$PATH exec {peer}/{RUNTIME} "$@"\n')
        starter.chmod(0o755)
        config = (
            f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n'
            f'[nvidia-container-runtime]\nmode = "auto"\n[nvidia-ctk]\npath = "{peer}/nvidia-ctk"\n'
        )
        plugin = ["env", LIBRARIES, f"{peer}/{PLUGIN}", "--device-list-strategy=envvar"]
        ways.append(Way("peer", plugin, str(starter), config))
    cluster.box.call("mkdir", "-p", "/var/run/cdi")
    return ways


def _measured(cluster: Cluster, way: Way) -> dict[int, list[float]]:
    """Return the milliseconds of pods, by their number of GPUs."""
    if way.runtime:
        cluster.box.write(CONFIG, way.config)
        _use(cluster, way.runtime)
    took: dict[int, list[float]] = {0: [], 1: []}
    with _plugin(cluster, way):
        for number in range(-1, ROUNDS):  # the first one warms up
            for count, values in took.items():
                name = f"pod-{count}-{number + 1}"
                taken = _pod(cluster, name, count, "nvidia" if way.runtime and count else "")
                if number >= 0:
                    values.append(taken)
    return took


def _use(cluster: Cluster, runtime: str) -> None:
    """Put a program behind the RuntimeClass nvidia, and start the engine again."""
    for path in FILES:
        with contextlib.suppress(FileNotFoundError):
            text = cluster.box.read(path)
            cluster.box.write(
                path, re.sub(rf'"[^"]*/({RUNTIME}|peer-runtime)"', f'"{runtime}"', text)
            )
    cluster.engine.reload()


@contextlib.contextmanager
def _plugin(cluster: Cluster, way: Way) -> Iterator[None]:
    log = f"plugin-{len(list(cluster.box.work.glob('plugin-*')))}.log"
    process = cluster.box.start(way.plugin, log)
    try:
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S), (
            cluster.box.work / log
        ).read_text()
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        assert wait(lambda: allocatable(cluster) == 0, TIMEOUT_S)


def _pod(cluster: Cluster, name: str, count: int, runtime_class: str) -> float:
    """Run a pod on the node; return the milliseconds until its first word."""
    pod = asks(count, SCRIPT, runtime_class=runtime_class, spec={"nodeName": NODE})
    began = time.time()
    cluster.api.create(PODS, pod.manifest(name))
    assert wait(lambda: _phase(cluster, name) == "Succeeded", TIMEOUT_S), cluster.api.events(name)
    line = cluster.api.request("GET", f"{PODS}/{name}/log?timestamps=true")
    cluster.api.delete(f"{PODS}/{name}")
    assert wait(lambda: _phase(cluster, name) == "", TIMEOUT_S)  # its end takes CPU time, too
    said = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z.*", r"\1+00:00", line.strip()))
    return (said.timestamp() - began) * 1000


def _phase(cluster: Cluster, name: str) -> str:
    found = cluster.api.find(f"{PODS}/{name}")
    return str(found["status"]["phase"]) if found else ""


def _print(rows: dict[str, dict[int, list[float]]]) -> None:
    """Print least and median; the least of many rounds is what others on the machine spoil least."""
    title = "pod on a real kubelet, binding to first word, ms: least, median"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for number, name in enumerate(("", "without a GPU", "with a GPU", "more", "x peer")):
        table.add_column(name, justify="right" if number else "left")
    more = {name: min(took[1]) - min(took[0]) for name, took in rows.items()}
    peer = more.get("peer", 0)
    for name, took in rows.items():
        cells = [f"{min(each):.0f}, {statistics.median(each):.0f}" for each in took.values()]
        ratio = f"{more[name] / peer:.2f}" if peer > 0 else "-"
        table.add_row(name, *cells, f"{more[name]:.0f}", ratio)
    Console(highlight=False, width=110).print(table)
