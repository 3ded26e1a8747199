# SPDX-License-Identifier: Apache-2.0
"""Service accounts of a test's cluster."""

import json

from tests.kubernetes.cluster import FOLDER, KUBECONFIG, Cluster


def kubeconfig_of(cluster: Cluster, name: str, may: str = "") -> str:
    """Return the kubeconfig of a new service account that may do this with Nodes."""
    cluster.kubectl("create", "serviceaccount", name)
    if may:
        cluster.kubectl("create", "clusterrole", name, f"--verb={may}", "--resource=nodes")
        cluster.kubectl(
            "create", "clusterrolebinding", name, f"--clusterrole={name}",
            f"--serviceaccount=default:{name}",
        )  # fmt: skip
    token = cluster.kubectl("create", "token", name).strip()
    config = json.loads(cluster.box.read(KUBECONFIG))
    config["users"][0]["user"] = {"token": token}
    path = f"{FOLDER}/{name}.kubeconfig"
    cluster.box.write(path, json.dumps(config))
    return path
