# SPDX-License-Identifier: Apache-2.0
"""The demonstration's folder, its configuration, and the processes it starts.

Nothing outside the folder is written. The folder is removed however the demonstration ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nvct import paths
from nvct.cdi.read import load
from nvct.errors import HostError, NvctError, line
from nvct_sim import remove
from nvct_sim.demo import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType
    from typing import TypeAlias

    from rich.console import Console

    from nvct.cdi.types import Spec

    Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"

KEPT = (
    "HOME", "TERM", "COLORTERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "LANG", "LC_ALL", "TMPDIR",
    "NVCT_DEBUG",
)  # fmt: skip
STOPPED = 130  # 128 + SIGINT, as in shells
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in a demonstration's config.toml.

    Attributes:
        driver_root: driver root of the node.
        runtime: the low-level runtime.
        farm_dir: folder for views of the node's driver.
        nvct: further lines of the table [nvct].
        more: further tables, as TOML.
    """

    driver_root: str
    runtime: str
    farm_dir: str
    nvct: str = ""
    more: str = ""

    def text(self) -> str:
        """Return the config.toml."""
        return (
            "accept-nvidia-visible-devices-as-volume-mounts = true\n"
            f"[nvidia-container-cli]\nroot = {quoted(self.driver_root)}\n"
            f"[nvidia-container-runtime]\nruntimes = [{quoted(self.runtime)}]\n"
            f"[nvct]\nfarm-dir = {quoted(self.farm_dir)}\n{self.nvct}{self.more}"
        )


def quoted(text: str) -> str:
    """Return text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


def environment(work: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the cases: from the caller's only the variables in KEPT."""
    found = {name: env[name] for name in KEPT if name in env}
    programs = str(Path(sys.executable).parent)
    found["PATH"] = ":".join([programs, *paths.DEFAULT_PATH_DIRS])
    found[paths.CONFIG_ENV] = str(work / "config.toml")
    return found


def _on_signals(handler: Handler) -> dict[int, Handler]:
    """Handle SIGNALS except those ignored, as by nohup; return the old handlers."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled: dict[int, Handler] = {
        number: was for number, was in before.items() if was != signal.SIG_IGN
    }
    for number in handled:
        signal.signal(number, handler)
    return handled


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a folder that is removed afterwards, also if a signal ends the demonstration."""
    before = _on_signals(signal.default_int_handler)
    work = Path(tempfile.mkdtemp(prefix="nvct-demo-"))
    try:
        yield work
    finally:
        _on_signals(signal.SIG_IGN)  # a second Ctrl-C must not interrupt the removal
        remove.remove(work)
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that `inner` runs; return its status. An interrupt terminates it.

    Raises:
        KeyboardInterrupt: a signal stopped this process or the other one.
    """
    stopped = False
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            stopped = True
            process.terminate()  # a terminal signals both processes, kill(1) only this one
            continue
        if stopped or status == STOPPED:
            raise KeyboardInterrupt
        return status


def inner(part: Callable[[], int]) -> int:
    """Run a part in a process of its own: one signal stops it, an error prints one line."""

    def stop(_number: int, _frame: object) -> None:
        _on_signals(signal.SIG_IGN)
        raise KeyboardInterrupt

    _on_signals(stop)
    try:
        return part()
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        # The reader has ended, as in `nvct demo | head`; the flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as in newer versions of rich
    except NvctError as error:
        sys.stdout.flush()
        sys.stderr.write(line("nvct", error) + "\n")
        return error.exit_status


def program(name: str) -> Path:
    """Return a program of this installation.

    Raises:
        HostError: the program is not installed.
    """
    found = Path(sys.executable).with_name(name)
    if not os.access(found, os.X_OK):
        raise HostError(
            f"{found} is missing", hint=f"run nvct launchers install --bin-dir {found.parent}"
        )
    return found


def generate(out: Console, path: str) -> Spec:
    """Run `nvidia-ctk cdi generate` as a user does; show the CDI spec and return it.

    Raises:
        HostError: the command fails; the message has the last line of its errors.
    """
    words = ["nvidia-ctk", "cdi", "generate", "--output", path]
    show.command(out, shlex.join(words))
    done = subprocess.run(
        [program(words[0]), *words[1:]], check=False, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise HostError(f"nvidia-ctk cdi generate failed: {said[-1]}")
    found = load.load_file(path)
    show.spec(out, found)
    return found
