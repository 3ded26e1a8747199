# SPDX-License-Identifier: Apache-2.0
"""Kill `nvct runtime configure` before each of its changes on disk, and start the engine."""

import os
import re
import signal
import sys

from tests.engines.box import REPOSITORY
from tests.engines.daemons import Daemon, Snapshot

CODE = "import sys; sys.path.insert(0, {!r}); from tests.engines.crash import main; main()"
CHANGES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir")
"""Audit events that change a folder's entries; a rename also follows each write of a file."""
FEWEST = 4
"""Minimum of changes in a transaction: the journal, a file, and the journal twice more."""
MOST = 100
KILLED = -signal.SIGKILL
TEMPORARY = re.compile(r"(?<=/\.nvct-).*|(?<=^\.nvct-).*")


def leaves_an_engine_that_starts(daemon: Daemon, *flags: str) -> None:
    """Kill at every point; start the engine once for each distinct state of its files."""
    daemon.stop()
    snapshots = [daemon.original]
    for point in range(MOST):
        daemon.reset()
        code = CODE.format(str(REPOSITORY))
        arguments = ["runtime", "configure", f"--runtime={daemon.engine}", *flags]
        completed = daemon.box.call(sys.executable, "-c", code, str(point), *arguments)
        if completed.returncode == 0:
            break
        assert completed.returncode in (KILLED, 128 + signal.SIGKILL), completed
        remaining = {TEMPORARY.sub("", path): file for path, file in daemon.snapshot().items()}
        if remaining in snapshots:
            continue
        snapshots.append(remaining)
        _starts(daemon)
        daemon.undo()
        # A temporary file of the killed process may stay; no engine reads it.
        assert _but_temporary(daemon.snapshot()) == daemon.original
    else:
        raise AssertionError(f"it never ends by itself, after {point} kills")
    assert point >= FEWEST
    assert daemon.snapshot() != daemon.original
    _starts(daemon)


def _but_temporary(snapshot: Snapshot) -> Snapshot:
    return {path: file for path, file in snapshot.items() if not TEMPORARY.search(path)}


def _starts(daemon: Daemon) -> None:
    daemon.start()
    completed = daemon.run("echo runs")
    assert completed.stdout == "runs\n", completed
    daemon.stop()


def main() -> None:
    """Run nvct with the remaining arguments, and kill it before change number `argv[1]`."""
    writes_left = int(sys.argv.pop(1))
    own_pid = os.getpid()

    def watch(event: str, values: tuple[object, ...]) -> None:
        nonlocal writes_left
        if os.getpid() != own_pid:
            return  # child processes are not killed
        del values
        if event in CHANGES:
            if writes_left == 0:
                os.kill(own_pid, signal.SIGKILL)
            writes_left -= 1

    from nvct.cli.main import nvct

    sys.dont_write_bytecode = True
    sys.addaudithook(watch)
    nvct()
