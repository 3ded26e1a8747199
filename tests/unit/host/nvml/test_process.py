# SPDX-License-Identifier: Apache-2.0
"""The worker's process: what it inherits, and when it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from nvct.host.nvml.session import NvmlSession
from tests.unit.host.nvml.sessions import (
    TIMEOUT_S,
    entries,
    is_running,
    pid_of,
    wait_until_gone,
)


def test_no_handler_of_this_process_runs_in_the_worker(session: NvmlSession, log: Path) -> None:
    def handler(_number: int, _frame: object) -> None:
        log.write_text(f"handled {os.getpid()}\n")

    before = signal.signal(signal.SIGTERM, handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        session.check()
        pid = pid_of(session)
        status = Path(f"/proc/{pid}/status").read_text()
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)
        assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)

    assert "\nSigBlk:\t0000000000000000\n" in status
    assert entries(log) == [("init", pid)]


def test_the_worker_has_no_file_of_this_process(session: NvmlSession, tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - positional only
        session.check()
    folder = Path(f"/proc/{pid_of(session)}/fd")

    targets = {int(link.name): os.readlink(link) for link in folder.iterdir()}

    assert [targets.pop(number) for number in (0, 1, 2)] == ["/dev/null"] * 3
    assert [text.partition(":")[0] for text in targets.values()] == ["socket"]


def test_the_worker_has_a_name_of_its_own(session: NvmlSession) -> None:
    session.check()

    assert Path(f"/proc/{pid_of(session)}/comm").read_text() == "nvct-nvml\n"


def test_a_concurrently_started_program_inherits_no_socket(
    session: NvmlSession,
) -> None:
    session.check()
    worker_ = session._worker
    assert worker_
    names = subprocess.run(
        ["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True
    ).stdout.split()
    assert str(worker_.connection.fileno()) not in names


def test_a_fork_of_this_process_has_a_worker_of_its_own(session: NvmlSession, log: Path) -> None:
    session.check()
    pid = pid_of(session)

    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            session.check()
            session.close()
        os._exit(0)
    os.waitpid(child, 0)

    words = entries(log)
    assert [word for word, _ in words] == ["init", "init"]
    assert words[1][1] != pid
    session.check()
    assert pid_of(session) == pid


HUNG_PARENT = """
import threading, time
from nvct.host.nvml.session import NvmlSession
from tests.unit.host.nvml.sessions import hang
session = NvmlSession("/lib/libnvidia-ml.so.1", 600, hang)
threading.Timer(0.5, lambda: print(session._worker.pid, flush=True)).start()
session.check()
"""


def test_a_worker_that_hangs_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        parent.wait(TIMEOUT_S)

    wait_until_gone(pid)


def test_the_worker_outlives_the_thread_that_started_it(session: NvmlSession) -> None:
    thread = threading.Thread(target=session.check)
    thread.start()
    thread.join()
    pid = pid_of(session)
    time.sleep(0.1)

    session.check()

    assert pid_of(session) == pid


def test_the_worker_ignores_the_terminals_interrupt(session: NvmlSession) -> None:
    session.check()
    pid = pid_of(session)
    os.kill(pid, signal.SIGINT)

    session.check()

    assert pid_of(session) == pid
