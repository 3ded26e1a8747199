# SPDX-License-Identifier: Apache-2.0
"""Records NVIDIA's device plugin: its registrations, lists, preferences and allocations."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvct_sim import tree
from tests.peer import cases
from tests.peer.cases import Case
from tests.peer.kubelet import Plugin

# A request: free ids, ids that the answer must have, number of ids.

Preferred = tuple[list[str], list[str], int]

PROGRAM = "nvidia-device-plugin"
COMMON = ("--driver-root=/", "--driver-root-ctr-path=/")
WITH_SPEC = ("cdi-cri", "cdi-cri-index")
"""Suffixes of cases with recorded CDI specs; the other cases have the same specs."""
NVIDIA_MAJOR = 195
"""The only fixed major: of /dev/nvidia0 and so on."""
CDI_FOLDER = Path("/var/run/cdi")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LINE_LENGTH = 99
MAX_GPUS = 64
LARGEST_FOR_SUBSETS = 8
"""With more GPUs the plugin tries too many partitions: over two million for 2 of 16 GPUs."""
SUBSETS = 24


def record(programs: Path, name: str, target: Path, work: Path) -> None:
    """Write a file for each case of a node."""
    target.mkdir(parents=True)
    for case_name, case in cases.plugin(name).items():
        answers = _record(programs, name, case, work)
        specs = answers.pop("cdi")
        _write(target / f"{case_name}.json", answers)
        for kind, spec in specs.items() if case_name.endswith(WITH_SPEC) else ():
            _write(target / f"{case_name}.cdi-{kind}.json", spec)


def _write(path: Path, content: object) -> None:
    path.write_text(f"{written(content)}\n")


def written(content: object, before: str = "") -> str:
    """Return JSON with sorted keys; a value that fits on a line is on one line.

    Args:
        content: the data.
        before: the indentation of its lines.
    """
    text = json.dumps(content, sort_keys=True)
    if len(before) + len(text) <= LINE_LENGTH or not isinstance(content, (dict, list)):
        return text
    inner = f"{before}  "
    if isinstance(content, list):
        lines = [written(one, inner) for one in content]
    else:
        pairs = sorted(content.items())
        lines = [f"{json.dumps(key)}: {written(value, inner)}" for key, value in pairs]
    first, last = "[]" if isinstance(content, list) else "{}"
    return first + ",".join(f"\n{inner}{line}" for line in lines) + f"\n{before}{last}"


def _record(programs: Path, name: str, case: Case, work: Path) -> dict[str, Any]:
    for spec in CDI_FOLDER.glob("k8s.*"):
        spec.unlink()
    command = [str(programs / PROGRAM), *COMMON, *case.flags]
    if case.config:
        config = work / "config.json"
        config.write_text(json.dumps(case.config))
        command.append(f"--config-file={config}")
    plugin = Plugin(command, work / "plugin.log")
    answers = {}
    for request in plugin.registered if plugin.serves else ():
        answers[request["resource_name"]] = {
            "register": request, **_ask(plugin, request, _places(name)),
        }  # fmt: skip
    specs = _specs()
    status, log = plugin.stop()
    asked: dict[str, Any] = {"flags": list(case.flags), "config": dict(case.config), "cdi": specs}
    if plugin.serves:
        return {**asked, "resources": answers}
    return {**asked, "exit_status": status, "error": _last_error(log)}


def _specs() -> dict[str, Any]:
    """Return the specs that the plugin wrote, by class; majors that depend on the boot are 0."""
    specs = {}
    for path in sorted(CDI_FOLDER.glob("k8s.*")):
        spec = json.loads(path.read_text())
        for edits in (spec["containerEdits"], *(one["containerEdits"] for one in spec["devices"])):
            for node in edits.get("deviceNodes", ()):
                if node.get("major") != NVIDIA_MAJOR:
                    node["major"] = 0
        specs[path.stem.removeprefix("k8s.device-plugin.nvidia.com-")] = spec
    return specs


def _last_error(log: str) -> str:
    """Return the program's last error, without date and source position."""
    lines = [line for line in log.splitlines() if re.match(r"[EF]\d{4} |error:", line)]
    if not lines:
        return "it runs, and registers nothing" if "No devices found" in log else log[-400:]
    return re.sub(r"^[EF]\d{4} \S+ +\d+ \S+\] ", "", lines[-1])


