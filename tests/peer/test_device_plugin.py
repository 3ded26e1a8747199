# SPDX-License-Identifier: Apache-2.0
"""nvct's device plugin answers as the recorded one of NVIDIA, on the same simulated nodes.

What differs on purpose is undone before the comparison: the devices of a container are in the
order of the machine; a node that two MIG devices share is named once; a GPU in
a PCI domain of more than 16 bits has its NUMA node and DRM nodes, which the incumbent looks for in
a folder that does not exist.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from nvct.agent.device_plugin import allocate, preferred, resources, specs
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.resources import Resource
from nvct.agent.device_plugin.settings import VENDOR, Settings
from nvct.agent.device_plugin.spec_files import request_of
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.inventory import Inventory
from nvct.agent.machine.place import Place
from nvct.errors import NvctError
from nvct.host.nvml.model import NvmlReport
from nvct_sim import tree
from tests.peer import cases
from tests.peer.__main__ import RECORDED
from tests.unit.agent import machines

Answers = dict[str, Any]

REFUSED = {
    "refused-strategy": "invalid --device-list-strategy option: 'somehow'",
}
"""Sentences of our own, in place of the incumbent's."""
GPUS_BY_SCORE = 8
"""Above that number of GPUs, nvct chooses by another algorithm."""


def recorded(node: str) -> dict[str, Answers]:
    return {
        name: json.loads((RECORDED / node / f"device-plugin/{name}.json").read_text("utf-8"))
        for name in cases.plugin(node)
    }


def settings_of(answers: Answers, folder: Path) -> Settings:
    config = folder / "config.json"
    config.write_text(json.dumps(answers["config"]))
    words = [*answers["flags"], f"--config-file={config}"]
    settings, warnings = options.resolve(words, {})
    assert warnings == ()
    return settings


def test_the_resources_and_their_devices_are_the_incumbents(
    machine: tuple[str, Inventory], tmp_path: Path
) -> None:
    name, inventory = machine
    for case, theirs in recorded(name).items():
        if "error" in theirs:
            with pytest.raises(NvctError) as caught:
                resources.resources(inventory, settings_of(theirs, tmp_path))
            # Theirs repeats "error visiting device" on the way.
            cause = REFUSED.get(case) or theirs["error"].rpartition(": ")[2]
            assert cause in caught.value.message
            continue
        ours, _ = resources.resources(inventory, settings_of(theirs, tmp_path))

        registered = {
            resource: answers["register"]["endpoint"]
            for resource, answers in theirs["resources"].items()
        }
        assert {r.name: r.endpoint for r in ours.values()} == registered, case
        for resource, answers in theirs["resources"].items():
            assert listed(ours[resource], inventory) == answers["devices"], (case, resource)


def listed(resource: Resource, inventory: Inventory) -> list[Answers]:
    """Return the devices as recorded: sorted, without zeros, and without the node of far GPUs."""
    without = far(inventory)
    devices: list[Answers] = []
    for device in sorted(resource.devices.values(), key=lambda device: device.id):
        entry: Answers = {"ID": device.id, "health": "Healthy"}
        if device.numa is not None and device.gpu not in without:
            entry["topology"] = {"nodes": [{"ID": str(device.numa)} if device.numa else {}]}
        devices.append(entry)
    return devices


def far(inventory: Inventory) -> set[str]:
    """Return the UUIDs of GPUs in PCI domains of more than 16 bits."""
    return {gpu.uuid for gpu in inventory.gpus if len(gpu.bus_id) > len("0000:00:00.0")}


def test_the_answers_to_allocate_are_the_incumbents(
    machine: tuple[str, Inventory], tmp_path: Path
) -> None:
    name, inventory = machine
    compared = 0
    for case, theirs in recorded(name).items():
        for resource, answers in theirs.get("resources", {}).items():
            settings = settings_of(theirs, tmp_path)
            ours = resources.resources(inventory, settings)[0][resource]
            node = resources.Node(
                control_nodes=inventory.control_nodes,
                imex_channels=settings.imex_channel_ids,
                features=features_of(theirs),
            )
            for asked in answers["allocate"]:
                answer = answered(ours, asked["devices_ids"], settings, node)
                assert in_order(answer) == in_order(asked["answer"]), (case, resource)
                compared += 1
    assert compared > 3


