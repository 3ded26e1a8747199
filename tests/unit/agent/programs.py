# SPDX-License-Identifier: Apache-2.0
"""The agent's programs as real processes on a simulated node, in a private mount namespace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import node_changes, tree
from nvct_sim.attach import DRIVER_ROOT
from nvct_sim.tree import Node
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import REPOSITORY

DIE_WITH_TESTS = ("setpriv", "--pdeathsig", "KILL")
START = """
import sys, time
from pathlib import Path
from nvct.errors import HostError
from nvct.linux.kernel import KERNEL
from nvct_sim import attach
from nvct_sim.tree import load
try:
    if sys.argv[1]:
        attach.enter(load(Path(sys.argv[1])), host_run=False)
    else:
        attach.make_private()
        KERNEL.mount("run", "/run", "tmpfs")
except HostError as error:
    sys.exit(str(error))
print("ready", flush=True)
time.sleep(1e6)
"""
TIMEOUT_S = 30.0
PORT = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


class Machine:
    """A simulated node that programs are started on; they end with it."""

    def __init__(self, node: Node | None, kubelet: str, work: Path) -> None:
        """Make the namespace.

        Args:
            node: with device nodes; None is a machine without GPUs.
            kubelet: folder of the kubelet's socket.
            work: for logs.

        Raises:
            ContainerNotPossibleError: it needs root's privileges.
        """
        self.node, self.kubelet, self.work = node, kubelet, work
        self.programs: list[Program] = []
        self._holder = subprocess.Popen(
            [*DIE_WITH_TESTS, sys.executable, "-c", START, str(node.tree) if node else ""], cwd=REPOSITORY,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout
        if self._holder.stdout.readline() != "ready\n":
            raise ContainerNotPossibleError(self._holder.communicate()[1].strip()[-200:])
        self.holder = self._holder.pid
        self.run = Path(f"/proc/{self.holder}/root/run")

    def start(self, *words: str, **env: str) -> Program:
        """Start `nvct agent` with a free port."""
        number = len(self.programs)
        log = self.work / f"agent-{number}.log"
        settings = {
            "KUBELET_SOCKET": f"{self.kubelet}/kubelet.sock",
            "NVCT_AGENT_LISTEN": "127.0.0.1:0",
            "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
            "FAIL_ON_INIT_ERROR": "false",
            "PATH": os.environ["PATH"],
            **env,
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*DIE_WITH_TESTS, "nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt",
                 sys.executable, "-m", "nvct.cli", "nvct", "agent", *words],
                env=settings, cwd=REPOSITORY, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        program = Program(process, log)
        self.programs.append(program)
        return program

    def close(self) -> None:
        """Kill what still runs."""
        for program in self.programs:
            program.kill()
        self._holder.kill()
        self._holder.communicate()


class Program:
    """A running agent."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT_S)

    def status(self) -> dict[str, Any]:
        """Return its /status; {} if it does not answer."""
        found = PORT.search(self.log)
        if not found:
            return {}
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(("127.0.0.1", int(found[1])), TIMEOUT_S) as connection,
        ):
            connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            data = b"".join(iter(lambda: connection.recv(65536), b""))
            document: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2])
            return document
        return {}

    @property
    def state(self) -> str:
        return str(self.status().get("state", ""))

    def pss_kib(self) -> int:
        """Return the memory of the process and its descendants: proportional set size."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.tree()]
        return sum(int(re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE)[0]) for text in rollups)

    def tree(self) -> list[int]:
        """Return the ids of the process and its descendants."""
        pids = [self.process.pid]
        for pid in pids:
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return pids


def wait_for(holds: Any, programs: list[Program], timeout_s: float = TIMEOUT_S) -> float:
    """Wait until a condition holds; return how long it took in seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, "\n---\n".join(p.log for p in programs)
        time.sleep(0.05)
    return time.monotonic() - began


@contextlib.contextmanager
def simulated(name: str, profile: str, tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine of a profile's node; skips where none can be built."""
    try:
        with in_memory(tmp_path) as nodes, tempfile.TemporaryDirectory(dir="/tmp") as folder:
            node = tree.create(name, profile, nodes, native_cache=CACHE)
            machine = Machine(node, folder, tmp_path)
            try:
                yield machine
            finally:
                node_changes.set_fault(node, "hang", 0)
                machine.close()
                tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
