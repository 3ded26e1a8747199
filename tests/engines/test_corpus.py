# SPDX-License-Identifier: Apache-2.0
"""What configure makes of every daemon.json of the corpus, judged by a real dockerd."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.engine import docker
from nvct.engine.model import EngineOptions, Files, Handler
from tests.engines import releases
from tests.engines.box import Box

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parents[1] / "engineconf/docker"
HANDLERS = tuple(
    Handler(name=f"nvidia{suffix}", path=f"/usr/bin/nvidia-container-runtime{suffix}")
    for suffix in ("", "-cdi", "-legacy")
)


@pytest.mark.parametrize("release", [releases.of_release("trixie"), *releases.in_full("resolute")])
def test_docker_takes_every_file(release: str, machine_of: Callable[[str], Box]) -> None:
    box = machine_of(release)
    refused = {}
    for number, path in enumerate(sorted(CORPUS.glob("*.json"))):
        config = f"/etc/docker/{number}.json"
        box.write(config, path.read_bytes().decode())
        options = EngineOptions(engine="docker", handlers=HANDLERS, default="nvidia", cdi=True,
                        config=config)  # fmt: skip
        for edit in docker.plan(options, Files(str(box.root))).edits:
            assert edit.after is not None
            box.write(config, edit.after.decode())
        completed = box.call("/usr/sbin/dockerd", "--validate", "--config-file", config)
        if completed.returncode:
            refused[path.name] = completed.stderr
    assert refused == {}
