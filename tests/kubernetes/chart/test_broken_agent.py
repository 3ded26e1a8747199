# SPDX-License-Identifier: Apache-2.0
"""Somebody runs code in the agent's container, on a real node: the host shows nothing of it.

What is attacked comes from the rendered chart and from the types of the worker's verbs, so a mount
or a verb that is added is attacked, too. Not held here, and named in SECURITY.md: what the agent
tells the kubelet to mount into pods.
"""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.box import PROGRAMS
from tests.engines.releases import FULL
from tests.kubernetes import attack, reach
from tests.kubernetes.api import PODS, Object, wait
from tests.kubernetes.chart.lab import (
    FARM,
    GPUS,
    IN_NAMESPACE,
    NAMESPACE,
    TIMEOUT_S,
    allocatable,
    as_agent,
    asks,
    gpus_of,
    installed,
    state_of,
)
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.hostile_requests import requests
from tests.kubernetes.pods import run
from tests.kubernetes.rendering import objects_of
from tests.unit.agent.test_hostile_folder import USES

pytestmark = [pytest.mark.slow, ON_ONE]
PYTHON = "/opt/nvct/bin/nvct-python"
PRECIOUS = "/root/precious"
"""A folder of the host with one file, to which links lead."""
WATCHED = (PRECIOUS, "/etc", "/dev", "/var/run/cdi", "/run/nvct-driver", "/root")
"""Folders of the host that the agent has no part in."""
OWN = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Mount points of every container, and what lies below them."""
SHARED = ("/dev/shm", "/root/.cache")
"""Folders that other tests write to meanwhile."""
ATTACK_S = 240.0
NAMES = sorted({name for name, _ in USES.values() if "{" not in name})
"""Files that processes with more rights use in folders of others."""


@pytest.fixture(scope="module")
def broken(node: Cluster) -> Iterator[Cluster]:
    """Yield a node on which the chart serves GPUs, and a folder is precious."""
    script = (
        f"mkdir -p {PRECIOUS} && echo kept > {PRECIOUS}/precious && chmod 640 {PRECIOUS}/precious"
    )
    assert node.box.call("sh", "-c", script).returncode == 0
    with installed(node, *FARM):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        yield node
        clean(node)
    node.box.call("rm", "-r", PRECIOUS)


@pytest.fixture(scope="module")
def agent(broken: Cluster) -> reach.Placed:
    """Return the agent's container as the chart renders it."""
    placed = reach.containers(rendered(broken))
    (found,) = (each for each in placed if reach.name_of(each) == reach.AGENT)
    return found


def rendered(node: Cluster) -> list[Object]:
    """Return the objects of the chart, as it is installed."""
    return objects_of(node.helm("get", "manifest", "nvct", *IN_NAMESPACE))


def attack_words(node: Cluster, command: str, asked: Any) -> list[str]:
    """Return the words that run a command of `attack` in the agent's container."""
    given, source = f"{FOLDER}/attack.json", Path(attack.__file__).read_text(encoding="utf-8")
    node.box.write(given, json.dumps(asked))
    words = ["kubectl", f"--kubeconfig={KUBECONFIG}", "exec", "--stdin", *IN_NAMESPACE, pod(node),
             "--container=agent", "--", PYTHON, "-I", "-c", source, command]  # fmt: skip
    return ["sh", "-c", f"{shlex.join(words)} < {given}"]


def attacked(node: Cluster, command: str, asked: Any = None) -> Any:
    """Run a command of `attack` in the agent's container."""
    done = node.box.call(*attack_words(node, command, asked), timeout=ATTACK_S)
    assert done.returncode == 0, (done.stdout, done.stderr, state_of(node))
    return json.loads(done.stdout)


def pods(node: Cluster) -> list[Object]:
    found = node.api.get(PODS.replace("/default/", f"/{NAMESPACE}/"))
    items: list[Object] = found["items"]
    return [each for each in items if "deletionTimestamp" not in each["metadata"]]


