# SPDX-License-Identifier: Apache-2.0
"""The matrix: every kind of container by every way, with `nvidia-smi -L` in it as the verdict.

    columns   runc and crun, each by the shim (classic layout, farm of bind mounts, auto: farm of
              hard links), by the prestart hook, by a CDI specification in layout farm, by
              Podman reading one in either layout, and by the shim under an ordinary user's Podman
    rows      glibc of Debian's and of Fedora's layout, musl, no libc at all, a read-only root,
              another user, user namespaces with a root that was given away or is idmapped

Where nvidia-smi cannot run (it needs glibc) the nodes, their device rules and the driver's files
are looked at, and under musl its own loader has to find libcuda. A simulated driver's nodes answer
"No such device or address" to who may open them.
"""

import json
import os
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from nvct_sim import rootfs, tree
from tests.integration import matrix, rootless
from tests.integration.conftest import REPOSITORY, SimulatedNode
from tests.integration.inside import UUID
from tests.integration.matrix import Image, Result
from tests.support import images

NODES = [
    "./nvidia-caps/nvidia-cap480", "./nvidia-caps/nvidia-cap481", "./nvidia-modeset",
    "./nvidia-uvm", "./nvidia-uvm-tools", "./nvidia0", "./nvidia3", "./nvidiactl",
]  # fmt: skip
OPENED = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3")
MAY = "No such device or address"


def rows() -> list[ParameterSet]:
    """Return the table; what every host with runc can run must not be skipped in CI."""
    return [
        pytest.param(
            case, id=matrix.name_of(case), marks=[pytest.mark.engine] if _is_plain(case) else []
        )
        for case in matrix.cases()
    ]


def _is_plain(case: tuple[str, str, Image]) -> bool:
    runtime, way, image = case
    return (
        runtime == "runc"
        and way in ("classic", "farm", "auto", "prestart", "specification")
        and not image.owner
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the whole matrix on a node of its own; return what came of it."""
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("matrix")
    node = tree.create(
        f"matrix-{os.getpid()}",
        "h100-mig",
        base=work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )
    try:
        profile = {"NVCT_TESTS_PROFILE": os.environ.get("NVCT_TESTS_PROFILE", "")}
        SimulatedNode(node, work, work).run(matrix.run_all, profile)
    finally:
        tree.destroy(node)
    results: dict[str, Any] = json.loads((work / matrix.RESULTS).read_text(encoding="utf-8"))
    return results


@pytest.fixture
def result(found: dict[str, Any], case: tuple[str, str, Image]) -> Result:
    made = matrix.Result(**found[matrix.name_of(case)])
    if made.skipped:
        pytest.skip(made.skipped)
    return made


@pytest.mark.parametrize("case", rows())
def test_a_container_gets_its_gpus(
    case: tuple[str, str, Image], result: Result, found: dict[str, Any]
) -> None:
    _, way, image = case
    assert result.status == 0, result
    assert result.said.endswith("== end\n"), result
    assert result.part("nodes") == NODES, result
    opened = [line.partition("create ")[2] for line in result.part("opened")]
    assert opened == [f"{name}: {MAY}" for name in OPENED], result
    assert any(line.endswith("/nvidia-smi") for line in result.part("files")), result
    _check_driver(result, image, found["uuids"])
    assert result.part("writable") == [], "a container can write the host's driver"
    assert len(result.part("mounted")) > 10, result  # what the line above looked at
    views = ("/usr/local/nvidia/", "/.nvct/driver/")
    in_view = any(line.startswith(views) for line in result.part("files"))
    # The view of "farm" is staged, which crun before 1.9 cannot mount in a user namespace.
    is_farm = way in ("auto", "specification", "podman-farm")
    assert in_view == (is_farm or (way == "farm" and not image.owner)), result
    if image.readonly:
        assert "Read-only file system" in " ".join(result.part("root")), result
    owner = matrix.HOST_ROOT if image.owner == "chowned" else 0
    if way == "rootless":
        owner = rootless.UID
        assert "own.plan" in result.kept, result  # else each start looks at the driver anew
    assert result.owners == [[owner, owner]], (
        "somebody else than its root owns a container's files"
    )


def _check_driver(result: Result, image: Image, uuids: list[str]) -> None:
    """Check that the driver is found: by nvidia-smi, musl's loader, or the file's name."""
    if image.kind in ("debian", "rhel"):
        gpu, instance = uuids
        listed = "\n".join(result.part("smi"))
        assert UUID.findall(listed)[::2] == [gpu, instance], result  # between them: its parent
        assert len(UUID.findall(listed)) == 3, result
        assert result.cache, result
        return
    assert not result.cache, "an image without ld.so.cache has one now"
    assert not result.dropin, result
    if image.kind == "musl":
        lines = result.part("paths")
        assert lines[:3] == ["/lib", "/usr/local/lib", "/usr/lib"], "musl's own folders are lost"
        assert len(lines) > 3, result
        if images.has_musl():
            assert any(" libcuda.so.1 => /" in f" {line.strip()}" for line in result.part("musl"))
            assert "Error" not in "".join(result.part("musl")), result
    else:
        assert any("/libcuda.so." in line for line in result.part("files")), result
