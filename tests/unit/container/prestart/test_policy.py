# SPDX-License-Identifier: Apache-2.0
"""The prestart hook: the rules of [nvct.policy] apply."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvct.container.request.model import Request
from nvct.container.request.origin import Origin
from nvct.oci.bundle import Bundle
from nvct_sim.bundle import config as make_config
from tests.support.policies import ALL, CONTAINERD, CRIO, UUID, Plans, policy
from tests.support.shim_lab import Lab
from tests.unit.container.prestart.test_main import accepted, hook

IMAGES = 'kubernetes = true\nby = ["image-env"]\nthen = "ignore"'


def with_policy(lab: Lab, text: str) -> None:
    lab.configure(lab.config_toml.read_text(encoding="utf-8") + text)
    lab.age(lab.config_toml)


def asked_by_pod(
    tmp_path: Path, text: str, env: str, annotations: Mapping[str, str]
) -> Request | None:
    document = make_config(["true"], env=[env], annotations=annotations)
    bundle = Bundle(str(tmp_path / "config.json"), json.dumps(document))
    return accepted(bundle, policy(text), Origin(bundle, Plans()))


def test_a_denial_fails_the_container_with_one_line(lab: Lab) -> None:
    lab.driver(gpus=2)
    with_policy(lab, '[[nvct.policy.rules]]\nname = "one"\nmore-gpus-than = 1\nthen = "deny"\n')
    lab.asks(ALL)

    result = hook(lab, "prestart")

    assert result.returncode == 1
    assert result.stderr == (
        "nvidia-container-runtime-hook: policy rule 'one' denies NVIDIA_VISIBLE_DEVICES='all';"
        " nvct explain shows why [not-permitted]\n"
    )


def test_a_container_with_an_ignored_request_starts_silently_without_a_gpu(lab: Lab) -> None:
    with_policy(lab, f"[[nvct.policy.rules]]\n{IMAGES}\n")
    lab.asks(ALL, annotations=CONTAINERD)
    nodes = sorted(os.listdir("/dev"))

    result = hook(lab, "prestart")

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert sorted(os.listdir("/dev")) == nodes


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO])
def test_rules_see_the_pods_annotations(annotations: dict[str, str], tmp_path: Path) -> None:
    pod = {**annotations, "cdi.k8s.io/x": "nvidia.com/gpu=7"}

    assert asked_by_pod(tmp_path, IMAGES, ALL, pod) is None
    plugin = asked_by_pod(tmp_path, IMAGES, f"NVIDIA_VISIBLE_DEVICES={UUID}", pod)
    outside = asked_by_pod(tmp_path, IMAGES, ALL, {})
    assert plugin is not None
    assert plugin.ids == [UUID]
    assert outside is not None
    assert outside.ids == ["all"]
