# SPDX-License-Identifier: Apache-2.0
"""An agent beside a node's daemons, without a pod."""

import contextlib
import http.client
from collections.abc import Collection, Iterator

from nvct.agent.core.instance import SOCKET
from nvct.agent.core.resources_mode import CLASSIC, DEFAULT_ENV
from nvct.paths import AGENT_DIR
from tests.engines.box import DRIVER_ROOT, PROGRAMS, BoxedProcess
from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster

TASKS = ("device-plugin", "dra")
LOG = "agent.log"


@contextlib.contextmanager
def agent(
    node: Cluster, tasks: Collection[str] = TASKS, kubeconfig: str = KUBECONFIG, **more: str
) -> Iterator[BoxedProcess]:
    """Run the agent; `more` are variables."""
    env = {
        DEFAULT_ENV: CLASSIC, "NODE_NAME": NODE, "KUBECONFIG": kubeconfig,
        "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "FAIL_ON_INIT_ERROR": "false", **more,
    }  # fmt: skip
    words = ["env", *(f"{key}={value}" for key, value in env.items())]
    (node.box.work / LOG).unlink(missing_ok=True)
    program = (f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", *tasks)
    with node.running(LOG, *words, *program) as process:
        yield process


def ask(node: Cluster, path: str = "/status") -> str:
    """Return what the node's agent answers by its socket, "" if it does not."""
    with contextlib.suppress(OSError, ApiError, http.client.HTTPException):
        return Api(node.box.root / AGENT_DIR.lstrip("/") / SOCKET).request("GET", path)
    return ""


def log(node: Cluster) -> str:
    """Return what it has written, "" if it has not started yet."""
    return node.log(LOG)
