# SPDX-License-Identifier: Apache-2.0
"""Calls of the cold side: answers, errors, crashes, hangs; one process at a time."""

import fcntl
import json
import os
import posix
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct import errors
from nvct.container import cold_process
from nvct.container.plan.store import Store
from nvct.errors import HostError, NvctError
from tests.support.cpu import LOOP, NICE, Limit, starved
from tests.support.descriptors import none_left_open
from tests.support.forked import run_forked
from tests.support.launcher import script
from tests.support.shim_lab import Lab


def cold(folder: Path, body: str) -> str:
    return str(script(folder / "python", body))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> bool:
    limit = Limit(seconds)
    while not condition():
        if limit.is_over:
            return False
        time.sleep(0.01)
    return True


def test_the_answer_is_the_object_on_stdout(tmp_path: Path) -> None:
    program = cold(tmp_path, """echo '{"a": [1, "b"]}'\n""")

    assert cold_process.run(program, ["config", "/c"], {}) == {"a": [1, "b"]}


def test_an_answer_larger_than_a_pipe_is_read_whole(tmp_path: Path) -> None:
    program = cold(
        tmp_path, """printf '{"a":"'; head -c 3000000 /dev/zero | tr '\\0' x; echo '"}'"""
    )

    assert len(str(cold_process.run(program, ["own"], {})["a"])) == 3_000_000


def test_the_cold_side_gets_its_arguments_and_only_some_variables(tmp_path: Path) -> None:
    program = cold(
        tmp_path, """printf '{"args":"%s","env":"%s"}' "$*" "$(env | sort | tr '\\n' ' ')"\n"""
    )
    env = {
        "PATH": "/usr/bin:/bin", "LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil", "A": "b",
        "NVIDIA_CTK_CONFIG_FILE_PATH": "/c", "NVCT_RUN_DIR": "/r", "NVIDIA_VISIBLE_DEVICES": "all",
    }  # fmt: skip

    answer = cold_process.run(program, ["own", "/c", "/r"], env)

    assert answer["args"] == "-I -m nvct.compile own /c /r"
    names = [entry.partition("=")[0] for entry in str(answer["env"]).split()]
    assert set(names) - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "PATH", "NVIDIA_CTK_CONFIG_FILE_PATH", "NVCT_RUN_DIR",
    }  # fmt: skip


@pytest.mark.parametrize("error_class", [HostError, errors.UnknownDeviceError])
def test_an_error_of_the_cold_side_is_raised_with_its_class(
    error_class: type[NvctError], tmp_path: Path
) -> None:
    answer = json.dumps(
        {"error": errors.to_dict(error_class("it's broken: \u20ac", hint="repair it"))}
    )
    (tmp_path / "answer").write_text(answer)
    program = cold(tmp_path, f"cat {tmp_path}/answer; exit 1\n")

    with pytest.raises(NvctError) as caught:
        cold_process.run(program, ["own"], {})

    assert type(caught.value) is error_class
    assert caught.value.message == "it's broken: \u20ac"
    assert caught.value.hint == "repair it"
    assert caught.value.code == error_class.code


@pytest.mark.parametrize("name", ["line", "LINE_LIMIT", "printable", "NoSuchError", "__name__"])
def test_an_error_of_an_unknown_class_is_an_nvct_error(name: str, tmp_path: Path) -> None:
    program = cold(tmp_path, f"""echo '{{"error": {{"class": "{name}", "message": "m"}}}}'\n""")

    with pytest.raises(NvctError, match=r"^m$") as caught:
        cold_process.run(program, ["own"], {})

    assert type(caught.value) is NvctError


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 1", "gave no answer"),
        ("echo Traceback; exit 1", "gave no answer"),
        ("echo '[1]'", "gave no answer"),
        ("echo '{} {}'", "gave no answer"),
        ("printf '\\377\\376'", "gave no answer"),
        ("kill -SEGV $$", "died of signal 11"),
        ("kill -KILL $$", "died of signal 9"),
    ],
)
def test_a_crash_or_a_malformed_answer_is_an_error_that_names_the_activity(
    body: str, reason: str, tmp_path: Path
) -> None:
    program = cold(tmp_path, body + "\n")

    with pytest.raises(HostError) as caught:
        cold_process.run(program, ["registry"], {})

    assert caught.value.message == (
        f"reading the CDI specs failed: {program} -m nvct.compile {reason}"
    )
    assert caught.value.hint


