# SPDX-License-Identifier: Apache-2.0
"""A real cluster of one node with a simulated driver, whose containerd is configured by nvct."""

from __future__ import annotations

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.sim import tree
from tests.engines import conftest as engines
from tests.engines.box import DRIVER_ROOT, Box
from tests.engines.daemons import Supervised
from tests.engines.releases import of_release
from tests.kubernetes.cluster import Cluster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = {"trixie": 2, "forky": 3}
"""Releases, with containerd 1.7 and 2.1, and the version of its config.toml."""


@pytest.fixture(scope="module", params=[of_release(release) for release in CASES])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster that is ready, with nothing of ours; skips where it can't run."""
    release = request.param
    programs, node, work = engines.prepare(release, tmp_path_factory)
    box = None
    try:
        box = Box(programs, node, work, DRIVER_ROOT)
        containerd = Supervised(box, CASES[release])
        containerd.start()
        yield Cluster(box, containerd)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    finally:
        if box is not None:
            box.close()
        tree.destroy(node)
