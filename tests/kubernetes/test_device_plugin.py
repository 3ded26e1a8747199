# SPDX-License-Identifier: Apache-2.0
"""nvct's device plugin with a real kubelet: pods get the GPUs that they ask for, and no others."""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from nvct.agent.device_plugin.resources import GPU
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, ApiError, wait
from tests.kubernetes.cluster import FOLDER, Cluster
from tests.kubernetes.conftest import CONTAINERD
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    REGISTERED,
    TIMEOUT_S,
    allocatable,
    asks,
    log,
    plugin,
    restarts,
    smi,
    state,
)
from tests.kubernetes.pods import Pod, run, run_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", CONTAINERD, indirect=True),
]
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
SETTLE_S = 1.5
MPS_ROOT = "/run/nvidia/mps"
CONTROL, PERCENTAGE = "nvidia-cuda-mps-control", "default_active_thread_percentage"
SMALL = "nvidia.com/mig-1g.10gb"
MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pods_see_exactly_the_gpus_that_they_ask_for(strategy: str, node: Cluster) -> None:
    with plugin(node, f"--device-list-strategy={strategy}"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state(node, "plugin")
        script = f"{LIST}; sleep 3"  # so that both have theirs at the same time
        results = run_all(node.api, {f"asks-{n}": asks(n, script) for n in (1, 2)})
        every = run(node.api, "asks-8", asks(GPUS))

    one, two, eight = (
        UUID.findall(result.log) for result in (results["asks-1"], results["asks-2"], every)
    )
    assert (len(one), len(two), len(set(one + two))) == (1, 2, 3), (results, every)
    assert len(set(eight)) == GPUS, every
    assert set(one + two) <= set(eight)


def test_a_pod_without_a_request_sees_none_as_shipped(node: Cluster) -> None:
    with plugin(node):
        image_says_all = Pod(
            script="ls /dev | grep -c nvidia", env={"NVIDIA_VISIBLE_DEVICES": "all"}
        )
        assert run(node.api, "asks-nothing", image_says_all).lines == ["0"]


def test_a_restarted_kubelet_has_the_resource_again_and_pods_keep_theirs(node: Cluster) -> None:
    with plugin(node):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        path = f"{PODS}/stays"
        node.api.create(PODS, asks(1, f"{LIST}; sleep 600").manifest("stays"))
        try:
            assert wait(lambda: UUID.findall(log(node, "stays")), TIMEOUT_S)
            before = log(node, "plugin").count("Registered device plugin")
            node.restart_kubelet()
            began = time.monotonic()
            assert wait(
                lambda: log(node, "plugin").count("Registered device plugin") > before, TIMEOUT_S
            ), state(node, "plugin")
            print(f"registered again {time.monotonic() - began:.1f} s after the kubelet's end")
            rest = run(node.api, "asks-7", asks(GPUS - 1))
            taken = UUID.findall(log(node, "stays"))
            others = UUID.findall(rest.log)
            assert len(others) == GPUS - 1, (rest, state(node, "plugin"))
            assert not set(taken) & set(others)
        finally:
            node.api.delete(path)


def test_mig_devices_are_offered_when_they_are_made(node: Cluster) -> None:
    with plugin(node, "--mig-strategy=mixed"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        try:
            smi(node, "-i", "0", "-mig", "1")
            smi(node, "mig", "-i", "0", "-cgi", "1g.10gb,1g.10gb", "-C")
            assert wait(lambda: allocatable(node, SMALL) == 2, TIMEOUT_S), state(node, "plugin")
            asked = {"two": asks(2, name=SMALL), "rest": asks(GPUS - 1)}
            results = run_all(node.api, asked)
        finally:
            smi(node, "mig", "-i", "0", "-dci")
            smi(node, "mig", "-i", "0", "-dgi")
            smi(node, "-i", "0", "-mig", "0")
        assert len(MIG_UUID.findall(results["two"].log)) == 2, results
        assert len(UUID.findall(results["rest"].log)) == GPUS - 1, results
        assert wait(lambda: allocatable(node, SMALL) == 0, TIMEOUT_S)
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)


def test_shared_gpus_are_distributed(node: Cluster) -> None:
    rule = "{name: nvidia.com/gpu, replicas: 2}"
    config = f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{rule}]}}}}"
    shared = f"{GPU}.shared"
    with plugin(node, config=config):
        assert wait(lambda: allocatable(node, shared) == 2 * GPUS, TIMEOUT_S)
        script = f"{LIST}; sleep 3"
        asked = {f"share-{n}": asks(1, script, shared) for n in range(3)}
        results = run_all(node.api, asked)
        seen = [UUID.findall(result.log) for result in results.values()]
        assert sorted(map(len, seen)) == [1, 1, 1], results
        assert len({uuids[0] for uuids in seen}) == 3, results


