# SPDX-License-Identifier: Apache-2.0
"""An agent beside a node's daemons, without a pod: device plugin and DRA driver."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nvct.agent.core.resources_mode import CLASSIC, DEFAULT_ENV
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import TIMEOUT_S

TASKS = ("device-plugin", "dra")
LOG = "agent.log"


@contextlib.contextmanager
def agent(node: Cluster, **more: str) -> Iterator[None]:
    """Run the agent; `more` are variables."""
    env = {
        DEFAULT_ENV: CLASSIC, "NODE_NAME": NODE, "KUBECONFIG": KUBECONFIG,
        "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "FAIL_ON_INIT_ERROR": "false", **more,
    }  # fmt: skip
    words = ["env", *(f"{key}={value}" for key, value in env.items())]
    program = [f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", *TASKS]
    process = node.box.start([*words, *program], LOG)
    try:
        yield
    finally:
        node.box.call("pkill", "-f", " ".join(program[-3:]))
        process.wait(TIMEOUT_S)


def log(node: Cluster) -> str:
    """Return what it has written, "" if it has not started yet."""
    with contextlib.suppress(FileNotFoundError):
        return (Path(node.box.work) / LOG).read_text(errors="replace")
    return ""
