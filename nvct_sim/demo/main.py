# SPDX-License-Identifier: Apache-2.0
"""The demonstration: create a simulated node, run the cases on it, remove everything.

Nothing outside of a temporary folder is written, and that is always removed in the end.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from rich.console import Console

from nvct import paths
from nvct.cdi.read import load
from nvct.cdi.types import Spec
from nvct.errors import ContainerNotPossibleError, HostError, NvctError, line
from nvct.host import discover
from nvct.host.roots import Roots
from nvct.launcher import cold
from nvct_sim import attach, bundle, rootfs, tree
from nvct_sim.demo import run, show
from nvct_sim.process import spawn

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"

KEPT = (
    "HOME", "TERM", "COLORTERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "LANG", "LC_ALL", "TMPDIR",
    "NVCT_DEBUG",
)  # fmt: skip
STOPPED = 130  # 128 + SIGINT, as in shells
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def config(driver_root: str, runtime: str, farm_dir: str) -> str:
    """Return the demonstration's config.toml."""
    return (
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        f"[nvidia-container-cli]\nroot = {_quoted(driver_root)}\n"
        f"[nvidia-container-runtime]\nruntimes = [{_quoted(runtime)}]\n"
        f"[nvct]\nfarm-dir = {_quoted(farm_dir)}\n"
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def environment(work: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the cases, with only the KEPT variables of the caller."""
    found = {name: env[name] for name in KEPT if name in env}
    programs = str(Path(sys.executable).parent)
    found["PATH"] = ":".join([programs, *paths.DEFAULT_PATH_DIRS])
    found[paths.CONFIG_ENV] = str(work / "config.toml")
    return found


def _on_signals(handler: Handler) -> dict[int, Handler]:
    """Handle SIGNALS except ignored ones, as under nohup; return the old handlers."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled: dict[int, Handler] = {
        number: was for number, was in before.items() if was != signal.SIG_IGN
    }
    for number in handled:
        signal.signal(number, handler)
    return handled


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a folder that is removed afterwards, even if a signal ends the demonstration."""
    before = _on_signals(signal.default_int_handler)
    work = Path(tempfile.mkdtemp(prefix="nvct-demo-"))
    try:
        yield work
    finally:
        _on_signals(signal.SIG_IGN)  # a second Ctrl-C must not interrupt the removal
        bundle.remove(work)
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that `inner` runs, and return its status; terminate it if interrupted."""
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
    """Run a part as this process's program: a signal stops it, an error prints one line."""

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
    """Return a program of this installation; HostError if the program is not installed."""
    found = Path(sys.executable).with_name(name)
    if not os.access(found, os.X_OK):
        raise HostError(
            f"{found} is missing", hint=f"run nvct launchers install --bin-dir {found.parent}"
        )
    return found


def generate(out: Console, path: str) -> Spec:
    """Run `nvidia-ctk cdi generate`, show its spec and return it; HostError if that fails."""
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


PROFILE = "h100-mig"
DRIVER_ROOT = "/run/nvidia/driver"
SPEC = "/var/run/cdi/nvidia.yaml"
RUNTIMES = ("runc", "crun")


def demonstrate() -> int:
    """Run the demonstration; return 0 if every container was as expected."""
    with folder() as work:
        with show.working("building a simulated node"):
            runtime = _runtime()
            node = tree.create("demo", PROFILE, base=work / "nodes")
        on_node = [cold.interpreter(), "-I", "-m", __spec__.name, str(work), str(runtime)]
        env = environment(work, os.environ)
        return wait(spawn(on_node, lambda: attach.enter(node), env=env))


def _runtime() -> Path | None:
    installed = [name for name in RUNTIMES if rootfs.find_program(name)] or RUNTIMES[:1]
    reasons = []
    for name in installed:
        try:
            rootfs.check(runtime=name)
        except ContainerNotPossibleError as error:
            reasons.append(error)
        else:
            return rootfs.find_program(name)
    raise ContainerNotPossibleError(
        f"the demonstration cannot run containers here: {reasons[0].message}",
        hint=_hint(reasons[0]),
    )


def _hint(reason: ContainerNotPossibleError) -> str:
    if reason.hint != "run as root":
        return reason.hint
    if os.geteuid() == 0:
        # Root without the capability is usually root in a container.
        return "if this is a container, start it with --privileged"
    sudo = "sudo " if rootfs.find_program("sudo") else ""
    return f"as root, run: {sudo}{Path(sys.executable).with_name('nvct')} demo"


def _inside(work: Path, runtime: Path) -> int:
    """Run the cases in the node's mount namespace; return the exit status."""
    out = show.console()
    text = config(DRIVER_ROOT, str(runtime), attach.farm_dir())
    (work / "config.toml").write_text(text, encoding="utf-8")
    inventory = discover.discover(Roots(driver_root=DRIVER_ROOT))
    show.banner(out, inventory.driver_version, runtime.name)
    show.node(out, inventory)
    show.heading(out, "2", "Its CDI specification")
    generate(out, SPEC)
    base = work / "rootfs"
    rootfs.build_rootfs(base)
    shim = program(paths.SHIM_PROGRAM)
    runner = run.Runner(work, base, shim, runtime)
    show.heading(out, "3", f"Containers, by {shim.name} and {runtime.name}")
    out.print()
    all_cases = run.cases(inventory.gpus)
    for case in run.first_of_each_plan(all_cases):
        runner.run(case)  # the first case of each plan compiles it; the others reuse it
    outcomes = []
    for number, case in enumerate(all_cases, 1):
        outcomes.append(runner.run(case))
        show.outcome(out, number, outcomes[-1])
    show.heading(out, "4", "What was injected, and how long it took")
    show.summary(out, outcomes, *runner.compare(all_cases[0]))
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(inner(lambda: _inside(Path(sys.argv[1]), Path(sys.argv[2]))))