def pod(node: Cluster) -> str:
    """Return the name of the agent's pod, once its container runs."""

    def runs() -> list[str]:
        return [
            each["metadata"]["name"]
            for each in pods(node)
            for status in each["status"].get("containerStatuses", ())
            if status["name"] == "agent" and "running" in status["state"]
        ]

    assert wait(runs, TIMEOUT_S), state_of(node)
    return runs()[0]


def host(node: Cluster) -> str:
    """Return names, modes, sizes and links of what the agent has no part in."""
    words = ("-xdev", "-maxdepth", "3", "-type")
    folders = node.box.call("find", *WATCHED, *words, "d", "-printf", "%p %M %u\\n").stdout
    shown = ("b,c,p,f,l,s", "-printf", "%p %M %u %s %l\\n")
    files = node.box.call("find", *WATCHED, *words, *shown).stdout
    times = node.box.call("find", PRECIOUS, "-printf", "%p %t\\n").stdout
    lines = sorted([*folders.splitlines(), *files.splitlines(), *times.splitlines()])
    return "\n".join(line for line in lines if not line.startswith(SHARED))


def clean(node: Cluster) -> None:
    """Remove what was planted, as an admin would, and wait until a new agent has its worker."""
    script = (
        "rm -rf /run/nvct-agent/*; cd /var/lib/kubelet/device-plugins && "
        "find . -mindepth 1 ! -name 'kubelet*' -delete"
    )
    assert node.box.call("sh", "-c", script).returncode == 0
    restart(node)
    # The Node object still shows the GPUs of the former agent for a moment.
    assert wait(lambda: ready(node) == {"agent", "nvml-worker"}, TIMEOUT_S), state_of(node)
    assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)


def ready(node: Cluster) -> set[str]:
    """Return the names of containers that are ready; an agent is once it has asked its worker."""
    statuses = [each["status"].get("containerStatuses", ()) for each in pods(node)]
    return {each["name"] for found in statuses for each in found if each["ready"]}


def restart(node: Cluster) -> None:
    """Replace the pods of agent and worker: the installer runs, and ends."""
    before = [each["metadata"]["name"] for each in pods(node)]
    node.kubectl("delete", "pod", *IN_NAMESPACE, *before, "--grace-period=5")

    def has_installed() -> bool:
        return any(
            "terminated" in status["state"]
            for each in pods(node)
            if each["metadata"]["name"] not in before
            for status in each["status"].get("initContainerStatuses", ())
        )

    assert wait(has_installed, TIMEOUT_S), state_of(node)


def change_mig(node: Cluster) -> None:
    """Run `nvct mig apply` as the host's root, which uses the agent's folder; it may refuse."""
    words = ("-I", "-m", "nvct.cli", "nvct", "mig", "apply", "all-disabled")
    node.box.call(f"{PROGRAMS}/python", *words, timeout=60)


def test_of_its_mounts_it_writes_to_those_that_the_chart_says(
    broken: Cluster, agent: reach.Placed
) -> None:
    """A mount is read-only for its own file system alone, so those below it are tried, too."""
    mounts = agent.container["volumeMounts"]
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    found = attacked(broken, "written")
    others = [path for path in found if not path.startswith(OWN)]
    assert set(others) == writable
    assert "/" not in found


def test_it_sees_and_signals_no_process_but_its_own(broken: Cluster) -> None:
    """Its pod has processes of its own; the worker's would be the agent's host."""
    word = "86399"
    victim = broken.box.start(["sleep", word], "victim.log")
    try:
        numbers = broken.box.call("pgrep", "-f", f"sleep {word}").stdout.split()
        asked = {"word": word, "pids": [int(number) for number in numbers]}
        found = attacked(broken, "processes", asked)
        assert victim.poll() is None, found
    finally:
        victim.kill()
    assert "nvct.agent" in found["first"], found
    others = [each for each in found["seen"] if "nvct.agent" not in each and "-c" not in each]
    assert not others, found
    assert not any("nvct.agent.nvml.worker" in each for each in found["seen"]), found
    assert (found["killed"], found["reached"]) == ([], []), found


