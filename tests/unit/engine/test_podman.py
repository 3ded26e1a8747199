# SPDX-License-Identifier: Apache-2.0
"""Podman's containers.conf."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import podman
from nvct.engine.model import EngineOptions, Handler
from tests.unit.engine.tree import Tree

CORPUS = Path(__file__).parents[2] / "engineconf" / "podman"
SHIM = "/usr/bin/nvidia-container-runtime"
DROP_IN = "/etc/containers/containers.conf.d/99-nvidia.conf"
HANDLERS = (
    Handler(name="nvidia", path=SHIM),
    Handler(name="nvidia-cdi", path=f"{SHIM}.cdi"),
)
OPTIONS = EngineOptions(engine="podman", handlers=HANDLERS)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.conf")), ids=lambda path: path.stem)
def test_every_kind_of_file_is_edited_in_place_on_request(path: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path).write(podman.CONFIG, path.read_bytes())
    before = podman.state(OPTIONS, tree).handlers
    options = replace(OPTIONS, default="nvidia", drop_in="")
    tree.apply(podman.plan(options, tree))
    assert podman.plan(options, tree).edits == ()
    assert tree.read(DROP_IN) is None
    our_handlers = {handler.name: handler.path for handler in HANDLERS}
    assert podman.state(options, tree).handlers == {**before, **our_handlers}
    expected = [line for line in path.read_text().splitlines() if line.startswith(("#", "\t#"))]
    assert [line for line in tree.text(podman.CONFIG).splitlines() if line in expected] == expected