def test_gpus_shared_by_mps_have_their_limits_in_pods(node: Cluster) -> None:
    """The agent keeps the control daemon; a stand-in that a pod can ask as the real one."""
    folder = f"{MPS_ROOT}/{GPU}/pipe"
    script = f"echo $CUDA_MPS_PIPE_DIRECTORY; echo get_{PERCENTAGE} | {CONTROL}; touch /dev/shm/x"
    with mps_agent(node):
        assert wait(lambda: allocatable(node) == 4 * GPUS, TIMEOUT_S), agent_log(node)
        assert modes(node) == {"Exclusive_Process"}
        pod = run(node.api, "by-mps", asks(1, script))
        assert pod.lines == [f"/mps/{GPU}/pipe", "25.0"], pod
        assert node.box.call("test", "-e", f"{MPS_ROOT}/shm/x").returncode == 0
        two = run(node.api, "two-by-mps", asks(2))
        assert "maximum request size for shared resources is 1; found 2" in two.log, two
    assert wait(lambda: modes(node) == {"Default"}, TIMEOUT_S)
    gone = ("test", "!", "-e", f"{folder}/control")
    assert wait(lambda: node.box.call(*gone).returncode == 0, TIMEOUT_S)


@contextlib.contextmanager
def mps_agent(node: Cluster) -> Iterator[None]:
    """Run an agent beside the kubelet that shares each GPU four times."""
    node.box.write(
        f"{FOLDER}/mps.yaml", f"sharing: {{mps: {{resources: [{{name: {GPU}, replicas: 4}}]}}}}"
    )
    settings = {
        "PATH": f"{DRIVER_ROOT}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": f"{DRIVER_ROOT}/usr/lib/x86_64-linux-gnu", "MPS_ROOT": MPS_ROOT,
        "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "CONFIG_FILE": f"{FOLDER}/mps.yaml",
    }  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    agent = [f"{PROGRAMS}/nvct", "agent", "--tasks=device-plugin"]
    process = node.box.start(["env", *words, *agent], "mps.log")
    try:
        yield
    finally:
        node.box.call("pkill", "-TERM", "-o", "-f", "nvct.agent device-plugin")
        process.wait(TIMEOUT_S)


def agent_log(node: Cluster) -> str:
    return (node.box.work / "mps.log").read_text(errors="replace")


def modes(node: Cluster) -> set[str]:
    """Return the compute modes of the GPUs."""
    text = smi(node, "--query-gpu=compute_mode", "--format=csv,noheader")
    return set(text.split())


def test_a_quota_limits_the_shared_gpus_of_a_namespace(node: Cluster) -> None:
    shared = f"{GPU}.shared"
    node.kubectl("create", "namespace", "team")
    node.kubectl("create", "quota", "gpus", "-n=team", f"--hard=requests.{shared}=2")
    pods = PODS.replace("default", "team")
    account = "/api/v1/namespaces/team/serviceaccounts/default"
    assert wait(lambda: node.api.find(account) is not None, TIMEOUT_S)
    quota = "/api/v1/namespaces/team/resourcequotas/gpus"
    assert wait(lambda: (node.api.find(quota) or {}).get("status"), TIMEOUT_S)

    node.api.create(pods, asks(2, name=shared).manifest("within"))
    with pytest.raises(ApiError) as caught:
        node.api.create(pods, asks(1, name=shared).manifest("beyond"))

    used = f"requested: requests.{shared}=1, used: requests.{shared}=2"
    assert f"exceeded quota: gpus, {used}, limited: requests.{shared}=2" in str(caught.value)
    node.kubectl("delete", "namespace", "team", "--wait=false")


def test_a_killed_plugin_and_one_that_is_replaced_do_not_take_the_resource_away(
    node: Cluster,
) -> None:
    with contextlib.ExitStack() as stack:
        older = stack.enter_context(plugin(node, name="older"))
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        node.box.call("pkill", "-KILL", "-f", "nvct.agent.core.program nvidia-device-plugin")
        began = time.monotonic()
        assert wait(lambda: restarts(node, older) == 1 and REGISTERED in log(node, older))
        print(f"registered again {time.monotonic() - began:.1f} s after SIGKILL")
        newer = stack.enter_context(plugin(node, name="newer"))
        assert wait(lambda: "has taken" in log(node, older), TIMEOUT_S)
        # The end of the older stream makes the kubelet drop the newer plugin (kubernetes#121994),
        # and until that one has registered again, a tenth of a second later, it admits no pod.
        time.sleep(SETTLE_S)
        assert REGISTERED in log(node, newer), state(node, newer)
        node.api.delete(f"{PODS}/{older}")
        assert wait(lambda: node.api.find(f"{PODS}/{older}") is None, TIMEOUT_S)
        every = run(node.api, "asks-8", asks(GPUS))
        assert len(UUID.findall(every.log)) == GPUS, (every, state(node, "newer"))
        assert allocatable(node) == GPUS
