# SPDX-License-Identifier: Apache-2.0
"""nvct's DRA driver with the real scheduler and kubelet: pods get the GPUs that they describe.

The driver runs on the node. A second Node has no kubelet: its slices have other GPUs.
"""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.dra.devices import DRIVER
from nvct.agent.mps.place import DEFAULT_ROOT
from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, LIST, asks, simulated, smi
from tests.kubernetes.dra import (
    ATTRIBUTES,
    CLAIMS,
    FAR,
    HUGE,
    LARGE,
    MIG_UUID,
    TESLA,
    TIMEOUT_S,
    V100,
    Driver,
    account,
    allocated,
    asks_for_claims,
    claim,
    devices,
    explained,
    forget_slices,
    log_of,
    make_classes,
    make_far_node,
    offered,
    pod,
    runs,
    scheduled_to,
)  # fmt: skip
from tests.kubernetes.plugin.test_exporter import exporter, of_pod, series
from tests.kubernetes.pods import run, run_all

BY_MPS = {
    "strategy": "MPS",
    "mpsConfig": {
        "defaultActiveThreadPercentage": 40,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
    },
}
LIMITS = """
echo get_default_active_thread_percentage | nvidia-cuda-mps-control
echo get_default_device_pinned_mem_limit 0 | nvidia-cuda-mps-control
touch /dev/shm/of-a-pod
"""
MPS_CLAIMS = f"{DEFAULT_ROOT}/{DRIVER}"
MODES = ("--query-gpu=compute_mode", "--format=csv,noheader")
pytestmark = [pytest.mark.slow, ON_ONE]


@pytest.fixture(scope="module")
def driver(node: Cluster) -> Iterator[Driver]:
    """Yield the driver of a node whose slices are there, beside a Node of other GPUs."""
    make_classes(node)
    make_far_node(node)
    made = Driver(node, account(node))
    made.start()
    try:
        yield made
    finally:
        made.remove()
        forget_slices(node, FAR)
        node.api.delete(f"/api/v1/nodes/{FAR}")


def test_pods_get_the_gpus_that_they_describe_and_no_others(node: Cluster, driver: Driver) -> None:
    claim(node, "large", LARGE)
    claim(node, "two", f"{ATTRIBUTES}.architecture == 'Hopper'", 2)
    claim(node, "first")
    claim(node, "second", LARGE)
    claim(node, "huge", HUGE)
    claim(node, "tesla", TESLA)
    written = driver.log().count("were written")
    with pod(node, "huge", asks_for_claims("huge")), pod(node, "tesla", asks_for_claims("tesla")):
        asked = {
            "large": asks_for_claims("large"),
            "two": asks_for_claims("two"),
            "both": asks_for_claims("first", "second"),
            "plain": asks(1, f"{LIST}; sleep 2", GPU, runtime_class=""),
        }
        results = run_all(node.api, asked)
        assert wait(lambda: scheduled_to(node, "tesla") == FAR, TIMEOUT_S)
        assert allocated(node, "tesla") == [f"{FAR}/gpu-0"]
        assert scheduled_to(node, "huge") == ""
        assert any("cannot allocate all claims" in text for text in node.api.events("huge"))
        why = explained(node, "huge")
        assert "Pending, on no node yet" in why
        assert "No node has free devices that fit" in why
        assert re.search(
            r"\(1 of class gpu.nvidia.com\): 0 of \d+ devices fit, 0 of them free", why
        )
        assert f"has gpu-0 of {FAR} (Tesla" in explained(node, "tesla")
    seen = {name: UUID.findall(result.log) for name, result in results.items()}
    assert {name: len(uuids) for name, uuids in seen.items()} == {
        "large": 1, "two": 2, "both": 2, "plain": 1,
    }, (results, driver.log())  # fmt: skip
    every = [uuid for uuids in seen.values() for uuid in uuids]
    assert set(every) <= set(devices(node).values())
    assert len(set(every)) == len(every), seen
    assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    assert driver.log().count("were written") == written


