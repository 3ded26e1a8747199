# SPDX-License-Identifier: Apache-2.0
"""`make likeness RECORD=FILE`: what a simulated node of the same GPU answers otherwise than a real one.

The simulated node is recorded by the same parts, then both records are compared by what they have
in common: which functions and fields NVML answers and how it refuses the others, the values that
nvct reads, MIG profiles, labels, metrics, attributes of DRA, the lines of `nvidia-smi -q`.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from nvct.config import toml
from nvct.errors import UsageError
from nvct_sim import profile as profiles
from tests.gpu import record

Texts: TypeAlias = Mapping[str, str]
Answers: TypeAlias = dict[str, object]

PARTS = tuple(part for part in record.PARTS if part.name in
              {"smi", "nvml", "agents", "fields", "every"})  # fmt: skip
ABSENT = "absent"
SMI_Q = "smi/smi-02.txt"
OF_ONE_MACHINE = re.compile(
    r"uuid|bus|minor|pid|numa|pcieRoot|timestamp|machine|index", re.IGNORECASE
)
"""Names of what differs between two machines with the same GPU."""


def profile_of(texts: Texts) -> str:
    """Return the simulated node whose GPUs are a record's.

    Raises:
        UsageError: there is none.
    """
    name = verb(texts, "report")["gpus"][0]["name"]
    models = toml.loads((Path(profiles.__file__).parent / "profiles/models.toml").read_text())
    nodes = toml.loads((Path(profiles.__file__).parent / "profiles/nodes.toml").read_text())
    of_name = {key for key, model in models.items() if model["name"] == name}
    for node, description in nodes.items():
        if {gpu["model"] for gpu in description["gpus"]} <= of_name:
            return str(node)
    raise UsageError(f"no simulated node has {name}", hint="add it to nvct_sim/profiles")


def verb(texts: Texts, name: str) -> dict[str, Any]:
    """Return the last answer of a verb."""
    answers = [a for a in json.loads(texts["nvml/verbs.json"]) if a["verb"] == name]
    return answers[-1].get("value") or {}


def functions(texts: Texts) -> Answers:
    """Return for each function of NVML that it answers, or its error; of the first GPU."""
    found: Answers = {}
    name = ""
    for line in texts["every/log.txt"].splitlines():
        if line.startswith("nvml"):
            if line in found:
                name = ""  # the next GPU
            else:
                found[name := line] = "answers"
        elif line.startswith("  ") and name:
            found[name] = line.strip().partition(":")[0]
    return found


def fields(texts: Texts) -> Answers:
    """Return for each field of nvmlDeviceGetFieldValues its status; of the first GPU."""
    answers = json.loads(texts["fields/fields.json"]).items()
    return {key[2:]: value["nvmlReturn"] for key, value in answers if key.startswith("0.")}


def samples(texts: Texts) -> Answers:
    """Return for each value of monitoring whether NVML gives it, and why not."""
    gpu = verb(texts, "samples")["gpus"][0]
    return {**dict.fromkeys(gpu["values"], "has a value"), **gpu["errors"]}


def facts(texts: Texts) -> Answers:
    """Return what nvct reads of a GPU that does not change."""
    found: Answers = {}
    for name in ("report", "attributes", "properties", "mig"):
        answer = verb(texts, name)
        gpu = (answer.get("gpus") or list(answer.values()))[0]
        found |= {f"{name}.{key}": value for key, value in gpu.items()}
    found |= {f"dra.{key}": value
              for key, value in json.loads(texts["agents/dra.json"])[0]["attributes"].items()}  # fmt: skip
    return {key: value for key, value in found.items() if not OF_ONE_MACHINE.search(key)}


def labels(texts: Texts) -> Answers:
    """Return the labels of a Node."""
    pairs = (line.partition("=") for line in texts["agents/labels.txt"].splitlines())
    return {key: value for key, _, value in pairs
            if not OF_ONE_MACHINE.search(key) and not key.endswith(".count")}  # fmt: skip


def metrics(texts: Texts) -> Answers:
    """Return the names of metrics."""
    lines = texts["agents/metrics.txt"].splitlines()
    return {line.partition("{")[0]: "there" for line in lines if line.startswith("DCGM")}


def smi(texts: Texts) -> Answers:
    """Return the names of the lines of `nvidia-smi -q`, with what they are below."""
    found: Answers = {}
    above: list[tuple[int, str]] = []
    for line in texts[SMI_Q].splitlines()[3:]:
        name, _, value = line.partition(" : ")
        depth = len(name) - len(name.lstrip())
        above = [entry for entry in above if entry[0] < depth]
        if name.strip() and not name.startswith(("GPU ", "=")):
            path = "/".join([*(entry[1] for entry in above), name.strip()])
            found[path] = "N/A" if value.strip() == "N/A" else "there"
            above.append((depth, name.strip()))
    return found


COMPARED: dict[str, Callable[[Texts], Answers]] = {
    "function": functions, "field": fields, "value": samples, "fact": facts, "label": labels,
    "metric": metrics, "nvidia-smi -q": smi,
}  # fmt: skip


def differences(real: Texts, simulated: Texts) -> list[str]:
    """Return a line for each difference of two records."""
    lines: list[str] = []
    for kind, read in COMPARED.items():
        ours, theirs = read(simulated), read(real)
        lines += [
            f"{kind} {name}: real {theirs.get(name, ABSENT)}, simulated {ours.get(name, ABSENT)}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]
    return lines
