# SPDX-License-Identifier: Apache-2.0
"""Rules about who gets GPUs on real nodes: docs/policy.md's example that denies, and the chart's with CRI-O."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines.checks import UUID
from tests.engines.releases import FULL
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    MANIFESTS,
    TIMEOUT_S,
    allocatable,
    asks,
    plugin_on_host,
    ruled,
    uuids,
)
from tests.kubernetes.pods import Pod, run_all

pytestmark = pytest.mark.slow
TEXT = Path(__file__).parents[3].joinpath("docs/policy.md").read_text(encoding="utf-8")
EXAMPLE = TEXT.partition("## What the engine gives")[2].split("```toml\n")[1].partition("```")[0]
RULES = (MANIFESTS.parent / "helm/nvct/policy/pods.toml").read_text()
FORGED = {
    "io.kubernetes.container.name": "has-a-gpu", "io.kubernetes.cri.container-name": "has-a-gpu",
    "io.kubernetes.cri.container-type": "container",
}  # fmt: skip
ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
COUNT = "ls /dev | grep -c nvidia"
USABLE = """\
for i in 0 1 2 3 4 5 6 7; do
  mknod /n$i c 195 $i && (: < /n$i) 2>&1 | grep -q 'No such device' && echo usable $i
done
true
"""
"""Without a driver, an allowed open finds no device."""
PRIVILEGED = {"securityContext": {"privileged": True}}
IGNORED: dict[str, dict[str, Any]] = {
    "privileged": {"container": PRIVILEGED},
    "sys-admin": {"container": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}},
    "dev": {
        "container": {"volumeMounts": [{"name": "dev", "mountPath": "/x"}]},
        "spec": {"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]},
    },
    "image": {"env": ALL},
}
"""They start without a GPU, as pods of the system have to."""


def is_refused(cluster: Cluster, name: str, pod: Pod, sentence: str) -> None:
    cluster.api.create(PODS, pod.manifest(name))
    assert wait(lambda: sentence in str(cluster.api.events(name)), TIMEOUT_S)
    cluster.api.delete(f"{PODS}/{name}")


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
@pytest.mark.parametrize("cluster", ["trixie"], indirect=True)
def test_only_what_kubernetes_gives_is_a_gpu(strategy: str, configured: Cluster) -> None:
    script = f"{LIST}; {USABLE}"
    given = {"one": asks(1, script), "two": asks(2, script)}
    both = {**given["one"].container, **PRIVILEGED}
    given["given-privileged"] = replace(given["one"], container=both)
    pods = {name: Pod(script=USABLE, runtime_class="nvidia", **more)
            for name, more in IGNORED.items()}  # fmt: skip
    flag = f"--device-list-strategy={strategy}"
    with ruled(configured, EXAMPLE), plugin_on_host(configured, flag):
        assert wait(lambda: allocatable(configured) == GPUS, TIMEOUT_S)
        results = run_all(configured.api, {**pods, **given})
        usable = {name: result.log.count("usable") for name, result in results.items()}
        assert usable == {
            **dict.fromkeys(IGNORED, 0), "one": 1, "two": 2, "given-privileged": 1
        }, results  # fmt: skip
        assert {result.phase for result in results.values()} == {"Succeeded"}, results
        assert len(set(UUID.findall(results["two"].log))) == 2, results
        # It knows a GPU's UUID.
        env = {"NVIDIA_VISIBLE_DEVICES": uuids(configured)[-1]}
        smuggler = Pod(script=USABLE, runtime_class="nvidia", env=env)
        sentence = "policy rule 'default' denies NVIDIA_VISIBLE_DEVICES"
        is_refused(configured, "smuggler", smuggler, sentence)


@pytest.mark.skipif(not FULL, reason="make ci-full")
@pytest.mark.parametrize("cluster", ["trixie-crio"], indirect=True)
@pytest.mark.parametrize(
    ("strategy", "ids"),
    [("envvar", "index"), ("cdi-annotations", "uuid"), ("cdi-cri", "index")],
)
def test_no_annotation_of_an_author_gets_a_gpu(
    strategy: str, ids: str, configured: Cluster
) -> None:
    """CRI-O passes annotations of a pod's author on to the runtime."""
    flags = (f"--device-list-strategy={strategy}", f"--device-id-strategy={ids}")
    every = uuids(configured)
    wants = {**FORGED, "cdi.k8s.io/mine": f"nvidia.com/gpu={every[-1]}"}
    script = f"{LIST}; sleep 3"
    asked = {
        "plain": asks(1, script),
        "all": asks(2, script, env=ALL),
        "annotated": asks(1, script, annotations=wants, env=ALL),
    }
    silent = Pod(script=COUNT, runtime_class="nvidia", annotations=wants)
    with ruled(configured, RULES), plugin_on_host(configured, *flags):
        assert wait(lambda: allocatable(configured) == GPUS, TIMEOUT_S)
        results = run_all(
            configured.api, {**asked, "silent": silent, "says": replace(silent, env=ALL)}
        )
        seen = {name: set(UUID.findall(results[name].log)) for name in asked}
        counts = {name: len(found) for name, found in seen.items()}
        assert counts == {"plain": 1, "all": 2, "annotated": 1}, results
        assert len(set.union(*seen.values())) == 4, results
        assert [results[name].lines for name in ("silent", "says")] == [["0"]] * 2, results
        named = replace(silent, env={"NVIDIA_VISIBLE_DEVICES": every[-1]}, annotations=FORGED)
        sentence = "policy rule 'pods ask Kubernetes for GPUs' denies"
        is_refused(configured, "named", named, sentence)
