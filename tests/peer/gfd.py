# SPDX-License-Identifier: Apache-2.0
"""Records gpu-feature-discovery: the labels of a node, sorted."""

import json
import re
import subprocess
from pathlib import Path

from tests.peer import cases
from tests.peer.cases import Case

PROGRAM = "gpu-feature-discovery"
COMMON = ("--oneshot", "--no-timestamp", "--use-node-feature-api=false")
TIMEOUT_S = 60.0


def record(programs: Path, name: str, target: Path, work: Path) -> None:
    """Write a file for each case of a node: its labels, or the program's last error."""
    target.mkdir(parents=True)
    for case_name, case in cases.gfd(name).items():
        runs = [labels(programs, case, work) for _ in range(cases.NODES[name].runs)]
        if isinstance(runs[0], str):
            (target / f"{case_name}.error").write_text(f"{runs[0]}\n")
        else:
            (target / f"{case_name}.labels").write_text(_common(runs))


def labels(programs: Path, case: Case, work: Path) -> dict[str, str] | str:
    """Return the labels that one run writes, or the program's last error."""
    (work / "machine").write_text(f"{cases.MACHINE}\n")
    output = work / "labels"
    output.unlink(missing_ok=True)
    command = [
        str(programs / PROGRAM), *COMMON, f"--machine-type-file={work}/machine",
        f"--output-file={output}", *case.flags,
    ]  # fmt: skip
    if case.config:
        (work / "config.json").write_text(json.dumps(case.config))
        command.append(f"--config-file={work}/config.json")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode or not output.exists():
        last = [line for line in done.stderr.splitlines() if re.match(r"[EF]\d{4} ", line)][-1]
        sentence = re.sub(r"^[EF]\d{4} \S+ +\d+ \S+\] ", "", last)
        return f"exit status {done.returncode}: {sentence}"
    return dict(line.split("=", 1) for line in output.read_text().splitlines())


def _common(runs: list[dict[str, str] | str]) -> str:
    """Return the labels of all runs as lines; a line has all values if runs differ."""
    values: dict[str, set[str]] = {}
    for run in runs:
        assert not isinstance(run, str)
        for key, value in run.items():
            values.setdefault(key, set()).add(value)
    lines = []
    for key, different in sorted(values.items()):
        first = "" if len(different) == 1 else "# by chance: "
        lines.append(f"{first}{key}={' or '.join(sorted(different))}\n")
    return "".join(lines)