def test_a_claim_can_have_gpus_of_one_nvlink_domain(node: Cluster, driver: Driver) -> None:
    """The scheduler compares an attribute of the slices, here of a Node without a kubelet."""
    for count in (2, 3):
        exactly = {
            "deviceClassName": "gpu.nvidia.com", "count": count,
            "selectors": [{"cel": {"expression": f"{ATTRIBUTES}.productName == '{V100}'"}}],
        }  # fmt: skip
        same = {"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/nvlinkDomain"}
        wanted = {"requests": [{"name": "gpu", "exactly": exactly}], "constraints": [same]}
        name = f"linked-{count}"
        node.api.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": wanted}})
    with (
        pod(node, "linked-3", asks_for_claims("linked-3")),
        pod(node, "linked-2", asks_for_claims("linked-2")),
    ):
        assert wait(lambda: allocated(node, "linked-2"), TIMEOUT_S), node.api.events("linked-2")
        pairs = ([f"{FAR}/gpu-1", f"{FAR}/gpu-2"], [f"{FAR}/gpu-3", f"{FAR}/gpu-4"])
        assert sorted(allocated(node, "linked-2")) in pairs
        pends = "cannot allocate all claims"
        assert wait(lambda: pends in str(node.api.events("linked-3")), TIMEOUT_S)
        assert allocated(node, "linked-3") == []


def test_pods_that_name_the_same_claim_share_its_gpu(node: Cluster, driver: Driver) -> None:
    names = ("reads", "writes")
    claim(node, "shared")
    slow = asks_for_claims("shared", script=f"{LIST}; sleep 600")
    with pod(node, "reads", slow), pod(node, "writes", slow):
        both = wait(lambda: all(UUID.findall(log_of(node, name)) for name in names), TIMEOUT_S)
        assert both, driver.log()
        (device,) = allocated(node, "shared")
        uuid = devices(node)[device.partition("/")[2]]
        assert [UUID.findall(log_of(node, name)) for name in names] == [[uuid], [uuid]]
        assert driver.journal() == ["shared"]
    assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()


def test_the_xid_of_an_application_is_a_taint_that_keeps_nobody_away(
    node: Cluster, driver: Driver
) -> None:
    def taints(name: str) -> list[tuple[str, str, str]]:
        return [
            (one["key"], one.get("value", ""), one["effect"])
            for device in offered(node)
            for one in device.get("taints", ())
            if device["name"] == name
        ]

    node_changes.apply(simulated(node), "xid", ["3", "31"])
    key = "gpu.nvidia.com/xid"
    assert wait(lambda: taints("gpu-3") == [(key, "31", "None")], TIMEOUT_S), taints("gpu-3")
    claim(node, "after-xid", f"{ATTRIBUTES}.uuid == '{devices(node)['gpu-3']}'")
    after = run(node.api, "after-xid", asks_for_claims("after-xid"))
    assert UUID.findall(after.log) == [devices(node)["gpu-3"]], driver.log()


def test_what_a_claim_has_is_what_its_pod_sees_also_after_a_restart_of_the_kubelet(
    node: Cluster, driver: Driver
) -> None:
    claim(node, "stays", sharing=BY_MPS)
    with pod(node, "stays", asks_for_claims("stays", script=f"{LIMITS}{LIST}; sleep 600")):
        assert wait(lambda: UUID.findall(log_of(node, "stays")), TIMEOUT_S), driver.log()
        assert log_of(node, "stays").splitlines()[:2] == ["40.0", "10G"]
        assert "Exclusive_Process" in smi(node, *MODES)
        assert MPS_CLAIMS in node.box.call("find", MPS_CLAIMS, "-name", "of-a-pod").stdout
        (name,) = allocated(node, "stays")
        mine = devices(node)[name.partition("/")[2]]
        assert UUID.findall(log_of(node, "stays")) == [mine]
        why = explained(node, "stays")
        assert f"has {name.partition('/')[2]} of {NODE}" in why
        assert f"because device.driver == 'gpu.nvidia.com' && {ATTRIBUTES}.type == 'gpu'" in why
        with exporter(node, "--kubernetes-enable-dra"):
            assert wait(lambda: of_pod(node, "stays"), TIMEOUT_S), series(node)
            (labels,) = of_pod(node, "stays")
            assert (labels["UUID"], labels["dra_claim_name"]) == (mine, "stays")
        before = driver.log().count("Registered DRA driver")
        node.restart_kubelet()
        assert wait(lambda: driver.log().count("Registered DRA driver") > before, TIMEOUT_S)
        assert wait(lambda: len(devices(node)) == GPUS, TIMEOUT_S), driver.log()
        claim(node, "rest", count=GPUS - 1)
        rest = run(node.api, "rest", asks_for_claims("rest"))
        others = UUID.findall(rest.log)
        assert len(others) == GPUS - 1, (rest, driver.log())
        assert mine not in others
        assert runs(node, "stays")
    assert wait(lambda: set(smi(node, *MODES).split()) == {"Default"}, TIMEOUT_S), driver.log()
    assert wait(lambda: node.box.call("ls", MPS_CLAIMS).stdout == "", TIMEOUT_S), driver.log()


