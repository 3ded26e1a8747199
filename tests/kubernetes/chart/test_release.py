# SPDX-License-Identifier: Apache-2.0
"""Chart and image of a release, from a web server: README's lines lead to a pod with a GPU."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from nvct.version import __version__ as version
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import TIMEOUT_S, asks, gpus_of, installed
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import run
from tests.support import debian_root, released

pytestmark = [pytest.mark.slow, pytest.mark.release]
README = (released.REPOSITORY / "README.md").read_text()
LINES = re.compile(
    r"""
    sudo (ctr .*)
    (helm repo add .*)
    helm install nvct (\S+) --namespace nvct --create-namespace
    helm (test .*?)  """
)
PORT = "8809"  # of the cluster's own machine


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.made(tmp_path_factory)


@pytest.mark.skipif(not debian_root.FULL, reason="make ci-full")
@ON_ONE
def test_a_pod_gets_a_gpu_by_the_repository_of_a_release(release: Path, node: Cluster) -> None:
    work = node.box.work / "released"
    www = shutil.copytree(release, work / "www")
    words = ["-m", "http.server", "--bind=127.0.0.1", f"--directory={www}", PORT]
    server = node.box.start([sys.executable, *words], "server.log")
    flags = (f"--repository-config={work}/repositories", f"--repository-cache={work}/cache")
    ((image, repository, chart, test),) = LINES.findall(README)
    image = image.replace("nvct-VERSION", f"{www}/images/nvct-{version}")
    done = node.box.call(*image.split())
    assert done.returncode == 0, done
    added = repository.replace("https://SERVER", f"http://127.0.0.1:{PORT}").split()
    assert wait(lambda: node.box.call(*added, *flags).returncode == 0, TIMEOUT_S)

    with installed(node, *flags, chart=chart):
        node.helm(*test.split())
        assert gpus_of(run(node.api, "of-a-release", asks(""))) == 1
    server.terminate()
