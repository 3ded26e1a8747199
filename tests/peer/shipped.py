# SPDX-License-Identifier: Apache-2.0
"""Records what nvidia-mig-parted makes of each configuration of the file that NVIDIA ships with it.

The file lies beside NVIDIA's programs and is not in this repository: names and results are. Each
configuration begins with all GPUs out of MIG mode. One node is enough: it takes 400 commands.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.peer import mig

Run = Callable[..., tuple[int, str]]

FILE = "config-default.yaml"
"""`deployments/systemd/config-default.yaml` of github.com/NVIDIA/mig-parted."""
RESULTS = "shipped.json"
OFF = "all-disabled"
NODE = "a100-80"


def names(config: Path) -> list[str]:
    """Return the names of a file's configurations."""
    import yaml

    return list(yaml.safe_load(config.read_text(encoding="utf-8"))["mig-configs"])


def result(run: Run, options: Callable[[str], list[str]], name: str, work: Path) -> dict[str, Any]:
    """Apply a configuration, and return what comes of it.

    Args:
        run: runs a command line of nvidia-mig-parted; returns exit status and output.
        options: the options that choose a configuration.
        name: of the configuration.
        work: a folder for the checkpoint.
    """
    assert run("apply", *options(OFF))[0] == 0
    applied, _ = run("apply", *options(name))
    asserted, _ = run("assert", *options(name))
    checkpoint = work / "shipped.checkpoint"
    run("checkpoint", "-f", str(checkpoint))
    return {
        "apply": applied,
        "assert": asserted,
        "export": exported(run),
        "checkpoint": hashlib.sha256(checkpoint.read_bytes().strip()).hexdigest(),
    }


def exported(run: Run) -> Any:
    """Return the configuration that the GPUs have."""
    _, text = run("export", "-o", "json")
    return json.loads(text)["mig-configs"]["current"]


def record(programs: Path, target: Path, work: Path) -> None:
    """Write the results on a node; this changes its MIG instances."""
    config = programs / FILE
    recorder = mig.Recorder(programs, work, config)

    def run(*words: str) -> tuple[int, str]:
        output = recorder.run(*words)
        status = recorder.lines[-1].split()[-1]
        return int(status), output

    results = {
        name: result(run, lambda name: ["-f", mig.CONFIG, "-c", name], name, work)
        for name in names(config)
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in results.items()]
    (target / RESULTS).write_text("{\n" + ",\n".join(lines) + "\n}\n")
