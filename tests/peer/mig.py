# SPDX-License-Identifier: Apache-2.0
"""Records nvidia-mig-parted: transcripts of commands, their output and exit status."""

import re
import subprocess
from pathlib import Path

PROGRAM = "nvidia-mig-parted"
CONFIGS = Path(__file__).parent / "mig-configs.yaml"
TIMEOUT_S = 120.0
CONFIG, CHECKPOINT, PLACEMENTS = "CONFIG", "CHECKPOINT", "PLACEMENTS"
"""Replace the paths of files in transcripts."""
LEVEL = re.compile(r'^time="[^"]*" level=(\w+) msg=(.*)$')
LOUD = ("warning", "error", "fatal")


class Recorder:
    """Runs commands on this node and keeps the transcript."""

    def __init__(self, programs: Path, work: Path, config: Path) -> None:
        """Use a file of configurations."""
        self._program = str(programs / PROGRAM)
        self._files = {CONFIG: str(config)}
        self._files |= {name: str(work / f"{name}.json") for name in (CHECKPOINT, PLACEMENTS)}
        self.lines: list[str] = []

    def run(self, *words: str) -> str:
        """Run a command, add it to the transcript, and return its output."""
        command = ["with-proc-modules", self._program]
        done = subprocess.run(
            [*command, *(self._files.get(word, word) for word in words)],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        said = [
            f"{found[1]}: {found[2]}"
            for line in done.stderr.splitlines()
            if (found := LEVEL.match(line)) and found[1] in LOUD
        ]
        self.lines += [f"$ {PROGRAM} {' '.join(words)}", *done.stdout.splitlines(), *said]
        self.lines.append(f"exit status {done.returncode}\n")
        return done.stdout

    def add_file(self, name: str) -> None:
        """Add a file to the transcript."""
        path = Path(self._files[name])
        self.lines += [f"{name}:", path.read_text().rstrip() if path.exists() else "(none)", ""]

    def write(self, path: Path) -> None:
        """Write the transcript, and begin a new one."""
        path.write_text("\n".join(self.lines))
        self.lines = []


def apply(programs: Path, work: Path, config: str) -> None:
    """Apply one of the configurations that the program generates for this node."""
    generated = _generate(programs, work)
    recorder = Recorder(programs, work, generated)
    recorder.run("apply", "-f", CONFIG, "-c", config)
    assert recorder.lines[-1] == "exit status 0\n", recorder.lines


def _generate(programs: Path, work: Path) -> Path:
    generated = work / "generated.yaml"
    generated.write_text(Recorder(programs, work, CONFIGS).run("generate-config"))
    return generated


def record(programs: Path, target: Path, work: Path) -> None:
    """Write the transcripts of a node; this changes its MIG instances."""
    target.mkdir(parents=True)
    recorder = Recorder(programs, work, CONFIGS)
    for words in (["export"], ["export", "-o", "json"], ["generate-config"]):
        recorder.run(*words)
    recorder.run("checkpoint", "-f", CHECKPOINT)
    recorder.add_file(CHECKPOINT)
    recorder.write(target / "state.txt")
    for name in _names():
        for command in ("assert", "apply", "assert"):
            recorder.run(command, "-f", CONFIG, "-c", name)
        recorder.run("export")
        recorder.run("checkpoint", "-f", PLACEMENTS)
        recorder.add_file(PLACEMENTS)
        recorder.write(target / f"{name}.txt")
    recorder.run("restore", "-f", CHECKPOINT)
    recorder.run("export")
    recorder.write(target / "restore.txt")


def _names() -> list[str]:
    import yaml

    return list(yaml.safe_load(CONFIGS.read_text())["mig-configs"])
