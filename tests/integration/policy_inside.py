# SPDX-License-Identifier: Apache-2.0
"""A policy and real containers inside a simulated node; a function is a process of its own."""

import subprocess
from pathlib import Path

from tests.integration.inside import UUID, configure, generate, make, run

POLICY = """
[[nvct.policy.rules]]
name = "images do not ask"
kubernetes = true
by = ["image-env"]
then = "ignore"
[[nvct.policy.rules]]
name = "team web has no GPU"
namespaces = ["web"]
then = "deny"
reason = "ask team ml"
[[nvct.policy.rules]]
name = "at most two"
more-gpus-than = 2
then = "deny"
[[nvct.policy.rules]]
name = "in our cgroup alone"
cgroups = ["/forbidden/*"]
then = "deny"
"""
SHOW = "ls /dev | grep -c '^nvidia'; nvidia-smi -L 2>/dev/null; echo up"


def rules_hold(work: Path) -> None:
    """What is allowed gets its GPUs, what is ignored starts without, what is denied does not."""
    configure(work, POLICY)
    names = [d["name"] for d in generate()["devices"]]
    gpus = [name for name in names if name.startswith("GPU-")]
    migs = [name for name in names if name.startswith("MIG-")]
    number = 0

    def start(value: str, namespace: str = "") -> subprocess.CompletedProcess[str]:
        nonlocal number
        number += 1
        pod = {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-namespace": namespace,
        }
        return run(work, make(work, f"c{number}", SHOW, env=[f"NVIDIA_VISIBLE_DEVICES={value}"],
                              annotations=pod if namespace else None))  # fmt: skip

    def given(said: subprocess.CompletedProcess[str], *wanted: str) -> None:
        assert said.returncode == 0, said
        assert sorted(UUID.findall(said.stdout)) == sorted(wanted), said
        if not wanted:
            assert said.stdout == "0\nup\n", said

    def denied(said: subprocess.CompletedProcess[str], why: str) -> None:
        assert said.returncode == 1, said
        assert said.stdout == ""
        assert why in said.stderr, said
        assert said.stderr.count("\n") == 1, said

    given(start(gpus[0]), gpus[0])
    given(start(f"{gpus[0]},{gpus[1]}"), gpus[0], gpus[1])
    denied(start(",".join(gpus[:3])), "policy rule 'at most two' denies")
    denied(start(",".join([gpus[0], *migs[:2]])), "policy rule 'at most two' denies")
    denied(start("all"), "policy rule 'at most two' denies NVIDIA_VISIBLE_DEVICES='all'")
    for value in ("all", "0", "fooo"):
        given(start(value, "ml"))
        given(start(value, "web"))
    given(start(gpus[0], "ml"), gpus[0])
    denied(start(gpus[0], "web"), "ask team ml [not-permitted]")
