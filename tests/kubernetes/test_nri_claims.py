# SPDX-License-Identifier: Apache-2.0
"""Claims of DRA and the NRI plugin's rule, which reads the kubelet's own record of them."""

from dataclasses import replace

import pytest

from tests.engines.checks import UUID
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.dra import asks_for_claims, claim
from tests.kubernetes.pods import run_all
from tests.kubernetes.test_dra import driver
from tests.kubernetes.test_nri import DENIED, nri

__all__ = ["driver"]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("cluster", ["forky"], indirect=True)]


@pytest.mark.usefixtures("driver")
def test_claims_are_given_by_the_kubelet(node: Cluster) -> None:
    claim(node, "one")
    with nri(node, "--given-by-kubelet=enforce") as log:
        asks = asks_for_claims("one")
        extra = {"nvidia.cdi.k8s.io": "nvidia.com/gpu=all"}
        results = run_all(node.api, {"claims": asks, "more": replace(asks, annotations=extra)})
    assert results["claims"].phase == "Succeeded", (results, log.read_text())
    assert len(set(UUID.findall(results["claims"].log))) == 1, results
    assert DENIED in str(results["more"].events), results
