# SPDX-License-Identifier: Apache-2.0
"""Kubernetes in private machines: etcd, API server, controller manager and scheduler beside the first node.

Each is the real program, as are container engine and kubelet of each node. A second node can join.
"""

import json
import secrets
import subprocess
import time
from collections.abc import Mapping

from tests.engines.supervised import Supervised
from tests.kubernetes import node
from tests.kubernetes.api import Api
from tests.kubernetes.node import ClusterNode

NODE = node.FIRST.name
ADDRESS = node.FIRST.address
FOLDER = node.FOLDER
KUBECONFIG = f"{FOLDER}/kubeconfig"
ADMIN = {
    "KUBECONFIG": KUBECONFIG,
    **{f"HELM_{kind}_HOME": f"{FOLDER}/helm" for kind in ("CACHE", "CONFIG", "DATA")},
}
"""Variables of an admin's programs."""
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 "
    "-subj /CN=kubernetes -keyout tls.key -out tls.crt -addext "
    f"subjectAltName=IP:127.0.0.1,IP:{ADDRESS},DNS:kubernetes.default.svc,DNS:localhost"
)
"""One key, for TLS and for the tokens of service accounts."""
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:nvct"]},
        {"level": "Metadata", "users": [f"system:node:{NODE}"], "namespaces": ["nvct"]},
        {"level": "None"},
    ],
}
"""The API server records the requests of nvct's accounts, and the kubelet's for nvct's pods."""


class Cluster(ClusterNode):
    """A running cluster: its first node, in whose machine all other daemons are.

    Attributes:
        ready_s: seconds until the node was ready.
        audit_log: what the API server records; see `tests.kubernetes.audit`.
    """

    def __init__(self, engine: Supervised, gates: Mapping[str, bool] | None = None) -> None:
        """Start it in a machine with a running, configured engine, and wait until it is ready.

        Raises:
            ContainerNotPossibleError: it does not start, or its programs cannot be built here.
        """
        began = time.monotonic()
        super().__init__(engine, node.FIRST, gates or {})
        self.audit_log = self.box.work / "audit.log"
        self.audit_log.unlink(missing_ok=True)
        self._tokens = {place: secrets.token_hex() for place in (node.FIRST, node.SECOND)}
        self._prepare()
        self._start_api_server()
        self._start_controllers()
        self.ready_s = time.monotonic() - began

    def join(self, engine: Supervised) -> ClusterNode:
        """Add a second node, and wait until it is ready; it must end before this one.

        Raises:
            ContainerNotPossibleError: its kubelet does not start.
        """
        joined = ClusterNode(engine, node.SECOND, self._gates)
        node.connect(self, joined)
        joined.start_kubelet(self.api, self._tokens[node.SECOND], self._certificate)
        return joined

    def kubectl(self, *words: str) -> str:
        """Run kubectl, and return its output.

        Raises:
            AssertionError: kubectl fails.
        """
        done = self.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", *words)
        assert done.returncode == 0, done
        return done.stdout

    def helm(self, *words: str, errors: bool = False) -> str:
        """Run helm, and return its output; `errors` adds what it writes to stderr.

        Raises:
            AssertionError: helm fails.
        """
        done = self.box.call("helm", *words, env=ADMIN)
        assert done.returncode == 0, done
        return done.stdout + done.stderr if errors else done.stdout

    def _prepare(self) -> None:
        # On the host: with the libraries of another release, this host's openssl crashes.
        subprocess.run(CERTIFICATE.split(), cwd=self.box.work, check=True, capture_output=True)
        for name in ("tls.key", "tls.crt"):
            self._write(name, (self.box.work / name).read_text())
        admin = secrets.token_hex()
        lines = [f'{admin},admin,admin,"system:masters"\n'] + [
            f'{token},system:node:{place.name},system:node:{place.name},"system:nodes"\n'
            for place, token in self._tokens.items()
        ]
        self._write("tokens.csv", "".join(lines))
        self._write("kubeconfig", json.dumps(node.kubeconfig(admin)))
        self._write("audit.yaml", json.dumps(AUDIT))

    def _start_api_server(self) -> None:
        self._keep(
            "etcd", f"--data-dir={FOLDER}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        )  # fmt: skip
        self._keep(
            "kube-apiserver", "--secure-port=443",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={ADDRESS}", "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", f"--token-auth-file={FOLDER}/tokens.csv",
            f"--client-ca-file={FOLDER}/tls.crt", f"--tls-cert-file={FOLDER}/tls.crt",
            f"--tls-private-key-file={FOLDER}/tls.key",
            f"--service-account-key-file={FOLDER}/tls.crt",
            f"--service-account-signing-key-file={FOLDER}/tls.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-priority-and-fairness=false", "--profiling=false",
            *self._gate_flags,
            f"--audit-policy-file={FOLDER}/audit.yaml", f"--audit-log-path={self.audit_log}",
        )  # fmt: skip
        socket = self.box.work / "api.sock"
        socket.unlink(missing_ok=True)
        self._keep("kubectl", f"--kubeconfig={KUBECONFIG}", "proxy", f"--unix-socket={socket}")
        self.api = Api(socket)
        self._until(self.api.is_ready, "kube-apiserver")

    def _start_controllers(self) -> None:
        common = (
            f"--kubeconfig={KUBECONFIG}", "--leader-elect=false", "--profiling=false",
            *self._gate_flags,
        )  # fmt: skip
        self._keep(
            "kube-controller-manager", *common, f"--root-ca-file={FOLDER}/tls.crt",
            f"--service-account-private-key-file={FOLDER}/tls.key",
        )  # fmt: skip
        self._keep("kube-scheduler", *common)
        self.start_kubelet(self.api, self._tokens[node.FIRST], self._certificate)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._until(lambda: self.api.find(account) is not None, "kube-controller-manager")

    @property
    def _certificate(self) -> str:
        return (self.box.work / "tls.crt").read_text()

    @property
    def _gate_flags(self) -> list[str]:
        return [f"--feature-gates={name}={is_on}" for name, is_on in self._gates.items()]