def features_of(theirs: Answers) -> tuple[str, ...]:
    """Return the features for which the incumbent found something to put into a CDI spec."""
    text = json.dumps(theirs)
    return tuple(f for f in ("gdrcopy", "gds", "mofed") if f"{VENDOR}/{f}=" in text)


def answered(
    resource: Resource, ids: list[str], settings: Settings, node: resources.Node
) -> Answers:
    try:
        allocate.check(resource, ids, settings)
    except NvctError as error:
        return {"error": f"UNKNOWN: {error.message}"}
    response = allocate.answer(resource, ids, settings, node, "RANDOM")
    return json_format.MessageToDict(response, preserving_proto_field_name=True)


def in_order(answer: Answers) -> Answers:
    """Return an answer with sorted lists, without repeated nodes."""
    result = json.loads(json.dumps(answer))
    for key in ("mounts", "devices", "cdi_devices"):
        if key in result:
            entries = {json.dumps(entry, sort_keys=True) for entry in result[key]}
            result[key] = sorted(entries)
    for key in ("envs", "annotations"):
        for name, value in result.get(key, {}).items():
            result[key][name] = sorted(value.split(","))
    return dict(result)


def test_the_preferred_devices_are_the_incumbents(machine: tuple[str, Inventory]) -> None:
    name, inventory = machine
    table = preferred.scores(inventory.links)
    uuids = {gpu.index: gpu.uuid for gpu in inventory.gpus}
    indices = {uuid: index for index, uuid in uuids.items()}
    for case, theirs in recorded(name).items():
        if case not in ("envvar", "mixed") or "error" in theirs:
            continue
        settings, _ = options.resolve(theirs["flags"], {})
        for resource, answers in theirs["resources"].items():
            ours = resources.resources(inventory, settings)[0][resource]
            for asked in answers["preferred"]:
                free, must = asked["available"], asked["must_include"]
                available, required = ([uuids[i] for i in group] for group in (free, must))
                chosen = preferred.preferred(ours, available, required, asked["size"], table)
                numbers = [indices[id_] for id_ in chosen]
                if len(free) <= GPUS_BY_SCORE:
                    assert numbers == asked["answer"], (case, resource, asked)
                else:
                    ours_score = score(chosen, table)
                    assert ours_score >= score([uuids[i] for i in asked["answer"]], table)


def test_the_cdi_specifications_have_the_incumbents_devices_with_their_nodes(
    machine: tuple[str, Inventory], node: tree.Node, tmp_path: Path
) -> None:
    """Mounts and hooks are those of `nvidia-ctk cdi generate`, which has tests of its own."""
    name, inventory = machine
    for case, theirs in recorded(name).items():
        files = sorted((RECORDED / name / "device-plugin").glob(f"{case}.cdi-*.json"))
        if not files:
            continue
        settings = settings_of(theirs, tmp_path)
        with machines.discovery(node) as discovery:
            report = asyncio.run(reported(discovery))
        place = Place(
            roots=discovery.roots, settings=settings, folder=str(tmp_path / case),
            stat_node=discovery.stat_node,
        )  # fmt: skip
        specs.write(place, request_of(settings, settings.imex_channel_ids), report)
        for file in files:
            kind = file.suffixes[-2].removeprefix(".cdi-")
            ours = tmp_path / case / f"{VENDOR}-{kind}.json"
            expected = nodes_of(file)
            for uuid in far(inventory) & expected.keys():
                expected[uuid] = nodes_of(ours)[uuid]
            assert nodes_of(ours) == expected, (case, kind)


async def reported(discovery: Discovery) -> NvmlReport:
    await discovery.inventory()
    return await discovery.nvml.report()


def nodes_of(path: Path) -> dict[str, list[str]]:
    """Return the paths of each device's nodes by its name, and those of all containers by "".

    Nodes by path are left out: in the incumbent's specification a hook makes links of that name.
    """
    spec = json.loads(path.read_text("utf-8"))
    common = {"name": "", "containerEdits": spec.get("containerEdits", {})}
    return {
        device["name"]: sorted(
            node["path"]
            for node in device["containerEdits"].get("deviceNodes", ())
            if "/by-path/" not in node["path"]
        )
        for device in (*spec["devices"], common)
    }


def score(ids: list[str], table: preferred.Scores) -> int:
    return sum(table.get((a, b), 0) for i, a in enumerate(ids) for b in ids[:i])