def _places(name: str) -> dict[str, int]:
    """Return the number of each GPU of a node, by UUID."""
    return {tree.gpu_uuid(name, index): index for index in range(MAX_GPUS)}


def _ask(plugin: Plugin, request: dict[str, Any], places: dict[str, int]) -> dict[str, Any]:
    endpoint = str(request["endpoint"])
    listed = plugin.call(endpoint, "ListAndWatch")
    devices = sorted(listed.get("devices", ()), key=lambda device: str(device["ID"]))
    ids = [str(device["ID"]) for device in devices]
    return {
        "options": plugin.call(endpoint, "GetDevicePluginOptions"),
        "devices": devices,
        "allocate": [
            {"devices_ids": asked, "answer": _allocate(plugin, endpoint, asked)}
            for asked in _allocations(ids)
        ],
        "preferred": [
            {
                "available": [places[one] for one in free], "size": size,
                "must_include": [places[one] for one in must],
                "answer": _prefer(plugin, endpoint, (free, must, size), places),
            }
            for free, must, size in _preferences(sorted(set(ids) & set(places), key=places.__getitem__))
        ],
    }  # fmt: skip


def _allocations(ids: Sequence[str]) -> list[list[str]]:
    """Return requests of containers: one id; three; two, replicas if any; an unknown id."""
    asked = [list(ids[:1]), list(ids[-1:-4:-1]), list(ids[:2]), ["no-such-device"]]
    return [one for index, one in enumerate(asked) if one and one not in asked[:index]]


def _allocate(plugin: Plugin, endpoint: str, ids: list[str]) -> Any:
    request = {"container_requests": [{"devices_ids": ids}]}
    answer = plugin.call(endpoint, "Allocate", request)
    if "error" in answer:
        return answer
    (response,) = answer["container_responses"]
    if "annotations" in response:  # the key ends in a random UUID
        response["annotations"] = {
            UUID.sub("RANDOM", key): value for key, value in response["annotations"].items()
        }
    visible = response.get("envs", {}).get("NVIDIA_VISIBLE_DEVICES", "")
    if "," in visible:  # indices have the order of a Go map
        response["envs"]["NVIDIA_VISIBLE_DEVICES"] = ",".join(_in_order(visible.split(","), ids))
    for kind, key in (("mounts", "container_path"), ("devices", "container_path")):
        if kind in response:
            response[kind].sort(key=lambda one: str(one[key]))
    if "cdi_devices" in response:
        response["cdi_devices"].sort(key=lambda one: str(one["name"]))
    return response


def _in_order(words: list[str], ids: list[str]) -> list[str]:
    """Return words unchanged if they are ids in the order of the request, else sorted."""
    return words if all(word in ids for word in words) else sorted(words)


def _preferences(ids: Sequence[str]) -> list[Preferred]:
    """Return requests for whole GPUs; for replicas and MIG devices the choice is random."""
    count = len(ids)
    every = list(ids)
    if not every:
        return []
    if count > LARGEST_FOR_SUBSETS + 1:
        return [(every, [], 1), (every, [], count // 2), (every, [], count)]
    asked: list[Preferred] = [(every, [], size) for size in range(1, count + 1)]
    chance = random.Random(count)  # the same requests each time
    for _ in range(SUBSETS if count > 1 else 0):
        free = sorted(chance.sample(every, chance.randint(2, count)), key=every.index)
        size = chance.randint(1, len(free))
        must = sorted(chance.sample(free, chance.randint(0, size // 2)), key=every.index)
        asked.append((free, must, size))
    return [*asked, (every[:1], [], 2)]


def _prefer(plugin: Plugin, endpoint: str, asked: Preferred, places: dict[str, int]) -> Any:
    keys = ("available_deviceIDs", "must_include_deviceIDs", "allocation_size")
    wish = dict(zip(keys, asked, strict=True))
    answer = plugin.call(endpoint, "GetPreferredAllocation", {"container_requests": [wish]})
    if "error" in answer:
        return answer["error"]
    (response,) = answer["container_responses"]
    return sorted(places[one] for one in response.get("deviceIDs", ()))
