# SPDX-License-Identifier: Apache-2.0
"""From the former version's chart and image to these and back, by helm, while pods have GPUs.

The former is the checkout that NVCT_TESTS_FORMER names, in which `make image` was run; else this one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.version import __version__
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    GPUS,
    IN_NAMESPACE,
    LIST,
    TIMEOUT_S,
    TOOLKIT,
    asks,
    gpus_of,
    installed,
    log_of,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import run
from tests.support import program_image, released

pytestmark = pytest.mark.slow
NEXT = "--set=image.repository=nvct-next"


@pytest.fixture
def former(node: Cluster) -> Iterator[str]:
    """The former chart; the node has its image as nvct, and this version's as nvct-next."""
    assert isinstance(node.engine, SupervisedContainerd)
    for tag in program_image.TAGS:
        names = (f"docker.io/library/nvct:{tag}", f"docker.io/library/nvct-next:{tag}")
        assert node.engine.ctr("image", "tag", "--force", *names).returncode == 0
    if not released.FORMER:
        yield str(CHART)
        return
    (image,) = Path(released.FORMER).glob("dist/*.oci.tar")
    assert node.engine.ctr("image", "import", str(image)).returncode == 0
    yield f"{released.FORMER}/packaging/helm/nvct"
    assert node.engine.ctr("image", "import", str(program_image.archive())).returncode == 0


@ON_ONE
@pytest.mark.parametrize("dra", ["true", "false"], ids=["claims", "device-plugin"])
def test_pods_of_each_version_keep_their_gpus_in_the_other(
    node: Cluster, former: str, tmp_path: Path, dra: str
) -> None:
    """A pod of each version stays for the change, gives its GPU back after it, and another takes it."""
    newer = shutil.copytree(CHART, tmp_path / "newer")
    about = newer / "Chart.yaml"
    about.write_text(about.read_text().replace(f"ersion: {__version__}", "ersion: 99.0.0"))
    kept = Kept(node)
    with installed(node, f"--set=dra.enabled={dra}", chart=former):
        kept.start("former")
        node.helm("upgrade", "nvct", str(newer), *IN_NAMESPACE, NEXT, "--wait",
                  "--reset-then-reuse-values", "--timeout=120s")  # fmt: skip
        kept.start("next")
        kept.has("former", "next")
        result = run(node.api, "others-of-next", asks("", count=GPUS - 2))
        assert gpus_of(result) == GPUS - 2, state_of(node)
        kept.end("former")
        node.helm("rollback", "nvct", *IN_NAMESPACE, "--wait", "--timeout=120s")
        kept.has("next")
        result = run(node.api, "others-of-former", asks("", count=GPUS - 1))
        assert gpus_of(result) == GPUS - 1, state_of(node)
        kept.end("next")
        assert gpus_of(run(node.api, "all", asks("", count=GPUS))) == GPUS, state_of(node)
    node.box.call("rm", "-rf", TOOLKIT)


class Kept:
    """Pods that have a GPU for as long as they run."""

    def __init__(self, node: Cluster) -> None:
        self._node = node
        self._gpus: dict[str, str] = {}

    def start(self, name: str) -> None:
        """Start one, and wait for what it says of its GPU."""
        pod = asks("", f"while {LIST}; do sleep 1; done")
        self._node.api.create(PODS, pod.manifest(name))
        assert wait(lambda: log_of(self._node, name), TIMEOUT_S), state_of(self._node)
        self._gpus[name] = log_of(self._node, name).splitlines()[0]

    def has(self, *names: str) -> None:
        """Each has its own GPU still, and was not started again."""
        for name in names:
            lines = len(log_of(self._node, name).splitlines())
            assert wait(lambda: len(log_of(self._node, name).splitlines()) > lines, TIMEOUT_S)  # noqa: B023
            assert set(log_of(self._node, name).splitlines()) == {self._gpus[name]}
            found = self._node.api.get(f"{PODS}/{name}")
            (status,) = found["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (True, 0)
        assert len({self._gpus[name] for name in names}) == len(names)

    def end(self, name: str) -> None:
        """Delete it, and wait until it is gone."""
        self._node.api.delete(f"{PODS}/{name}")
        assert wait(lambda: self._node.api.find(f"{PODS}/{name}") is None, TIMEOUT_S)
