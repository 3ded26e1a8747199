# SPDX-License-Identifier: Apache-2.0
"""The chart of a release, from a web server: README's lines lead to a pod with a GPU."""

import sys
from pathlib import Path

import pytest

from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import ON_ONE, TIMEOUT_S, asks, gpus_of, installed
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import run
from tests.support import released

pytestmark = pytest.mark.slow
PORT = "8809"  # of the cluster's own machine


@ON_ONE
def test_a_pod_gets_a_gpu_by_the_repository_of_a_release(node: Cluster, tmp_path: Path) -> None:
    work = node.box.work / "released"
    work.mkdir()
    url = f"http://127.0.0.1:{PORT}"
    released.packages(tmp_path / "dist")
    with released.keyring() as env:
        done = released.assembled(tmp_path / "dist", work / "www", env, url)
    assert done.returncode == 0, done.stderr
    words = ["-m", "http.server", "--bind=127.0.0.1", f"--directory={work}/www", PORT]
    server = node.box.start([sys.executable, *words], "server.log")
    flags = (f"--repository-config={work}/repositories", f"--repository-cache={work}/cache")
    added = ("helm", "repo", "add", "nvct", f"{url}/helm", *flags)
    assert wait(lambda: node.box.call(*added).returncode == 0, TIMEOUT_S)

    with installed(node, *flags, chart="nvct/nvct"):
        assert gpus_of(run(node.api, "of-a-release", asks(""))) == 1
    server.terminate()
