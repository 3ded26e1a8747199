# SPDX-License-Identifier: Apache-2.0
"""A process is looked up by its PID once; later reads are of that process, or fail."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvct.container.prestart.container import Container, Process
from nvct.errors import HostError
from tests.support.processes import captured


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["/bin/sleep", "100"])
    yield started
    started.kill()
    started.wait()


def test_a_process_that_has_ended_is_reported(child: subprocess.Popen[bytes]) -> None:
    process = Process(child.pid)
    child.kill()
    child.wait()

    with pytest.raises(HostError, match=f"there is no process {child.pid}"):
        process.hold()
    with pytest.raises(HostError, match="cannot be read: No such process"):
        process.read("cgroup")
    with pytest.raises(HostError, match="cannot be opened: No such process"):
        Container(child.pid, "/r", process=process)


def another(proc: Path, pid: int, of: int) -> None:
    """Let a process, in a /proc of links, have the number of another one."""
    folder = proc / str(pid)
    folder.unlink(missing_ok=True)
    folder.symlink_to(f"/proc/{of}")


def test_a_reused_pid_does_not_lead_to_another_process(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    another(tmp_path, 77, child.pid)
    process = Process(77, str(tmp_path))
    another(tmp_path, 77, os.getpid())

    assert process.read("stat").startswith(f"{child.pid} (".encode())
    with pytest.raises(HostError, match="no mount namespace of its own"):
        Container(77, "/r", process=process)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_proc_of_another_pid_namespace_is_refused(tmp_path: Path) -> None:
    """A PID of this namespace belongs to another process in the other one."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os, subprocess\n"
        "from nvct.errors import HostError\n"
        "from nvct.container.prestart.container import Process\n"
        "child = subprocess.Popen(['/bin/sleep', '100'])\n"
        "try:\n"
        "    for pid in (child.pid, os.getpid()):\n"
        "        try:\n"
        "            process = Process(pid)\n"
        "            process.hold()\n"
        "            print('held')\n"
        "        except HostError as error:\n"
        "            print(error.message)\n"
        "finally:\n"
        "    child.kill()\n"
    )
    program = [sys.executable, "-I", "-c", code, str(Path(__file__).parents[4])]

    def output(*flags: str) -> list[str]:
        result = captured(["unshare", "--fork", "--pid", *flags, *program], check=True)
        return result.stdout.splitlines()

    assert output("--mount-proc") == ["held", "held"]
    assert "held" not in output()
    assert all("another PID namespace" in line or "cannot be opened" in line for line in output())


@pytest.mark.parametrize(
    "error", [None, OSError(38, "no such call"), PermissionError(1, "filter")]
)
def test_without_pidfds_the_process_is_still_opened_once(
    error: OSError | None, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        assert error is not None
        raise error

    replacement: Callable[[int], int] | None = refuse if error else None
    monkeypatch.setattr("posix.pidfd_open", replacement)
    process = Process(child.pid)
    process.hold()

    assert process.read("stat").startswith(f"{child.pid} (".encode())
    process.close()
