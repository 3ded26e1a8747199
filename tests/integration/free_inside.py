# SPDX-License-Identifier: Apache-2.0
"""Containers that ask for free GPUs, inside a simulated node of eight GPUs, one in MIG mode."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from nvct.container import leases
from tests.integration import inside
from tests.support.processes import captured

WHOLE = 7
"""GPUs that are not in MIG mode."""
UIDS = range(2001, 2009)
TIMES = 50 if os.environ.get("NVCT_TESTS_PROFILE") == "full" else 13
"""Turns of each of four engines and eight users."""
SHOW = "nvidia-smi -L | grep -o 'GPU-[0-9a-f-]*' | tr '\\n' ' '; echo; exec sleep 600"
USER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from nvct.container import leases
from nvct.container.request.free import parse
from nvct.errors import HostError
try:
    print(*leases.claim(leases.folder_of({}), parse("free:1", "x"), sys.argv[2:], os.getpid()),
          flush=True)
except HostError as error:
    print(error, file=sys.stderr, flush=True)
    raise SystemExit(1)
time.sleep(600)
"""


def counted() -> set[str]:
    """Return the devices with a lease that counts."""
    fd = leases.open_folder(leases.folder_of({}))
    try:
        return leases.counted(fd)
    finally:
        os.close(fd)


def whole_gpus() -> list[str]:
    """Return the UUIDs of the GPUs that are not in MIG mode."""
    done = captured(["nvct", "ps", "--free", "--format=json"])
    return [one["uuid"] for one in json.loads(done.stdout) if not one["profile"]]


def start(work: Path, name: str, word: str) -> subprocess.Popen[str]:
    """Start a container; its first line of output has the UUIDs of its GPUs."""
    folder = inside.make(work, name, SHOW, env=[f"NVIDIA_VISIBLE_DEVICES={word}"])
    command = [*inside.command(work, folder)[:-1], id_of(name)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def delete(work: Path, name: str) -> None:
    """Delete a container, as an engine does after it was killed."""
    words = [inside.shim(), "--root", str(work / "runc"), "delete", "--force"]
    captured([*words, id_of(name)])


def id_of(name: str) -> str:
    """Return an id as engines give them."""
    return hashlib.sha256(f"{os.getpid()} {name}".encode()).hexdigest()


def life(work: Path) -> None:
    """A container gets what nobody has, keeps it while it lives, and is shown."""
    for layout in ("classic", "farm"):
        inside.configure(work, layout=layout)
        first = start(work, f"{layout}-one", "free:1")
        held = first_line(first)
        assert held.startswith("GPU-"), held or first.communicate()
        assert counted() == {held}
        rest = start(work, f"{layout}-rest", f"free:{WHOLE - 1}")
        others = first_line(rest).split()
        assert len({held, *others}) == WHOLE, others
        refused = start(work, f"{layout}-more", "free:1").communicate()
        assert "asks for free:1, but none of 7 are free; " in refused[1], refused
        shown = captured(["nvct", "ps", "--free", "--format=json"])
        devices = {one["uuid"]: one for one in json.loads(shown.stdout)}
        assert not devices[held]["free"], shown
        assert all(devices[uuid]["users"] for uuid in [held, *others])
        mig = start(work, f"{layout}-mig", "free:1@profile=1g.10gb")
        line = first_line(mig)
        assert line.startswith("GPU-"), line or mig.communicate()
        assert len(counted()) == WHOLE + 1
        explained = captured(["nvct", "explain", "--env", "NVIDIA_VISIBLE_DEVICES=free:1"])
        assert explained.returncode == 1
        assert "but none of 7 are free" in explained.stdout
        for name in ("one", "rest", "mig"):
            delete(work, f"{layout}-{name}")
        for process in (first, rest, mig):
            process.communicate(timeout=60)
        assert counted() == set()


def others_count(work: Path) -> None:
    """Who names a GPU, or computes on one, uses it; pods cannot ask."""
    inside.configure(work)
    named = start(work, "named", ",".join(whole_gpus()[:-1]))
    assert len(first_line(named).split()) == WHOLE - 1, named.communicate()
    last = start(work, "last", "free:1")
    assert len(first_line(last).split()) == 1
    none = start(work, "none", "free:1@memory>=40Gi").communicate()
    assert "but none of 7 are free; " in none[1], none
    large = start(work, "large", "free:1@memory>=1Ti").communicate()
    assert (
        "asks for free:1@memory>=1Ti, but 0 GPUs outside MIG mode fit: this host has 7 of 79.6Gi"
        in large[1]
    ), large
    for name in ("named", "last"):
        delete(work, name)
    assert counted() == set()


class Storm:
    """Containers and users that come and go, and who holds which GPU at each time."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.uuids = whole_gpus()
        self.site = str(Path(leases.__file__).parents[2])
        self.problems: list[str] = []
        self.served = 0
        self._owners: dict[str, str] = {}
        self._lock = threading.Lock()

    def keep(self, who: str, held: list[str]) -> None:
        with self._lock:
            self.problems += [f"{one} of {self._owners[one]} to {who}" for one in held
                              if one in self._owners]  # fmt: skip
            self._owners.update(dict.fromkeys(held, who))

    def drop(self, held: list[str]) -> None:
        with self._lock:
            for one in held:
                self._owners.pop(one, None)

    def user(self, uid: int) -> None:
        """Lease GPUs to processes of a user."""
        chosen = random.Random(uid)
        for _ in range(TIMES):
            words = [sys.executable, "-I", "-S", "-c", USER, self.site, *self.uuids]
            process = subprocess.Popen(
                words, user=uid, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            held = first_line(process).split()
            self.keep(f"user {uid}", held)
            time.sleep(chosen.random() * 0.2)
            self.drop(held)
            process.kill()
            process.communicate()

    def engine(self, number: int) -> None:
        """Create containers, and kill some creates, some runtimes and all containers."""
        chosen = random.Random(number)
        for turn in range(TIMES):
            name = f"c{number}-{turn}"
            process = start(self.work, name, f"free:{chosen.choice((1, 1, 2))}")
            held: list[str] = []
            if chosen.random() < 0.3:
                time.sleep(chosen.random() * 0.5)
                process.send_signal(signal.SIGKILL)  # at any moment of the create
            else:
                held = first_line(process).split()
                self.keep(name, held)
                self.served += bool(held)
                time.sleep(chosen.random() * 0.3)
                if chosen.random() < 0.5:
                    process.send_signal(signal.SIGKILL)  # the runtime; the container stays
                    time.sleep(chosen.random() * 0.3)
            self.drop(held)
            delete(self.work, name)
            process.communicate()


def storm(work: Path) -> None:
    """Containers and users come and go, killed at any moment: no GPU has two, none stays."""
    inside.configure(work)
    all_of_it = Storm(work)
    assert len(all_of_it.uuids) == WHOLE
    threads = [threading.Thread(target=all_of_it.user, args=(uid,)) for uid in UIDS]
    threads += [threading.Thread(target=all_of_it.engine, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_of_it.problems == []
    assert counted() == set()
    assert all_of_it.served > TIMES
    print(f"{all_of_it.served} containers had GPUs")
