# SPDX-License-Identifier: Apache-2.0
"""Kill `nvct runtime configure` before each of its changes on disk, and start the engine."""

from __future__ import annotations

import os
import re
import signal
import sys

from tests.engines.box import REPOSITORY

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    seen = [daemon.original]
    for point in range(MOST):
        daemon.reset()
        code = CODE.format(str(REPOSITORY))
        words = ["runtime", "configure", f"--runtime={daemon.engine}", *flags]
        done = daemon.box.call(sys.executable, "-c", code, str(point), *words)
        if done.returncode == 0:
            break
        assert done.returncode in (KILLED, 128 + signal.SIGKILL), done
        left = {TEMPORARY.sub("", path): found for path, found in daemon.snapshot().items()}
        if left in seen:
            continue
        seen.append(left)
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
    return {path: found for path, found in snapshot.items() if not TEMPORARY.search(path)}


def _starts(daemon: Daemon) -> None:
    daemon.start()
    done = daemon.run("echo runs")
    assert done.stdout == "runs\n", done
    daemon.stop()


def main() -> None:
    """Run nvct with the remaining arguments, and kill it before change number `argv[1]`."""
    left = int(sys.argv.pop(1))
    own = os.getpid()

    def watch(event: str, values: tuple[object, ...]) -> None:
        nonlocal left
        if os.getpid() != own:
            return  # child processes are not killed
        del values
        if event in CHANGES:
            if left == 0:
                os.kill(own, signal.SIGKILL)
            left -= 1

    from nvct.cli.main import nvct

    sys.dont_write_bytecode = True
    sys.addaudithook(watch)
    nvct()
