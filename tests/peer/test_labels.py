# SPDX-License-Identifier: Apache-2.0
"""nvct's labels are the recorded ones of NVIDIA's GPU feature discovery, on the same nodes.

What differs on purpose is undone before the comparison: the mode of GPUs in a PCI domain of more
than 16 bits, which the incumbent looks for in a folder that does not exist.
"""

import asyncio
import json
from pathlib import Path

import pytest

from nvct.agent.labels import compute, gather, outputs
from nvct.agent.labels import settings as options
from nvct.agent.labels.facts import Facts, Labels, is_key, is_value
from nvct.agent.labels.settings import Settings
from nvct.errors import HostError
from nvct_sim.tree import Node
from tests.peer import cases
from tests.peer.__main__ import RECORDED
from tests.unit.agent import machines

MODE = "nvidia.com/gpu.mode"
CHANCE = "# by chance: "
FEATURE_FILE_LIMIT = 65536
"""Bytes; Node Feature Discovery skips a larger file."""
FAR = {"mixed"}
"""Nodes with a GPU in a PCI domain of more than 16 bits."""


@pytest.fixture(scope="module")
def facts(node: Node) -> Facts:
    machine = node.tree / "machine"
    machine.write_text(f"{cases.MACHINE}\n")
    with machines.discovery(node) as discovery:
        found, warnings = asyncio.run(gather.with_gpus(discovery, str(machine)))
    assert warnings == []
    return found


def rules_of(case: cases.Case, folder: Path, *more: str) -> Settings:
    words = [*case.flags, "--no-timestamp", *more]
    if case.config:
        (folder / "config.json").write_text(json.dumps(case.config))
        words.append(f"--config-file={folder}/config.json")
    settings, warnings = options.resolve(words, {})
    assert warnings == ()
    return settings


@pytest.mark.parametrize("case", [*cases.GFD, *cases.GFD_MIG])
def test_the_labels_are_the_incumbents(
    case: str, node: Node, facts: Facts, tmp_path: Path
) -> None:
    if case not in cases.gfd(node.name):
        return
    rules = rules_of(cases.gfd(node.name)[case], tmp_path, "--extra-labels=")
    error = RECORDED / node.name / f"gpu-feature-discovery/{case}.error"
    if error.exists():
        with pytest.raises(HostError) as caught:
            compute.labels(facts, rules)
        assert error.read_text().strip().endswith(caught.value.message)
        return
    if case == "vfio":
        with machines.discovery(node) as discovery:
            facts, _ = asyncio.run(gather.with_passthrough(discovery, ""))
    ours, _ = compute.labels(facts, rules)

    file = RECORDED / node.name / f"gpu-feature-discovery/{case}.labels"
    theirs, by_chance = recorded(file.read_text(encoding="utf-8"))
    if node.name in FAR and facts.gpus:
        assert (ours.pop(MODE), theirs.pop(MODE)) == ("compute", "unknown")
    assert {key: value for key, value in ours.items() if key not in by_chance} == theirs
    assert all(ours[key] in values for key, values in by_chance.items())


def recorded(text: str) -> tuple[Labels, dict[str, list[str]]]:
    """Return labels, and the possible values of those that chance chooses."""
    lines = [line.removeprefix(CHANCE).split("=", 1) for line in text.splitlines()]
    chance = [line.startswith(CHANCE) for line in text.splitlines()]
    pairs = list(zip(lines, chance, strict=True))
    return (
        {key: value for (key, value), varies in pairs if not varies},
        {key: value.split(" or ") for (key, value), varies in pairs if varies},
    )


def test_more_labels_add_to_the_incumbents_and_change_none(node: Node, facts: Facts) -> None:
    few, _ = compute.labels(facts, options.resolve(["--extra-labels="], {})[0], 1)
    words = [f"--extra-labels={','.join(options.EXTRA)}"]
    many, _ = compute.labels(facts, options.resolve(words, {})[0], 1)

    assert few.items() < many.items()
    assert many["nvidia.com/gpu-memory"] == many["nvidia.com/gpu.memory"]
    assert many["feature.node.kubernetes.io/pci-10de.present"] == "true"
    has_ecc = not node.name.startswith("gtx")
    assert many["nvidia.com/gpu.ecc"] == str(has_ecc).lower()


def test_a_node_with_several_models_has_labels_of_each(node: Node, facts: Facts) -> None:
    labels, _ = compute.labels(facts, options.resolve([], {})[0], 1)
    counts = {
        key: value for key, value in labels.items() if key.startswith("nvidia.com/gpu.product.")
    }
    if node.name != "mixed":
        assert counts == {}
        return
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert {key: value for key, value in counts.items() if key.endswith(".count")} == {
        "nvidia.com/gpu.product.Tesla-T4.count": "1",
        "nvidia.com/gpu.product.NVIDIA-A100-SXM4-80GB.count": "2",
        "nvidia.com/gpu.product.NVIDIA-H100-80GB-HBM3.count": "2",
    }
    assert labels["nvidia.com/gpu.product.Tesla-T4.memory"] == "15360"
    assert (
        labels["nvidia.com/gpu.product.NVIDIA-A100-SXM4-80GB.replicas"] == "0"
    )  # all in MIG mode


@pytest.mark.parametrize("name", cases.IN_PODS)
def test_in_a_pod_the_incumbent_finds_the_same(name: str, node: Node, facts: Facts) -> None:
    if cases.IN_PODS[name].node != node.name:
        return
    text = (RECORDED / name / "gpu-feature-discovery.labels").read_text(encoding="utf-8")
    settings, _ = options.resolve(["--no-timestamp", "--extra-labels="], {})

    assert compute.labels(facts, settings)[0] == recorded(text)[0]


def test_node_feature_discovery_accepts_the_file(node: Node, facts: Facts) -> None:
    """Rules of its source `local`: size, one label a line; and those of the API server."""
    words = ["--mig-strategy=mixed", f"--extra-labels={','.join(options.EXTRA)}"]
    settings, _ = options.resolve(words, {})
    labels, _ = compute.labels(facts, settings, 1)

    text = outputs.text_of(labels)

    assert len(text) <= FEATURE_FILE_LIMIT
    pairs = [line.split("=", 1) for line in text.splitlines()]
    assert dict(map(tuple, pairs)) == labels  # type: ignore[arg-type]
    assert all(is_key(key) and is_value(value) for key, value in pairs)
    domains = {key.partition("/")[0] for key, _ in pairs}
    assert domains == {"nvidia.com", "feature.node.kubernetes.io"}


def test_an_excluded_model_has_no_labels(node: Node) -> None:
    if node.name != "mixed":
        return
    with machines.discovery(node) as discovery:
        every, _ = asyncio.run(gather.with_gpus(discovery, ""))
        some, _ = asyncio.run(gather.with_gpus(discovery, "", ("*A100*", "0")))

    models = [gpu.model for gpu in every.gpus]
    left = [gpu.model for gpu in some.gpus]
    assert left == [model for model in models[1:] if "A100" not in model]
    assert 0 < len(left) < len(models)
