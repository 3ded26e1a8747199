# SPDX-License-Identifier: Apache-2.0
"""Every platform gives its containers what its own packages say: the golden specs, and their rules."""

import importlib
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nvct.cdi.make.generate import generate
from nvct.cdi.read import schema
from nvct.cdi.read.validate import validate
from nvct.host.model import Inventory
from tests.hosts.base import Platform, plain, render

PLATFORMS = (
    "ubuntu",
    "rhel",
    "fedora",
    "kubernetes_node",
    "driver_container",
    "gke",
    "usr_local_nvidia",
    "debian",
    "nixos",
    "wsl",
    "debian_alternatives",
    "suse",
    "arch",
    "silverblue",
    "talos",
    "bottlerocket",
    "flatcar",
    "snap",
    "gb200",
)
BOARDS = ("jetson_orin", "jetson_thor")


class Seen(NamedTuple):
    """A platform, what was found on it, and the spec that it leads to."""

    platform: Platform
    inventory: Inventory
    spec: dict[str, Any]
    text: str

    @property
    def edits(self) -> list[dict[str, Any]]:
        devices = [device["containerEdits"] for device in self.spec["devices"]]
        return [self.spec["containerEdits"], *devices]

    @property
    def links(self) -> set[str]:
        found = set()
        for edits in self.edits:
            for hook in edits.get("hooks", ()):
                args = hook["args"]
                found |= {args[i + 1] for i, arg in enumerate(args) if arg == "--link"}
        return found

    def mounts(self, key: str) -> set[str]:
        return {mount[key] for edits in self.edits for mount in edits.get("mounts", ())}


@pytest.fixture(scope="module", params=[*PLATFORMS, *BOARDS])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    platform: Platform = importlib.import_module(f"tests.hosts.{request.param}").PLATFORM
    host = platform.build(tmp_path_factory.mktemp(request.param))
    inventory = platform.look(host)
    spec = json.loads(plain(host, json.dumps(generate(inventory))))
    return Seen(platform, inventory, spec, plain(host, "\n".join(inventory.warnings)))


def test_each_file_of_the_packages_is_mounted_or_left_out_for_a_reason(seen: Seen) -> None:
    installed = {path for path, target in seen.platform.expand(seen.platform.files) if not target}
    mounted = seen.mounts("hostPath")

    unexplained = {path for path in installed - mounted if not seen.platform.reason(path)}
    contradicted = {path for path in installed & mounted if seen.platform.reason(path)}

    assert (unexplained, contradicted) == (set(), set())


def test_each_link_leads_to_a_file_that_is_mounted(seen: Seen) -> None:
    places = seen.mounts("containerPath")
    pairs = (link.partition("::") for link in seen.links)
    links = {path: target for target, _, path in pairs}

    for path in links:
        at = path
        for _ in range(8):
            at = os.path.normpath(os.path.join(os.path.dirname(at), links.get(at, at)))
        assert at in places or any(place.startswith(f"{at}/") for place in places), path


def test_each_library_serves_a_capability(seen: Seen) -> None:
    # Every use of a GPU in WSL goes through libdxcore; a Tegra's lists do not tell uses.
    everybodys = ("libdxcore.so",)
    told = seen.inventory.files if seen.platform.mode != "csv" else ()
    libraries = (file for file in told if file.kind == "library")

    unclassified = {os.path.basename(f.container_path) for f in libraries if not f.capability}

    assert unclassified <= set(everybodys)


def test_each_library_of_the_driver_that_is_left_out_has_a_reason(seen: Seen) -> None:
    suffix = f".so.{seen.platform.version}"
    told = {os.path.basename(entry.path) for entry in seen.inventory.left_out}
    installed = seen.platform.paths(seen.platform.files) - seen.mounts("hostPath")
    links = {path for path, target in seen.platform.expand(seen.platform.files) if target}
    private = {path for path in installed if "/nvidia/current/libglxserver" in path}

    names = {os.path.basename(p) for p in installed - links - private if p.endswith(suffix)}

    assert names - told == set()


def test_nothing_else_is_warned_about(seen: Seen) -> None:
    assert seen.text.splitlines() == list(seen.platform.warnings)


def test_mode_is_found_by_itself(seen: Seen) -> None:
    assert seen.inventory.mode == seen.platform.mode


def test_spec_is_the_golden_one_and_valid(
    seen: Seen, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["seen"]
    schema.check(seen.spec, source=name)
    validate(seen.spec, source=name)

    golden(f"hosts/{name}.json", render(seen.spec) + "\n")
