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
from tests.engines.releases import of_release
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, asks, simulated, smi
from tests.kubernetes.dra import (
    API,
    ATTRIBUTES,
    CLAIMS,
    FAR,
    HUGE,
    LARGE,
    MIG_UUID,
    TESLA,
    TIMEOUT_S,
    Driver,
    account,
    allocated,
    asks_for_claims,
    claim,
    devices,
    explained,
    log_of,
    make_classes,
    make_far_node,
    pod,
    runs,
    scheduled_to,
)  # fmt: skip
from tests.kubernetes.pods import Pod, container, run, run_all
from tests.kubernetes.test_exporter import exporter, of_pod, series

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
SHARED = [{"name": "shared", "mountPath": "/shared"}]
MODES = ("--query-gpu=compute_mode", "--format=csv,noheader")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]


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
        made.kill()


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


def test_an_init_container_has_the_requests_that_kubernetes_maps_it_to(
    node: Cluster, driver: Driver
) -> None:
    """docs/dra.md says so: by a limit those of another container, by a claim the one it names."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        for name in ("first", "other")
    ]
    spec = {"devices": {"requests": requests}}
    node.api.create(CLAIMS, {"metadata": {"name": "parts"}, "spec": spec})
    asked = {
        "by-limit": ({"limits": {GPU: 1}}, {"limits": {GPU: 2}}),
        "by-claim": (
            {"claims": [{"name": "parts", "request": "first"}]},
            {"claims": [{"name": "parts"}]},
        ),
    }
    seen = {}
    for name, (of_init, of_main) in asked.items():
        both = Pod(
            script=f"cat /shared/init; echo; {LIST}",
            container={"resources": of_main, "volumeMounts": SHARED},
            spec={
                "initContainers": [
                    container(
                        f"{LIST} >/shared/init", {}, "init", resources=of_init, volumeMounts=SHARED
                    )
                ],
                "volumes": [{"name": "shared", "emptyDir": {}}],
                "resourceClaims": [{"name": "parts", "resourceClaimName": "parts"}],
            },
        )
        init, _, main = run(node.api, name, both).log.partition("\n\n")
        seen[name] = len(UUID.findall(init)), len(UUID.findall(main))
    assert seen == {"by-limit": (2, 2), "by-claim": (1, 2)}, driver.log()


def test_a_claim_has_the_first_alternative_that_a_node_has(node: Cluster, driver: Driver) -> None:
    alternatives = [
        {"name": name, "deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {
            "expression": expression
        }}]}
        for name, expression in (("huge", HUGE), ("large", LARGE), ("any", "true"))
    ]  # fmt: skip
    spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}
    node.api.create(CLAIMS, {"metadata": {"name": "first-of"}, "spec": spec})
    with pod(node, "first-of", asks_for_claims("first-of", script=f"{LIST}; sleep 600")):
        assert wait(lambda: UUID.findall(log_of(node, "first-of")), TIMEOUT_S), driver.log()
        found = node.api.find(f"{CLAIMS}/first-of")
        assert found is not None
        (result,) = found["status"]["allocation"]["devices"]["results"]
        assert result["request"] == "gpu/large"
        assert UUID.findall(log_of(node, "first-of")) == [devices(node)[result["device"]]]


def test_the_xid_of_an_application_is_a_taint_that_keeps_nobody_away(
    node: Cluster, driver: Driver
) -> None:
    def taints(name: str) -> list[tuple[str, str, str]]:
        found = node.api.find(f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{NODE}")
        assert found is not None
        return [
            (one["key"], one.get("value", ""), one["effect"])
            for each in found["items"]
            for device in each["spec"].get("devices", ())
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
        node.api.request(
            "PATCH", f"{CLAIMS}/lost", {"metadata": {"finalizers": []}},
            "application/merge-patch+json",
        )  # fmt: skip
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
