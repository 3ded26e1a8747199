# SPDX-License-Identifier: Apache-2.0
"""The policy that denies what Kubernetes has not given: docs/policy.md's example, on real nodes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.engines.engines import CONFIG
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, TIMEOUT_S, allocatable, asks
from tests.kubernetes.pods import Pod, run_all
from tests.kubernetes.test_farm_pods import plugin_on_host
from tests.kubernetes.test_pods import configured

__all__ = ["configured"]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("cluster", ["trixie"], indirect=True)]
TEXT = Path(__file__).parents[2].joinpath("docs/policy.md").read_text(encoding="utf-8")
EXAMPLE = TEXT.partition("## What the engine gives")[2].split("```toml\n")[1].partition("```")[0]
HOOK = f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk"
USABLE = """\
for i in 0 1 2 3 4 5 6 7; do
  mknod /n$i c 195 $i && (: < /n$i) 2>&1 | grep -q 'No such device' && echo usable $i
done
true
"""
"""Without a driver, an allowed open finds no device."""
DEVICES: dict[str, Any] = {
    "container": {"volumeMounts": [{"name": "dev", "mountPath": "/x"}]},
    "spec": {"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]},
}


def privileged(**security: object) -> dict[str, Any]:
    return {"container": {"securityContext": security}}


IGNORED: dict[str, dict[str, Any]] = {
    "privileged": privileged(privileged=True),
    "sys-admin": privileged(capabilities={"add": ["SYS_ADMIN"]}),
    "dev": DEVICES,
    "image": {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}},
}
"""They start without a GPU, as pods of the system have to."""


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
def test_only_what_kubernetes_gives_is_a_gpu(strategy: str, configured: Cluster) -> None:
    box = configured.box
    before = box.read(CONFIG)
    box.write(CONFIG, f"{before}\n{EXAMPLE}")
    try:
        with plugin_on_host(configured, f"--device-list-strategy={strategy}", HOOK):
            assert wait(lambda: allocatable(configured) == GPUS, TIMEOUT_S)
            pods = {name: Pod(script=USABLE, runtime_class="nvidia", **more)
                    for name, more in IGNORED.items()}  # fmt: skip
            script = f"{LIST}; {USABLE}"
            given = {"one": asks(1, script), "two": asks(2, script)}
            one = given["one"]
            is_privileged = {"securityContext": {"privileged": True}}
            given["given-privileged"] = replace(one, container={**one.container, **is_privileged})
            results = run_all(configured.api, {**pods, **given})
            usable = {name: result.log.count("usable") for name, result in results.items()}
            assert usable == {
                **dict.fromkeys(IGNORED, 0), "one": 1, "two": 2, "given-privileged": 1
            }, results  # fmt: skip
            assert {result.phase for result in results.values()} == {"Succeeded"}, results
            assert len(set(UUID.findall(results["two"].log))) == 2, results
            _refuses_a_smuggled_gpu(configured)
    finally:
        box.write(CONFIG, before)


def _refuses_a_smuggled_gpu(cluster: Cluster) -> None:
    """A pod that knows a GPU's UUID does not start."""
    said = cluster.box.call("sh", "-c", "cat /proc/driver/nvidia/gpus/*/information").stdout
    env = {"NVIDIA_VISIBLE_DEVICES": re.findall(r"GPU-[0-9a-f-]{36}", said)[-1]}
    smuggler = Pod(script=USABLE, runtime_class="nvidia", env=env)
    cluster.api.create(PODS, smuggler.manifest("smuggler"))
    sentence = "policy rule 'default' denies NVIDIA_VISIBLE_DEVICES"
    assert wait(lambda: sentence in str(cluster.api.events("smuggler")), TIMEOUT_S)
    cluster.api.delete(f"{PODS}/smuggler")