def test_a_killed_driver_and_a_claim_that_was_deleted_meanwhile(
    node: Cluster, driver: Driver
) -> None:
    claim(node, "lost")
    claim(node, "kept")
    slow = f"{LIST}; sleep 600"
    with pod(node, "kept", asks_for_claims("kept", script=slow)), contextlib.ExitStack() as lost:
        lost.enter_context(pod(node, "lost", asks_for_claims("lost", script=slow)))
        assert wait(lambda: runs(node, "kept") and runs(node, "lost"), TIMEOUT_S), driver.log()
        driver.kill()
        # Somebody removes the protection, and deletes pod and claim by force.
        node.api.patch(f"{CLAIMS}/lost", {"metadata": {"finalizers": []}})
        node.api.delete(f"{CLAIMS}/lost")
        began = time.monotonic()
        driver.start()
        print(f"offered again {time.monotonic() - began:.1f} s after its start")
        assert wait(lambda: driver.journal() == ["kept"], TIMEOUT_S), driver.log()
        lost.close()
        claim(node, "after", count=GPUS - 1)
        after = run(node.api, "after", asks_for_claims("after"))
        assert len(UUID.findall(after.log)) == GPUS - 1, (after, driver.log())
    assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    failures = re.findall(r".*error: .*", driver.log())
    assert failures == []


def test_mig_devices_are_made_for_claims_that_share_a_gpu(node: Cluster, driver: Driver) -> None:
    smi(node, "-i", "0", "-mig", "1")  # procfs does not show it: the driver's next look does
    try:
        assert wait(lambda: "gpu-0-mig-3g40gb-9-0" in devices(node), TIMEOUT_S), driver.log()
        profile = f"{ATTRIBUTES}.?profile.orValue('') == '{{}}'"
        for name, size in (("half-1", "3g.40gb"), ("half-2", "3g.40gb"), ("more", "1g.10gb")):
            claim(node, name, profile.format(size), device_class="mig.nvidia.com")
        slow = f"{LIST}; sleep 600"
        first = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(first)
            first.enter_context(pod(node, "half-1", asks_for_claims("half-1", script=slow)))
            stack.enter_context(pod(node, "half-2", asks_for_claims("half-2", script=slow)))
            halves = ("half-1", "half-2")
            assert wait(
                lambda: all(MIG_UUID.findall(log_of(node, name)) for name in halves), TIMEOUT_S
            ), driver.log()
            seen = [MIG_UUID.findall(log_of(node, name)) for name in halves]
            assert [len(uuids) for uuids in seen] == [1, 1]
            assert seen[0] != seen[1]
            stack.enter_context(pod(node, "more", asks_for_claims("more", script=slow)))
            assert wait(lambda: node.api.events("more"), TIMEOUT_S)
            assert scheduled_to(node, "more") == ""  # the halves have all memory
            first.close()
            node.api.delete(f"{CLAIMS}/half-1")
            assert wait(lambda: MIG_UUID.findall(log_of(node, "more")), TIMEOUT_S), driver.log()
        assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    finally:
        smi(node, "-i", "0", "-mig", "0")
    assert wait(lambda: len(devices(node)) == GPUS, TIMEOUT_S), driver.log()
