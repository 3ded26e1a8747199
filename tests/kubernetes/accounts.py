# SPDX-License-Identifier: Apache-2.0
"""Service accounts of a test's cluster."""

import json

from tests.kubernetes.api import DEFAULT
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, Cluster

ACCOUNTS = f"{DEFAULT}/serviceaccounts"
RBAC = "rbac.authorization.k8s.io"
ROLES = f"/apis/{RBAC}/v1/clusterroles"
BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"


def kubeconfig_of(cluster: Cluster, name: str, *rights: tuple[str, str]) -> str:
    """Return the kubeconfig of a service account with rights: `get,list`, `nodes` or `leases.GROUP`."""
    named = {"metadata": {"name": name}}
    parts = [(verbs.split(","), *resource.partition(".")) for verbs, resource in rights]
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        for verbs, resource, _, group in parts
    ]
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
    api = cluster.api
    api.make(ACCOUNTS, named)
    api.make(ROLES, {**named, "rules": rules})
    api.make(BINDINGS, {**named, "roleRef": reference, "subjects": subjects})
    token = json.loads(api.request("POST", f"{ACCOUNTS}/{name}/token", {"spec": {}}))
    config = json.loads(cluster.box.read(KUBECONFIG))
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    path = f"{FOLDER}/{name}.kubeconfig"
    cluster.box.write(path, json.dumps(config))
    return path
