# SPDX-License-Identifier: Apache-2.0
"""CRI-O as `nvct runtime configure` leaves it, where `make crio` has built it or one is on PATH.

Elsewhere its drop-ins are checked against its documented settings (tests/engineconf), and the
contract of hooks.d by Podman, which has the same (test_configured_podman).
"""

from collections.abc import Callable, Iterator

import pytest

from tests.engines import configured, crash
from tests.engines.box import PROGRAMS, Box
from tests.engines.checks import UUID
from tests.engines.cri import Pod
from tests.engines.daemons import Crio
from tests.engines.engines import CONFIG

pytestmark = pytest.mark.slow
NAME = "NVIDIA_VISIBLE_DEVICES"
ENV = {NAME: "0"}
HOOKS = "/etc/containers/oci/hooks.d"
DENY = """
[[nvct.policy.rules]]
by = ["env"]
then = "deny"
reason = "ask the admins"
"""


@pytest.fixture(scope="module")
def crio(machine_of: Callable[[str], Box]) -> Iterator[Crio]:
    """CRI-O that runs, with nothing of ours."""
    daemon = configured.started(lambda: Crio(machine_of("trixie")))
    yield daemon
    daemon.stop()


@pytest.fixture
def bare(crio: Crio) -> Crio:
    """The same, whatever another test left."""
    if crio.snapshot() != crio.original:
        crio.reset()
        crio.restart()
    return crio


def test_crio_itself_says_that_the_runtimes_are_in_force(bare: Crio) -> None:
    assert "runtimes.nvidia" not in bare.in_force()
    bare.configure("--set-as-default")
    output = bare.in_force()
    for name in configured.HANDLERS:
        assert f"[crio.runtime.runtimes.{name}]" in output
    assert 'default_runtime = "nvidia"' in output


def test_every_runtime_class_gives_gpus(bare: Crio) -> None:
    bare.configure()
    bare.restart()
    for handler in configured.HANDLERS:
        configured.has_one_gpu(bare.pod("nvidia-smi -L", Pod(handler=handler, env=ENV)))
    configured.has_no_gpu(bare.pod(configured.NODES, Pod(env=ENV)))


def test_the_field_and_the_annotation_of_cdi_give_gpus(bare: Crio) -> None:
    for pod in (
        Pod(cdi=(configured.DEVICE,)),
        Pod(annotations={"cdi.k8s.io/nvidia-device-plugin_gpu": configured.DEVICE}),
    ):
        configured.has_one_gpu(bare.pod("nvidia-smi -L", pod))


@pytest.fixture
def hooked(bare: Crio) -> Crio:
    """CRI-O that finds the hook's file, and has no runtime of ours."""
    hook = f"{PROGRAMS}/nvidia-container-runtime-hook"
    bare.configure(
        "--config-mode=oci-hook", f"--oci-hook-path={HOOKS}/oci-nvidia-hook.json",
        f"--nvidia-runtime-hook-path={hook}",
    )  # fmt: skip
    bare.configure(f"--hooks-dir={HOOKS}")
    bare.restart()
    return bare


def test_the_hook_gives_gpus_to_pods_that_ask_and_leaves_others_alone(hooked: Crio) -> None:
    configured.has_one_gpu(hooked.pod("nvidia-smi -L", Pod(env=ENV)))
    configured.has_no_gpu(hooked.pod(configured.NODES, Pod()))
    configured.has_no_gpu(hooked.pod(configured.NODES, Pod(env={NAME: "void"})))
    refused = hooked.pod("true", Pod(env={NAME: "9"}))
    assert refused.returncode == 125, refused
    assert "no device '9'" in refused.stderr, refused


def test_a_policy_holds_for_the_hook(hooked: Crio) -> None:
    config = hooked.box.read(CONFIG)
    match = UUID.search(hooked.pod("nvidia-smi -L", Pod(env=ENV)).stdout)
    assert match
    try:
        hooked.box.write(CONFIG, config + DENY)
        refused = hooked.pod("true", Pod(env={NAME: match[1]}))
        assert refused.returncode == 125, refused
        assert "ask the admins" in refused.stderr, refused
        # What the image may have asked for does not keep a pod from starting.
        configured.has_no_gpu(hooked.pod(configured.NODES, Pod(env=ENV)))
        configured.has_no_gpu(hooked.pod(configured.NODES, Pod()))
    finally:
        hooked.box.write(CONFIG, config)


def test_a_policy_refuses_no_pod_without_a_gpu(bare: Crio) -> None:
    configured.starts_pods_without_a_gpu(bare)


def test_configuring_twice_changes_nothing(bare: Crio) -> None:
    configured.is_idempotent(bare, "--set-as-default")


def test_undo_restores_the_bytes_and_crio_works(bare: Crio) -> None:
    bare.configure("--set-as-default")
    bare.restart()
    bare.undo()
    assert bare.snapshot() == bare.original
    bare.restart()
    assert bare.run("echo runs").stdout == "runs\n"


def test_a_kill_at_any_point_leaves_a_crio_that_starts(bare: Crio) -> None:
    crash.leaves_an_engine_that_starts(bare, "--set-as-default")