def test_no_request_to_the_worker_changes_the_host(broken: Cluster, agent: reach.Placed) -> None:
    before, sent = host(broken), [each.hex() for each in requests(PRECIOUS)]
    (socket,) = (
        word.removeprefix("--worker=")
        for word in agent.container["command"]
        if word.startswith("--worker=")
    )
    asked = {"socket": socket, "requests": sent}
    answers = attacked(broken, "says", asked)
    assert len(answers) == len(sent)
    assert not [each for each in answers if "unexpected" in each], answers
    # The only file of the agent's kind that a request makes: it has the worker's paths alone.
    made = "/var/run/cdi/k8s.gpu.nvidia.com-driver.json"
    text = broken.box.call("cat", made).stdout
    assert PRECIOUS not in text
    assert "shadow" not in text
    broken.box.call("rm", "-f", made)
    assert host(broken) == before
    counts = {
        each["name"]: each["restartCount"]
        for found in pods(broken)
        for each in found["status"]["containerStatuses"]
    }
    assert counts == {"nvml-worker": 0, "agent": 0}
    assert gpus_of(run(broken.api, "after", asks(""))) == 1


@pytest.mark.parametrize(
    "kind", ["link", "fifo", *(("dangling", "folder", "device") if FULL else ())]
)
def test_what_lies_in_its_folders_leads_nowhere(
    broken: Cluster, agent: reach.Placed, kind: str
) -> None:
    """tests/unit/agent/test_hostile_folder.py has each kind at each name."""
    before = host(broken)
    asked = {
        "kind": kind,
        "folders": list(reach.folders(agent)),
        "names": NAMES,
        "target": PRECIOUS,
    }
    refused = attacked(broken, "plant", asked)
    assert refused == (["device: Operation not permitted"] if kind == "device" else [])
    change_mig(broken)
    restart(broken)
    after = host(broken)
    clean(broken)
    assert after == before


def test_names_that_change_all_the_time_lead_nowhere(broken: Cluster, agent: reach.Placed) -> None:
    before = host(broken)
    asked = {
        "folders": list(reach.folders(agent)),
        "names": NAMES,
        "target": PRECIOUS,
        "seconds": 20,
    }
    swapping = broken.box.start(attack_words(broken, "swap", asked), "swap.log")
    for _ in range(5):
        change_mig(broken)
    assert swapping.wait(60) == 0
    assert int((broken.box.work / "swap.log").read_text()) > 100
    restart(broken)
    after = host(broken)
    clean(broken)
    assert after == before


def test_its_token_has_the_rights_of_the_chart_and_no_other(
    broken: Cluster, agent: reach.Placed
) -> None:
    """The API server says which, in two namespaces."""
    given = {
        (verb, resource)
        for right in reach.rights(agent, rendered(broken))
        for verb in right.partition(": ")[0].split(", ")
        for resource in right.partition(": ")[2].split()
    }
    assert agent.pod["serviceAccountName"] in as_agent("")["Impersonate-User"]
    allowed = set()
    for namespace in (NAMESPACE, "kube-system"):
        body = {"kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        answer = broken.api.request("POST", REVIEWS, body, headers=as_agent(""))
        rules = json.loads(answer)["status"]["resourceRules"]
        allowed |= {
            (v, each) for rule in rules for v in rule["verbs"] for each in rule["resources"]
        }
    assert allowed - BY_DEFAULT == given


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
BY_DEFAULT = {
    ("create", "selfsubjectreviews"),
    ("create", "selfsubjectaccessreviews"),
    ("create", "selfsubjectrulesreviews"),
}
"""What every account may do."""
