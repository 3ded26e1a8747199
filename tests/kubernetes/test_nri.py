# SPDX-License-Identifier: Apache-2.0
"""Pods with the NRI plugin on engines whose files nothing has touched, and a real kubelet."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.device_plugin.resources import GPU
from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.engines.releases import FULL, in_full
from tests.kubernetes import pods
from tests.kubernetes.api import wait
from tests.kubernetes.claims.test_dra import driver
from tests.kubernetes.cluster import FOLDER, Cluster
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    plugin_on_host,
    uuids,
)
from tests.kubernetes.dra import asks_for_claims, claim
from tests.kubernetes.pods import Pod, run_all

__all__ = ["driver"]
pytestmark = pytest.mark.slow
EACH = pytest.mark.parametrize("cluster", [*in_full("forky"), "trixie-crio"], indirect=True)
LOG = "nri.log"
OVERLOAD = 60  # a load average beyond which an engine may end a plugin
DENIED = "pods have what the kubelet gives"
SMI = f"{LIST}; sleep 3"
SHARING, SHARES = f"{FOLDER}/sharing.yaml", 10


def with_gpus(count: int, **more: Any) -> Pod:
    """Return a pod that asks Kubernetes for GPUs, with the engine's default runtime."""
    return Pod(script=SMI, container={"resources": {"limits": {GPU: count}}}, **more)


@contextlib.contextmanager
def nri(cluster: Cluster, *flags: str) -> Iterator[Path]:
    """Run the plugin on the node; yield its log."""
    log = cluster.box.work / LOG
    log.write_text("")
    words = [f"{PROGRAMS}/python", "-I", "-m", "nvct.nri.main", *flags]
    process = cluster.box.start(words, LOG)
    try:
        assert wait(lambda: "connected: " in log.read_text(), TIMEOUT_S), log.read_text()
        yield log
    finally:
        process.terminate()
        process.wait()


def smuggled(uuid: str) -> dict[str, Pod]:
    """Return pods with GPUs that the kubelet has not given, by each way that is known."""
    dev = {"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}
    mount = {"volumeMounts": [{"name": "dev", "mountPath": "/host-dev"}]}
    root = {"volumes": [{"name": "dev", "hostPath": {"path": "/"}}]}
    part = {"volumeMounts": [{"name": "dev", "mountPath": "/host-dev", "subPath": "dev"}]}
    name = f"nvidia.com/gpu={uuid}"
    return {
        "nri-annotation": Pod(script=SMI, annotations={"nvidia.cdi.k8s.io/pod": name}),
        "more-than-given": with_gpus(1, annotations={"nvidia.cdi.k8s.io": "nvidia.com/gpu=all"}),
        "host-dev": Pod(script="ls /host-dev", container=mount, spec=dev),
        "sub-path": Pod(script="ls /host-dev", container=part, spec=root),
        "privileged": Pod(
            script="ls /dev", container={"securityContext": {"privileged": True}}
        ),
    }  # fmt: skip


@EACH
def test_of_a_hundred_pods_at_once_each_has_what_it_should(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, nobody can read the node's mounts; an engine ends a plugin that waits for that."""
    monkeypatch.setattr(pods, "TIMEOUT_S", 600.0)
    sharing = f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {SHARES}}}]}}}}"
    cluster.box.write(SHARING, f"version: v1\n{sharing}\n")
    flags = ("--device-list-strategy=cdi-cri", f"--config-file={SHARING}")
    image = {"NVIDIA_VISIBLE_DEVICES": "all"}
    note = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"}
    asked = {
        **{f"given-{number}": with_gpus(1) for number in range(70)},
        **{f"image-{number}": Pod(script="ls /dev", env=image) for number in range(15)},
        **{f"note-{number}": Pod(script=LIST, annotations=note) for number in range(15)},
    }
    with plugin_on_host(cluster, *flags), nri(cluster, "--given-by-kubelet=enforce") as log:
        assert wait(lambda: allocatable(cluster) == GPUS * SHARES, TIMEOUT_S)
        results = run_all(cluster.api, asked)
        said = log.read_text()
    # An engine ends a plugin that has had no processor for 2 s, and no rule applies for a moment.
    is_ended = "broke" in said and os.getloadavg()[0] > OVERLOAD
    assert said.count("connected: ") == 1 or is_ended, said
    for name, result in results.items():
        is_refused, is_given = name.startswith("note"), name.startswith("given")
        if is_refused and is_ended:
            continue
        assert result.phase == ("Pending" if is_refused else "Succeeded"), (name, result, said)
        assert len(set(UUID.findall(result.log))) == int(is_given), (name, result)
        assert "nvidia" not in result.log or is_given, (name, result)


@EACH
def test_a_pod_has_exactly_what_the_kubelet_gave_it(cluster: Cluster) -> None:
    before = cluster.engine.snapshot()
    uuid = uuids(cluster)[-1]
    hostile = smuggled(uuid)
    harmless = Pod(
        script=SMI,
        container={"volumeMounts": [{"name": "own", "mountPath": "/own", "subPath": "part"}]},
        spec={"volumes": [{"name": "own", "emptyDir": {}}]},
    )
    # The kubelet does not pass a pod's annotation on to its container.
    inert = Pod(script=SMI, annotations={"cdi.k8s.io/mine": f"nvidia.com/gpu={uuid}"})
    if "crio" in cluster.engine.engine:
        del hostile["privileged"]  # CRI-O starts none here
    with plugin_on_host(cluster, "--device-list-strategy=cdi-cri"):
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S)
        with nri(cluster, "--given-by-kubelet=audit") as log:
            free = run_all(cluster.api, hostile)
            audited = log.read_text()
        for name, result in free.items():
            assert result.phase == "Succeeded", (name, result, audited)
        assert audited.count("audit: default/") == len(hostile), audited
        with nri(cluster, "--given-by-kubelet=enforce"):
            honest = {"one": with_gpus(1), "two": with_gpus(2), "inert": inert, "own": harmless}
            results = run_all(cluster.api, {**hostile, **honest})
    for name in hostile:
        assert results[name].phase == "Pending", (name, results[name])
        assert DENIED in str(results[name].events), (name, results[name])
    counts = [len(set(UUID.findall(results[name].log))) for name in ("one", "two")]
    assert counts == [1, 2], [results[name] for name in ("one", "two")]
    for name in ("inert", "own"):
        assert results[name].phase == "Succeeded", results[name]
        assert not UUID.findall(results[name].log), results[name]
    assert cluster.engine.snapshot() == before


@pytest.mark.skipif(not FULL, reason="make ci-full")
@pytest.mark.parametrize("cluster", ["forky"], indirect=True)
@pytest.mark.usefixtures("driver")
def test_claims_are_given_by_the_kubelet(node: Cluster) -> None:
    """The plugin's rule reads the kubelet's own record of claims."""
    claim(node, "one")
    with nri(node, "--given-by-kubelet=enforce") as log:
        asks = asks_for_claims("one")
        extra = {"nvidia.cdi.k8s.io": "nvidia.com/gpu=all"}
        results = run_all(node.api, {"claims": asks, "more": replace(asks, annotations=extra)})
    assert results["claims"].phase == "Succeeded", (results, log.read_text())
    assert len(set(UUID.findall(results["claims"].log))) == 1, results
    assert DENIED in str(results["more"].events), results
