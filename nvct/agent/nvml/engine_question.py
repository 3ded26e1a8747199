# SPDX-License-Identifier: Apache-2.0
"""Asks which container engine the kubelet of this node uses, by a program of its own.

Contract: no gRPC, which NVML's processes must not load. The program opens only well-known sockets.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping

from nvct.agent.machine.driver_root import HOST_ROOT_ENV, ROOT_ENV
from nvct.launcher.cold import interpreter
from nvct.oci.jsontext import Json

PROGRAM = "nvct.agent.kubelet.engine"
SOCKETS = (
    "run/containerd/containerd.sock",
    "run/crio/crio.sock",
    "run/cri-dockerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
)
"""Sockets of engines that a kubelet can use, below the host's root."""
LIMIT_S = 5.0


def roots(env: Mapping[str, str]) -> list[str]:
    """Return the folders where the host's root may be: mount points, or this process's root."""
    named = (env.get(HOST_ROOT_ENV), env.get(ROOT_ENV), "/driver-root", "/")
    return [root for root in dict.fromkeys(named) if root and os.path.isdir(root)]


def ask(host_roots: Iterable[str]) -> Json:
    """Return the engines' answers by socket, below the first root that has a socket.

    An answer has the members name, version and config; {} if no engine answers.
    """
    import subprocess  # few nodes need it

    for root in host_roots:
        paths = [f"{root.rstrip('/')}/{socket}" for socket in SOCKETS]
        sockets = [path for path in paths if _is_socket(path)]
        if not sockets:
            continue
        command = [interpreter(), "-I", "-m", PROGRAM, *sockets]
        try:
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
            answer: Json = json.loads(done.stdout)
        except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired):
            return {}
        return answer
    return {}


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
