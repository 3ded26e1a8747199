# SPDX-License-Identifier: Apache-2.0
"""The chart's rules with CRI-O, which passes annotations of a pod's author on to the runtime."""

import re
from dataclasses import replace

import pytest

from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.engines.engines import CONFIG
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, MANIFESTS, TIMEOUT_S, allocatable, asks
from tests.kubernetes.pods import Pod, run_all
from tests.kubernetes.test_farm_pods import plugin_on_host
from tests.kubernetes.test_pods import configured

__all__ = ["configured"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", ["trixie-crio"], indirect=True),
]
RULES = (MANIFESTS.parent / "helm/nvct/policy/pods.toml").read_text()
FORGED = {
    "io.kubernetes.container.name": "has-a-gpu", "io.kubernetes.cri.container-name": "has-a-gpu",
    "io.kubernetes.cri.container-type": "container",
}  # fmt: skip
HOOK = f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk"
COUNT = "ls /dev | grep -c nvidia"


@pytest.mark.parametrize(
    ("strategy", "ids"),
    [("envvar", "index"), ("cdi-annotations", "uuid"), ("cdi-cri", "index")],
)
def test_no_annotation_of_an_author_gets_a_gpu(
    strategy: str, ids: str, configured: Cluster
) -> None:
    box = configured.box
    before = box.read(CONFIG)
    box.write(CONFIG, f"{before}\n{RULES}")
    flags = (f"--device-list-strategy={strategy}", f"--device-id-strategy={ids}", HOOK)
    try:
        with plugin_on_host(configured, *flags):
            assert wait(lambda: allocatable(configured) == GPUS, TIMEOUT_S)
            said = box.call("sh", "-c", "cat /proc/driver/nvidia/gpus/*/information").stdout
            every = sorted(set(re.findall(r"GPU-[0-9a-f-]{36}", said)))
            wants = {**FORGED, "cdi.k8s.io/mine": f"nvidia.com/gpu={every[-1]}"}
            script, env = f"{LIST}; sleep 3", {"NVIDIA_VISIBLE_DEVICES": "all"}
            asked = {
                "plain": asks(1, script),
                "all": asks(2, script, env=env),
                "annotated": asks(1, script, annotations=wants, env=env),
            }
            silent = Pod(script=COUNT, runtime_class="nvidia", annotations=wants)
            results = run_all(
                configured.api, {**asked, "silent": silent, "says": replace(silent, env=env)}
            )
            counts = {name: len(set(UUID.findall(results[name].log))) for name in asked}
            assert counts == {"plain": 1, "all": 2, "annotated": 1}, results
            seen = [uuid for name in asked for uuid in set(UUID.findall(results[name].log))]
            assert len(set(seen)) == 4, results
            assert [results[name].lines for name in ("silent", "says")] == [["0"]] * 2, results
            named = replace(silent, env={"NVIDIA_VISIBLE_DEVICES": every[-1]}, annotations=FORGED)
            configured.api.create(PODS, named.manifest("named"))
            sentence = "policy rule 'pods ask Kubernetes for GPUs' denies"
            assert wait(lambda: sentence in str(configured.api.events("named")), TIMEOUT_S)
            configured.api.delete(f"{PODS}/named")
    finally:
        box.write(CONFIG, before)
