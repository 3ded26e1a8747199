# SPDX-License-Identifier: Apache-2.0
"""Podman as an ordinary user, by the shim and by its own CDI, in the user namespaces it offers."""

import json
import os
import re
from typing import Any

import pytest

from nvct_sim import rootfs, tree
from tests.integration import rootless, rootless_inside
from tests.integration.conftest import REPOSITORY, SimulatedNode
from tests.integration.inside import UUID

pytestmark = pytest.mark.slow
CLOSED = ("auto", "nomap")
VIEW = "/usr/local/nvidia"
"""Spaces without the user whose store it is."""
HOOKS_START = (1, 27)
"""The crun that starts a hook where it may not enter the bundle (containers/crun 34143735)."""
NODES = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run all of it on a node of its own; return what came of it."""
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("rootless")
    node = tree.create(
        f"rootless-{os.getpid()}", "h100-mig", base=work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )  # fmt: skip
    try:
        SimulatedNode(node, work, work).run(rootless_inside.run_all)
    finally:
        tree.destroy(node)
    results = (work / rootless_inside.RESULTS).read_text(encoding="utf-8")
    return dict(json.loads(results))


def part(said: str, name: str) -> list[str]:
    """Return the lines of a part of what LOOK printed."""
    _, _, rest = said.partition(f"== {name}\n")
    return rest.partition("== ")[0].splitlines()


def is_told(way: str, runtime: str, space: str, complained: str, *, crun: str) -> bool:
    """Tell whether a container that no hook of anybody's starts in is what the documents say."""
    text = (REPOSITORY / "docs/platforms.md").read_text(encoding="utf-8")
    version = re.search(r"(\d+)\.(\d+)", crun)
    assert version is not None, crun
    return (
        way.startswith("cdi")
        and runtime == "crun"
        and space in CLOSED
        and (int(version[1]), int(version[2])) < HOOKS_START
        and "error executing hook" in complained
        and f"crun before {'.'.join(map(str, HOOKS_START))}" in text
        and f"`--userns={space}`" in text
    )


@pytest.mark.parametrize("space", rootless_inside.SPACES)
@pytest.mark.parametrize("runtime", rootless_inside.RUNTIMES)
@pytest.mark.parametrize("way", ["shim", "cdi", "cdi-farm"])
def test_a_user_s_container_gets_its_gpu(
    way: str, runtime: str, space: str, found: dict[str, Any]
) -> None:
    status, said, complained = found[f"{way}-{runtime}-{space}"]
    if status == rootless_inside.NOT_HERE:
        pytest.skip(f"no such container starts here: {complained[-300:]}")
    if status == rootless_inside.NO_HOOK_STARTS:
        assert is_told(way, runtime, space, complained, crun=found["crun"])
        return
    assert status == 0, complained
    assert said.endswith("== end\n"), (said, complained)
    assert UUID.findall(said) == found["uuids"][:1], said
    assert part(said, "who") == [str(rootless.UID) if space == "keep-id" else "0"]
    assert part(said, "nodes") == [f"/dev/{name} 666" for name in NODES], said
    # Podman 5 shows such a container a bind mount, whose files may be another container's, too.
    by_variable = way == "shim" and space in CLOSED and part(said, "search") == [f"{VIEW}/lib64"]
    assert part(said, "ldconfig") == ["0" if by_variable else "1"], said
    assert part(said, "writable") == [], "a container can write the host's driver"


@pytest.mark.parametrize("runtime", rootless_inside.RUNTIMES)
def test_a_user_s_container_is_explained(runtime: str, found: dict[str, Any]) -> None:
    by_name, by_id, log = found[f"explain-{runtime}"]
    assert by_name == by_id
    head, *lines = by_name.splitlines()
    assert re.fullmatch(r"mine  \(id [0-9a-f]{12}, process \d+\)", head)
    for line in ("           /dev/nvidiactl /dev/nvidia0", "  has      nvidia0 in its /dev"):
        assert line in lines
    asked = next(line for line in lines if line.startswith("  asked "))
    assert asked in [  # which files tell depends on Podman
        f"  asked    NVIDIA_VISIBLE_DEVICES asks for 0  ({who})"
        for who in ("by image or user: no file says which", "by the user")
    ]
    assert "  left out compute (" in by_name
    assert "NVIDIA_VISIBLE_DEVICES: 0; jit-cdi" in log.splitlines()[-1]


@pytest.mark.parametrize("runtime", rootless_inside.RUNTIMES)
def test_a_user_gets_any_free_gpu(runtime: str, found: dict[str, Any]) -> None:
    free = found[f"free-{runtime}"]
    uuids = UUID.findall(free["one"]) + UUID.findall(free["two"])
    assert len(set(uuids)) == 2, free
    assert free["leases"] == sorted([uuid, rootless.UID] for uuid in uuids)
    assert free["after"] == []
