# SPDX-License-Identifier: Apache-2.0
"""containerd 1.6, 1.7, 2.1 and 2.2 as `nvct runtime configure` leaves them, asked as a kubelet asks."""

from collections.abc import Callable, Iterator

import pytest

from nvct.agent.device_plugin.list_strategy import Engine, features
from nvct.agent.nvml import engine_question
from tests.engines import configured, crash
from tests.engines.box import Box
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd
from tests.engines.releases import in_full, of_release

pytestmark = pytest.mark.slow
CONFIG = "/etc/containerd/config.toml"
FIRST_WITH_CDI = (1, 7)
VERSIONS_IN_FULL = {"forky": (3, 2), "bookworm": (1, 2), "resolute": (2, 3)}
"""A release's own, and older ones."""
KEY = "cdi.k8s.io/nvidia-device-plugin_gpu"


def _case(release: str, version: int) -> tuple[str, int]:
    return release, version


CASES = [
    of_release("trixie", _case("trixie", 2), name="trixie-version2"),
    *(
        case
        for release, versions in VERSIONS_IN_FULL.items()
        for version in versions
        for case in in_full(release, _case(release, version), name=f"{release}-version{version}")
    ),
]
ENVS = {
    handler: dict([asks.split("=", 1)]) for handler, asks in configured.HANDLERS.items()
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def containerd(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> Iterator[Containerd]:
    """containerd that runs, with nothing of ours and a config.toml of a version."""
    release, version = request.param
    daemon = configured.started(lambda: Containerd(machine_of(release), version))
    yield daemon
    daemon.stop()


@pytest.fixture
def bare(containerd: Containerd) -> Containerd:
    """The same, whatever another test left."""
    return configured.cleaned(containerd)


def test_every_runtime_class_gives_gpus(bare: Containerd) -> None:
    before = bare.pod("true", Pod(handler="nvidia"))
    assert "no runtime for" in before.stderr, before
    bare.configure("--cdi.enabled")
    bare.restart()
    for handler, env in ENVS.items():
        configured.has_one_gpu(bare.pod("nvidia-smi -L", Pod(handler=handler, env=env)))
        configured.has_no_gpu(bare.pod(configured.NODES, Pod(handler=handler)))
    configured.has_no_gpu(bare.pod(configured.NODES, Pod(env=ENVS["nvidia"])))
    bad = bare.pod("true", Pod(handler="nvidia", env={"NVIDIA_VISIBLE_DEVICES": "9"}))
    assert "no device '9'" in bad.stderr, bad


def test_the_field_and_the_annotation_of_cdi_give_gpus(bare: Containerd) -> None:
    bare.configure("--cdi.enabled")
    bare.restart()
    annotations = {KEY: configured.DEVICE}
    told = features(engine_question.ask([str(bare.box.root)]))  # what strategy auto goes by
    assert isinstance(told, Engine), told
    assert told.takes_cdi is (bare.version() >= FIRST_WITH_CDI), told
    for handler in ("", "nvidia"):
        for pod in (
            Pod(handler=handler, cdi=(configured.DEVICE,)),
            Pod(handler=handler, annotations=annotations),
            # As the device plugin answers: both of them, for a device each.
            Pod(handler=handler, cdi=(configured.DEVICE,), annotations=annotations),
        ):
            completed = bare.pod(f"nvidia-smi -L; {configured.NODES}", pod)
            if bare.version() >= FIRST_WITH_CDI:
                configured.has_one_gpu(completed)
            elif not handler:
                assert completed.stdout == "0\n", completed  # it ignores both, and says nothing


def test_an_annotation_that_is_handed_on_asks_the_runtime(bare: Containerd) -> None:
    """Where containerd has no CDI of its own, and where it and the runtime are both asked."""
    bare.configure("--cdi.enabled", "--container-annotation=cdi.k8s.io/*")
    bare.restart()
    pod = Pod(handler="nvidia-cdi", annotations={KEY: configured.DEVICE})
    configured.has_one_gpu(bare.pod("nvidia-smi -L", pod))


def test_the_default_runtime_gives_gpus(bare: Containerd) -> None:
    bare.configure("--set-as-default")
    bare.restart()
    configured.has_one_gpu(bare.pod("nvidia-smi -L", Pod(env=ENVS["nvidia"])))
    configured.has_no_gpu(bare.pod(configured.NODES, Pod()))


def test_a_policy_refuses_no_pod_without_a_gpu(bare: Containerd) -> None:
    configured.starts_pods_without_a_gpu(bare)


def test_configuring_twice_changes_nothing(bare: Containerd) -> None:
    configured.is_idempotent(bare, "--set-as-default", "--cdi.enabled")


def test_configure_does_what_plan_prints(bare: Containerd) -> None:
    configured.does_as_planned(bare, "--cdi.enabled")


def test_undo_restores_the_bytes_and_containerd_works(bare: Containerd) -> None:
    configured.is_undone(bare, "--set-as-default", "--cdi.enabled")
    after_undo = bare.pod("true", Pod(handler="nvidia"))
    assert "no runtime for" in after_undo.stderr, after_undo


def test_the_incumbents_command_line_does_as_well(bare: Containerd) -> None:
    configured.takes_the_incumbents_words(bare)
    bare.restart()
    configured.has_one_gpu(bare.pod("nvidia-smi -L", Pod(handler="nvidia", env=ENVS["nvidia"])))


def test_status_reports_the_running_containerd(bare: Containerd) -> None:
    bare.configure()
    configured.is_told_of(bare, CONFIG)


@pytest.mark.parametrize("containerd", CASES[:2], indirect=True)
def test_a_kill_at_any_point_leaves_a_containerd_that_starts(bare: Containerd) -> None:
    crash.leaves_an_engine_that_starts(bare, "--set-as-default", "--cdi.enabled")
