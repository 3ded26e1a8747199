# SPDX-License-Identifier: Apache-2.0
"""Claims with a part of a GPU's memory, with the real scheduler and kubelet, and a stand-in of MPS.

The stand-in enforces limits as the real program's documentation says.
"""

import contextlib
import json
import random
import time
from collections.abc import Iterator

import pytest

from nvct.agent.dra.devices import DRIVER
from nvct.agent.mps.place import DEFAULT_ROOT
from tests.engines.checks import UUID
from tests.engines.releases import FULL
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import LIST, smi
from tests.kubernetes.dra import (
    API,
    ATTRIBUTES,
    CLAIMS,
    TIMEOUT_S,
    Driver,
    account,
    allocated,
    asks_for_claims,
    claim,
    log_of,
    make_classes,
    pod,
    runs,
    scheduled_to,
)  # fmt: skip
from tests.kubernetes.pods import ENDED, Pod, run
from tests.support.cpu import Limit

RANDOM = 500 if FULL else 8
AT_ONCE = 20
"""Pods."""
QUARTER = "20000Mi"
"""Of an H100, whose 80 GB are 81559 MiB."""
ALLOCATE = "nvidia-cuda-mps-control --sim-client {} </dev/null"
METADATA = (
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{}/gpu/"
    "gpu.nvidia.com-metadata.json"
)
OWN = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
FOLDERS = f"{DEFAULT_ROOT}/{DRIVER}"
MODES = ("--query-gpu=compute_mode", "--format=csv,noheader")
pytestmark = [pytest.mark.slow, ON_ONE]


@pytest.fixture(scope="module")
def kubeconfig(node: Cluster) -> str:
    make_classes(node)
    return account(node)


@contextlib.contextmanager
def driver(node: Cluster, kubeconfig: str, shares: str) -> Iterator[Driver]:
    options = [f"--memory-shares={shares}", "--device-metadata"]
    made = Driver(node, kubeconfig, options=options)
    made.start()
    try:
        yield made
        assert wait(lambda: made.journal() == [], TIMEOUT_S), made.log()
        assert wait(lambda: node.box.call("ls", FOLDERS).stdout == "", TIMEOUT_S), made.log()
        assert set(smi(node, *MODES).split()) == {"Default"}
    finally:
        made.remove()


def policy(node: Cluster, name: str) -> object:
    """Return what the slice says about parts of a GPU's memory."""
    found = node.api.get(f"{API}/resourceslices")
    (device,) = [
        one for each in found["items"] for one in each["spec"]["devices"] if one["name"] == name
    ]
    return device["capacity"]["memory"]["requestPolicy"]


@pytest.fixture(autouse=True)
def _no_share_is_left(node: Cluster) -> None:
    """Wait until the pods of former tests have given their shares back: the next ones need them."""

    def left() -> list[str]:
        claims = node.api.get(CLAIMS)["items"]
        return [it["metadata"]["name"] for it in claims if "allocation" in it.get("status", {})]

    assert wait(lambda: not left(), TIMEOUT_S), left()


def share(node: Cluster, name: str, memory: str, uuid: str) -> None:
    claim(node, name, f"{ATTRIBUTES}.uuid == '{uuid}'", capacity={"memory": memory})


