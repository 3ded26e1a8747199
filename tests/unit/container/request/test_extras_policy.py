# SPDX-License-Identifier: Apache-2.0
"""Rules about devices also apply to the extras of a request."""

from pathlib import Path

import pytest

from nvct.container.request.model import VISIBLE_DEVICES
from tests.support.policies import UUID, Container, policy

EXTRAS = {
    "nvidia.com/imex-channel=3": "NVIDIA_IMEX_CHANNELS=3",
    "nvidia.com/mig=config": "NVIDIA_MIG_CONFIG_DEVICES=all",
    "nvidia.com/mig=monitor": "NVIDIA_MIG_MONITOR_DEVICES=all",
    "nvidia.com/gds=all": "NVIDIA_GDS=enabled",
    "nvidia.com/mofed=all": "NVIDIA_MOFED=enabled",
    "nvidia.com/gdrcopy=all": "NVIDIA_GDRCOPY=enabled",
    "nvidia.com/nvswitch=all": "NVIDIA_NVSWITCH=enabled",
}


@pytest.fixture
def container(tmp_path: Path) -> Container:
    new_container = Container(tmp_path)
    new_container.bounding = ["CAP_SYS_ADMIN"]
    return new_container


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("variable", ["0", UUID])
@pytest.mark.parametrize("mode", ["auto", "legacy", "jit-cdi", "csv"])
def test_a_rule_that_allows_a_gpu_allows_no_extra(
    mode: str, variable: str, name: str, container: Container
) -> None:
    gpu = f"{VISIBLE_DEVICES}={variable}"
    rule = 'devices = ["nvidia.com/gpu=0"]\nthen = "allow"'

    assert container.outcome(policy(rule, "deny", mode=mode), gpu) == "allow"
    assert container.outcome(policy(rule, "deny", mode=mode), gpu, EXTRAS[name]) == "deny"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_rule_can_name_an_extra(name: str, container: Container) -> None:
    gpu = f"{VISIBLE_DEVICES}=0"

    def outcome(devices: str, then: str, default: str) -> str:
        config = policy(f'devices = [{devices}]\nthen = "{then}"', default)
        return container.outcome(config, gpu, EXTRAS[name])

    assert outcome(f'"nvidia.com/gpu=0", "{name}"', "allow", "deny") == "allow"
    assert outcome(f'"{name}"', "allow", "deny") == "deny"
    assert outcome(f'"{name}"', "deny", "allow") == "deny"
    assert outcome('"nvidia.com/gpu=1"', "deny", "allow") == "allow"
    kind = name.partition("=")[0]
    assert outcome(f'"nvidia.com/gpu=0", "{kind}=*"', "allow", "deny") == "allow"


@pytest.mark.parametrize("name", EXTRAS)
def test_without_a_gpu_only_the_extra_is_compared_with_the_rule(
    name: str, container: Container
) -> None:
    none = f"{VISIBLE_DEVICES}=none"
    rule = 'devices = ["nvidia.com/gpu=*"]\nthen = "allow"'

    assert container.outcome(policy(rule, "deny"), none, EXTRAS[name]) == "deny"
    rule = f'devices = ["{name}"]\nthen = "deny"'
    assert container.outcome(policy(rule), none, EXTRAS[name]) == "deny"


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("pattern", ["*", "nvidia.com/*", "n*=*"])
def test_a_star_in_the_kind_names_no_extra_but_refuses_it(
    pattern: str, name: str, container: Container
) -> None:
    gpu, extra = f"{VISIBLE_DEVICES}=0", EXTRAS[name]
    allow = policy(f'devices = ["{pattern}"]\nthen = "allow"', "deny")
    deny = policy(f'devices = ["{pattern}"]\nthen = "deny"')

    assert container.outcome(allow, gpu) == "allow"
    assert container.outcome(allow, gpu, extra) == "deny"
    assert container.outcome(deny, f"{VISIBLE_DEVICES}=none", extra) == "deny"


def test_channels_by_volume_mounts_are_channels(container: Container) -> None:
    folder = "/var/run/nvidia-container-devices"
    container.mounts = [
        {"source": "/dev/null", "destination": f"{folder}/{word}"} for word in ("0", "imex/5")
    ]

    def outcome(*names: str) -> str:
        patterns = ", ".join(f'"{name}"' for name in names)
        config = policy(
            f'devices = [{patterns}]\nthen = "allow"', "deny", accept_volume_mounts=True
        )
        return container.outcome(config)

    assert outcome("nvidia.com/gpu=0") == "deny"
    assert outcome("nvidia.com/gpu=0", "nvidia.com/imex-channel=4") == "deny"
    assert outcome("nvidia.com/gpu=0", "nvidia.com/imex-channel=5") == "allow"
