# SPDX-License-Identifier: Apache-2.0
"""A snapshot of each platform of tests/hosts gives the platform's inventory and spec."""

import importlib
import json
from pathlib import Path

import pytest

from nvct.cdi.make.generate import generate
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.host.snapshot import document, record
from nvct_sim import replay
from tests.hosts.base import Platform
from tests.hosts.jetson_base import Board
from tests.hosts.test_platforms import PLATFORMS
from tests.support import jetson
from tests.support.host_tree import FakeNvml, HostTree


def reasons(inventory: Inventory) -> dict[str, str]:
    return {entry.path: entry.reason for entry in inventory.left_out}


def wanted_on(platform: Platform, host: HostTree) -> DiscoveryOptions:
    """Return how a platform's own `look` looks."""
    if isinstance(platform, Board):
        return DiscoveryOptions(
            nvml=FakeNvml(platform.reported), stat_node=jetson.stat_node, machine=platform.machine
        )
    return DiscoveryOptions(
        nvml=None,
        stat_node=host.stat_node,
        machine=platform.machine,
        search_paths=[f"{host.base}/host{path}" for path in platform.search_paths],
        config_search_paths=[f"{host.base}/host{p}" for p in platform.config_search_paths],
    )


@pytest.mark.parametrize("name", dict.fromkeys(PLATFORMS))
def test_a_replayed_platform_has_the_same_inventory_and_spec(tmp_path: Path, name: str) -> None:
    platform: Platform = importlib.import_module(f"tests.hosts.{name}").PLATFORM
    host = platform.build(tmp_path / "host")
    expected = platform.look(host)
    wanted = wanted_on(platform, host)

    taken = record.record(host.roots, wanted)
    document.save(document.redacted(taken, keep_uuids=True), str(tmp_path / "snap"))
    with replay.opened(str(tmp_path / "snap")) as opened:
        inventory = opened.inventory()
        spec, warnings = replay.spec(opened)
        left_out = reasons(inventory)

    assert opened.on_host(json.dumps(generate(inventory))) == json.dumps(generate(expected))
    assert warnings == list(expected.warnings)
    named = {opened.on_host(path): opened.on_host(reason) for path, reason in left_out.items()}
    assert named == reasons(expected)
    assert spec["kind"]