def test_four_pods_share_a_gpu_whose_memory_mps_divides(node: Cluster, kubeconfig: str) -> None:
    script = "; ".join(
        [
            LIST,
            ALLOCATE.format(QUARTER.removesuffix("i")),
            f"unset {OWN}; {ALLOCATE.format('20001M')}",
            f"{OWN}=0=80000M {ALLOCATE.format('20001M')}",
            "sleep 600",
        ]
    )
    with driver(node, kubeconfig, "uniform") as made, contextlib.ExitStack() as stack:
        uuid = UUID.findall(smi(node, "-L"))[0]
        names = [f"quarter-{n}" for n in range(4)]
        first = contextlib.ExitStack()
        stack.enter_context(first)
        for name in [*names, "fifth"]:
            share(node, name, QUARTER, uuid)
            where = first if name == names[0] else stack
            where.enter_context(pod(node, name, asks_for_claims(name, script=script)))
            if name in names:
                assert wait(lambda: log_of(node, name).count(":") > 3, TIMEOUT_S), made.log()  # noqa: B023
        for name in names:
            told = log_of(node, name).splitlines()
            assert UUID.findall(told[0]) == [uuid]
            assert told[1:] == [
                "allocated: limit 20000M", *["out of memory: limit 20000M"] * 2
            ], told  # fmt: skip
        assert "cannot allocate all claims" in str(
            wait(lambda: node.api.events("fifth"), TIMEOUT_S) and node.api.events("fifth")
        )
        assert scheduled_to(node, "fifth") == ""
        (device,) = {one.partition("/")[2] for name in names for one in allocated(node, name)}
        assert wait(
            lambda: (
                policy(node, device) == {"default": "81559Mi", "validValues": [QUARTER, "81559Mi"]}
            ),
            TIMEOUT_S,
        ), policy(node, device)
        # A share of another size, and a whole GPU, find other GPUs; on this one there is none.
        claim(node, "whole", f"{ATTRIBUTES}.uuid != '{uuid}'", count=7)
        whole = run(node.api, "whole", asks_for_claims("whole"))
        assert len(set(UUID.findall(whole.log)) - {uuid}) == 7, (whole, made.log())
        # Who asks for a GPU as before gets all of another one.
        plain = Pod(script=LIST, container={"resources": {"limits": {"nvidia.com/gpu": "1"}}})
        seen = UUID.findall(run(node.api, "plain", plain).log)
        assert (len(seen), uuid in seen) == (1, False), seen
        daemon = node.box.call("pgrep", "-f", "nvidia-cuda-mps-control -f -M").stdout
        first.close()
        node.api.delete(f"{CLAIMS}/{names[0]}")
        assert wait(lambda: log_of(node, "fifth").count(":") > 3, TIMEOUT_S), made.log()
        assert "allocated: limit 20000M" in log_of(node, "fifth")
        assert node.box.call("pgrep", "-f", "nvidia-cuda-mps-control -f -M").stdout == daemon
        assert all(runs(node, name) for name in names[1:])
        assert "error: " not in made.log()


def test_mixed_sizes_are_advisory(node: Cluster, kubeconfig: str) -> None:
    """docs/dra.md says so: a program that clears its variables has all of the GPU."""
    with driver(node, kubeconfig, "mixed") as made, contextlib.ExitStack() as stack:
        uuid = UUID.findall(smi(node, "-L"))[0]
        for gib in (10, 20, 40):
            name = f"of-{gib}"
            share(node, name, f"{gib}Gi", uuid)
            script = "; ".join(
                [
                    LIST,
                    ALLOCATE.format(f"{gib}G"),
                    ALLOCATE.format(f"{gib + 1}G"),
                    f"unset {OWN}; {ALLOCATE.format(f'{gib + 1}G')}",
                    f"cat {METADATA.format(name)}; sleep 600",
                ]
            )
            stack.enter_context(pod(node, name, asks_for_claims(name, script=script)))
        for gib in (10, 20, 40):
            name, limit = f"of-{gib}", f"limit {gib * 1024}M"
            assert wait(lambda: "DeviceMetadata" in log_of(node, name), TIMEOUT_S), made.log()  # noqa: B023
            told = log_of(node, name).splitlines()
            assert UUID.findall(told[0]) == [uuid]
            assert told[1:4] == [
                f"allocated: {limit}", f"out of memory: {limit}", "allocated: no limit"
            ]  # fmt: skip
            (request,) = json.loads(told[4])["requests"]
            (device,) = request["devices"]
            assert device["attributes"]["uuid"] == {"string": uuid}


