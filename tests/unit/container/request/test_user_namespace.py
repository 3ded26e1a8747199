# SPDX-License-Identifier: Apache-2.0
"""CAP_SYS_ADMIN of a user namespace is no privilege on the host."""

from pathlib import Path
from typing import Any

import pytest

from nvct.container.request.model import Request
from nvct.errors import NotPermittedError
from tests.support.policies import ALL, Container, policy

MAPPING = [{"containerID": 0, "hostID": 100000, "size": 65536}]
USER: dict[str, dict[str, Any]] = {
    "its own": {"namespaces": [{"type": "user"}], "uidMappings": MAPPING},
    "without a mapping": {"namespaces": [{"type": "mount"}, {"type": "user"}]},
    "another's": {"namespaces": [{"type": "user", "path": "/proc/77/ns/user"}]},
    "the host's, by its path": {"namespaces": [{"type": "user", "path": "/proc/1/ns/user"}]},
    "by user ids alone": {"uidMappings": MAPPING},
    "by group ids alone": {"gidMappings": MAPPING},
}
HOST: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "other namespaces": {"namespaces": [{"type": "mount"}, {"type": "pid", "path": "/x"}]},
    "empty mappings": {"namespaces": [], "uidMappings": [], "gidMappings": None},
}
CASES = [
    *(pytest.param(linux, False, id=name) for name, linux in USER.items()),
    *(pytest.param(linux, True, id=name) for name, linux in HOST.items()),
]


@pytest.fixture
def container(tmp_path: Path) -> Container:
    new_container = Container(tmp_path)
    new_container.bounding = ["CAP_CHOWN", "CAP_SYS_ADMIN"]
    return new_container


@pytest.mark.parametrize(("linux", "is_privileged"), CASES)
@pytest.mark.parametrize("condition", ["true", "false"])
def test_a_rule_about_privilege(
    condition: str, linux: dict[str, Any], *, is_privileged: bool, container: Container
) -> None:
    container.linux = linux
    config = policy(f'privileged = {condition}\nthen = "allow"', "deny")

    outcome = container.outcome(config, ALL)

    assert outcome == ("allow" if is_privileged is (condition == "true") else "deny")


@pytest.mark.parametrize(("linux", "is_privileged"), CASES)
def test_variables_that_only_privileged_containers_may_use(
    linux: dict[str, Any], *, is_privileged: bool, container: Container
) -> None:
    container.linux = linux
    config = policy("", accept_envvar_when_unprivileged=False, policy=())

    request, _ = container.decide(config, ALL, "NVIDIA_IMEX_CHANNELS=0")

    assert (request is not None) is is_privileged
    assert request is None or request.extras.imex == [0]


@pytest.mark.parametrize(("linux", "is_privileged"), CASES)
def test_mig_capabilities(
    linux: dict[str, Any], *, is_privileged: bool, container: Container
) -> None:
    container.linux = linux
    config = policy("", policy=())
    env = (ALL, "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")

    request, _ = container.decide(config, *env)

    assert isinstance(request, Request)
    assert request.extras.mig_config is request.extras.mig_monitor is is_privileged
    config = config.replaced(mode="legacy")
    if is_privileged:
        container.decide(config, *env)
        return
    with pytest.raises(NotPermittedError, match="needs a privileged container"):
        container.decide(config, *env)