def test_a_missing_interpreter_is_named() -> None:
    with pytest.raises(HostError, match=r"^reading config.toml failed: /no/python cannot be st"):
        cold_process.run("/no/python", ["config"], {})


def test_a_cold_side_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program = cold(tmp_path, f"sleep infinity & echo $$ $! > {tmp_path}/pids; wait\n")

    with pytest.raises(HostError) as caught:
        cold_process.run(program, ["own"], {}, timeout_s=1.5)

    assert caught.value.message == "looking at the driver took longer than 1.5 s and was stopped"
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_cold_side_that_waits_for_a_processor_does_not_hang(tmp_path: Path) -> None:
    program = cold(tmp_path, f"{NICE}; {LOOP}; echo '{{}}'\n")

    with starved():
        began = time.monotonic()
        assert cold_process.run(program, ["own"], {}, timeout_s=0.2) == {}
        assert time.monotonic() - began > 0.2 or os.nice(0) > 0


def test_an_answer_that_comes_while_its_reader_waits_for_a_processor_is_read(
    tmp_path: Path,
) -> None:
    """The reader is stopped when the answer comes, and longer than the limit."""
    program = cold(
        tmp_path, "(sleep 1.5; kill -CONT $PPID) & sleep 0.2; kill -STOP $PPID; echo '{}'\n"
    )

    def read() -> None:
        began = time.monotonic()
        assert cold_process.run(program, ["own"], {}, timeout_s=0.6) == {}
        assert time.monotonic() - began > 1

    run_forked(read)


def test_what_sigkill_does_not_end_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state D: here the signal does not come."""
    monkeypatch.setattr(cold_process, "KILL_S", 0.1)
    monkeypatch.setattr(posix, "killpg", lambda _pid, _signal: None)
    program = cold(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600\n")

    with pytest.raises(HostError, match=r"took longer than 0\.2 s"):
        cold_process.run(program, ["own"], {}, timeout_s=0.2)

    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_a_cold_side_that_hangs_after_its_answer_is_killed(tmp_path: Path) -> None:
    program = cold(tmp_path, "echo '{}'; exec >&-; sleep 60\n")

    with pytest.raises(HostError, match="was stopped"):
        cold_process.run(program, ["own"], {}, timeout_s=0.4)


def test_a_blocked_alarm_does_not_disable_the_time_limit(tmp_path: Path) -> None:
    program = cold(tmp_path, "sleep 60\n")

    def child() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        with pytest.raises(HostError, match="was stopped"):
            cold_process.run(program, ["own"], {}, timeout_s=0.4)

    assert run_forked(child) == 0


def test_signals_and_descriptors_are_restored_after_a_call(tmp_path: Path) -> None:
    program = cold(tmp_path, "echo '{}'\n")
    handler = signal.getsignal(signal.SIGALRM)

    with none_left_open():
        cold_process.run(program, ["own"], {})

    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("debug", ["1", ""])
def test_stderr_of_the_cold_side_is_shown_for_debugging_only(
    debug: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = cold(tmp_path, "echo trace >&2; echo '{}'\n")

    cold_process.run(program, ["own"], {"NVCT_DEBUG": debug} if debug else {})

    assert capfd.readouterr().err == ("trace\n" if debug else "")


def test_a_lock_that_stays_held_is_an_error(lab: Lab, store: Store) -> None:
    holder = os.open(lab.run_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)

    with pytest.raises(HostError, match=r"has been locked by another process for 0\.2 s"):
        cold_process.under_lock(store, lambda: None, lambda: 1, timeout_s=0.2)
    os.close(holder)


def test_a_lock_is_free_again_after_a_failure(store: Store) -> None:
    def fail() -> int:
        raise HostError("no")

    for _ in range(2):
        with pytest.raises(HostError, match=r"^no$"):
            cold_process.under_lock(store, lambda: None, fail, timeout_s=0.2)


def test_without_a_run_directory_each_process_compiles(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "no" / "run"))

    assert cold_process.under_lock(store, lambda: 1, lambda: 2) == 2


def test_without_a_lock_each_process_compiles(lab: Lab, store: Store) -> None:
    (lab.run_dir / "lock").symlink_to("/etc/passwd")

    assert cold_process.under_lock(store, lambda: None, lambda: 2) == 2