def test_a_hostile_pod_leaves_others_their_limit(node: Cluster, kubeconfig: str) -> None:
    """It is root, writes where it can, ends the daemon and raises the limits of the next one."""
    hostile = (
        f"{LIST}; P=$CUDA_MPS_PIPE_DIRECTORY; "
        "touch $P/new && echo made; rm -f $P/control && echo removed; "
        "mv $P /moved && echo moved; ln -s /etc $P/etc && echo linked; "
        "ln -s /etc /dev/shm/etc; mkdir -p /dev/shm/a/b/c; ln -s ../../../.. /dev/shm/up; "
        "echo quit | nvidia-cuda-mps-control; echo tried; sleep 600"
    )
    raises = (
        "while :; do echo set_default_device_pinned_mem_limit 0 70G | nvidia-cuda-mps-control; "
        "sleep 3; done"
    )
    with driver(node, kubeconfig, "uniform") as made, contextlib.ExitStack() as stack:
        uuid = UUID.findall(smi(node, "-L"))[0]
        for name in ("victim", "hostile", "raises", "user"):
            share(node, name, "10000Mi", uuid)
        loop = f"while :; do {ALLOCATE.format('10001M')}; sleep 1; done"
        stack.enter_context(pod(node, "victim", asks_for_claims("victim", script=loop)))
        assert wait(lambda: "limit" in log_of(node, "victim"), TIMEOUT_S), made.log()
        stack.enter_context(pod(node, "hostile", asks_for_claims("hostile", script=hostile)))
        assert wait(lambda: "tried" in log_of(node, "hostile"), TIMEOUT_S), made.log()
        told = log_of(node, "hostile")
        assert not {"made", "removed", "moved", "linked"} & {*told.split()}, told
        before = log_of(node, "victim").count("limit 10000M")
        assert wait(
            lambda: log_of(node, "victim").count("limit 10000M") > before + 2, TIMEOUT_S
        ), made.log()
        with pod(node, "raises", asks_for_claims("raises", script=raises)):
            time.sleep(8)
        # Somebody who is not root, when nobody raises it any more.
        time.sleep(15)
        user = asks_for_claims(
            "user", script=f"id -u; {ALLOCATE.format('10001M')}; sleep 600",
            securityContext={"runAsUser": 1000},
        )  # fmt: skip
        stack.enter_context(pod(node, "user", user))
        assert wait(lambda: log_of(node, "user").count("\n") > 1, TIMEOUT_S), made.log()
        assert log_of(node, "user").split("\n", 1) == ["1000", "out of memory: limit 10000M\n"]


@pytest.mark.timeout(3600)
def test_random_shares_leave_nothing_behind(node: Cluster, kubeconfig: str) -> None:
    """Pods with shares of all sizes come and go, and the driver is killed now and then.

    MPS's daemons end with the driver: pods that run then may fail.
    """
    dice = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    for gib in (2, 5, 10, 20, 40):
        node.api.create(f"{API}/namespaces/default/resourceclaimtemplates", _template(gib))
    left = [f"random-{number}" for number in range(RANDOM)]
    there: set[str] = set()
    may_fail: set[str] = set()
    with driver(node, kubeconfig, "mixed") as made:
        limit = Limit(120 + 5 * RANDOM)
        while left or there:
            assert not limit.is_over, (there, made.log())
            while left and len(there) < AT_ONCE:
                name = left.pop()
                gib = dice.choice((2, 5, 10, 20, 40))
                node.api.create(PODS, _share_pod(gib, dice.randrange(3)).manifest(name))
                there.add(name)
            if dice.random() < 0.02:
                made.kill()
                made.start()
                may_fail |= there
            found = node.api.get(PODS)
            for one in found["items"]:
                name, phase = one["metadata"]["name"], one["status"]["phase"]
                if name in there and phase in ENDED:
                    assert phase == "Succeeded" or name in may_fail, (
                        node.api.logs(name), made.log(),
                    )  # fmt: skip
                    node.api.delete(f"{PODS}/{name}")
                    there.remove(name)
            time.sleep(0.2)


def _template(gib: int) -> dict[str, object]:
    exactly = {
        "deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": f"{gib}Gi"}}
    }  # fmt: skip
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {"metadata": {"name": f"of-{gib}"}, "spec": {"spec": spec}}


def _share_pod(gib: int, seconds: int) -> Pod:
    """Return a pod that fails unless it may allocate its share and no more."""
    fits, more = ALLOCATE.format(f"{gib}G"), ALLOCATE.format(f"{gib * 1024 + 1}M")
    return Pod(
        script=f"set -e; {LIST}; {fits}; ! {more}; sleep {seconds}",
        container={"resources": {"claims": [{"name": "gpu"}]}},
        spec={
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": f"of-{gib}"}],
            "restartPolicy": "Never",
        },
    )
