# SPDX-License-Identifier: Apache-2.0
"""Kubernetes of one node in a private machine: etcd, a container engine, API server, controller manager,
scheduler and kubelet, each the real program.

The node's address is on the loopback device and is also that of the service `kubernetes`, so that
kube-proxy is not needed. The kubelet trusts all clients in the machine's network.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time

from tests.kubernetes import programs
from tests.kubernetes.api import Api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.engines.box import Box
    from tests.engines.supervised import Supervised

NODE = "node"
ADDRESS = "10.0.0.1"
FOLDER = "/run/kubernetes"
"""Files of the cluster, in the machine's private /run: they vanish with the machine."""
KUBECONFIG = f"{FOLDER}/kubeconfig"
READY_TIMEOUT_S = 60.0
SYSCTL = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10",
    "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip
"""The kubelet sets these host-wide values; it gets private files to write instead."""
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "disableCheck": True,  # for CRI-O: a bridge's address changes with its pods
    "plugins": [
        {
            "type": "bridge", "bridge": "pods0", "isGateway": True,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}  # fmt: skip
PREPARE = """
set -eu
mount --make-rshared / # as systemd has it, or no pod can have a mount with propagation
# A kubelet removes the logs of pods that it does not know: those of another cluster on this host.
[ -e /var/log/.private ] || {{ mount -t tmpfs -o mode=755 logs /var/log; touch /var/log/.private; }}
ip address replace {address}/32 dev lo
mkdir -p {folder}/manifests /etc/cni/net.d /opt/cni
ln -sfn /usr/lib/cni /opt/cni/bin
for setting in {sysctl}; do
  path=/proc/sys/${{setting%=*}} copy={folder}/${{setting##*/}}
  echo ${{setting#*=}} > $copy
  [ ! -e $path ] || mount --bind $copy $path
done
"""
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 "
    "-subj /CN=kubernetes -keyout tls.key -out tls.crt -addext "
    f"subjectAltName=IP:127.0.0.1,IP:{ADDRESS},DNS:kubernetes.default.svc,DNS:localhost"
)
"""One key, for TLS and for the tokens of service accounts."""
GROUPS = """
for hierarchy in /sys/fs/cgroup/*/; do
  mkdir -p ${{hierarchy}}{group}
  for file in cpus mems; do
    [ ! -e ${{hierarchy}}cpuset.$file ] || cat ${{hierarchy}}cpuset.$file > ${{hierarchy}}{group}/cpuset.$file
  done
done
"""
"""Runs at each start of the kubelet: a systemd that starts on this host removes empty groups."""
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
KEEP = "while :; do {prepare} {command}; sleep 0.1; done"
"""Starts a daemon again when it ends, as a service manager does."""


class Cluster:
    """A running cluster of one node.

    Attributes:
        box: its machine.
        api: its API.
        engine: its engine.
        ready_s: seconds until the node was ready.
        audit_log: what the API server records; see `tests.kubernetes.audit`.
    """

    def __init__(
        self, box: Box, engine: Supervised, gates: Mapping[str, bool] | None = None
    ) -> None:
        """Start it in a machine with a running, configured engine, and wait until it is ready.

        Args:
            box: the machine.
            engine: in it.
            gates: feature gates of all daemons that are not as by default.

        Raises:
            ContainerNotPossibleError: it does not start, or its programs cannot be built here.
        """
        self.box = box
        self.engine = engine
        self._gates = gates or {}
        self.audit_log = box.work / "audit.log"
        self.audit_log.unlink(missing_ok=True)
        for folder in programs.folders():
            box.see(str(folder))
        began = time.monotonic()
        self._prepare()
        self._start_api_server()
        self._start_node()
        self.ready_s = time.monotonic() - began

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
        kinds = ("CACHE", "CONFIG", "DATA")
        env = {
            "KUBECONFIG": KUBECONFIG,
            **{f"HELM_{kind}_HOME": f"{FOLDER}/helm" for kind in kinds},
        }
        done = self.box.call("helm", *words, env=env)
        assert done.returncode == 0, done
        return done.stdout + done.stderr if errors else done.stdout

    def restart_kubelet(self) -> None:
        """End the kubelet; it is started again at once."""
        self.box.call("pkill", "-x", "kubelet")

    def _prepare(self) -> None:
        done = self.box.call(
            "sh", "-c",
            PREPARE.format(
                address=ADDRESS, folder=FOLDER,
                sysctl=" ".join(f"{path}={value}" for path, value in SYSCTL.items()),
            ),
        )  # fmt: skip
        assert done.returncode == 0, done
        # On the host: with the libraries of another release, this host's openssl crashes.
        subprocess.run(CERTIFICATE.split(), cwd=self.box.work, check=True, capture_output=True)
        for name in ("tls.key", "tls.crt"):
            self._write(name, (self.box.work / name).read_text())
        self._write("10-pods.conflist", json.dumps(NETWORK), "/etc/cni/net.d")
        tokens = {user: secrets.token_hex() for user in ("admin", f"system:node:{NODE}")}
        groups = ("system:masters", "system:nodes")
        lines = [
            f'{token},{user},{user},"{group}"\n'
            for (user, token), group in zip(tokens.items(), groups, strict=True)
        ]
        self._write("tokens.csv", "".join(lines))
        for name, token in zip(("kubeconfig", "node.kubeconfig"), tokens.values(), strict=True):
            self._write(name, json.dumps(_kubeconfig(token)))
        self._write("audit.yaml", json.dumps(AUDIT))
        kubelet = _kubelet(self.box.cgroup, self.engine.socket, self._gates)
        self._write("kubelet.yaml", json.dumps(kubelet))

    def _write(self, name: str, text: str, folder: str = FOLDER) -> None:
        self.box.write(f"{folder}/{name}", text)

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

    def _start_node(self) -> None:
        common = (
            f"--kubeconfig={KUBECONFIG}", "--leader-elect=false", "--profiling=false",
            *self._gate_flags,
        )  # fmt: skip
        self._keep(
            "kubelet", f"--config={FOLDER}/kubelet.yaml", f"--hostname-override={NODE}",
            f"--kubeconfig={FOLDER}/node.kubeconfig", f"--node-ip={ADDRESS}",
            prepare=GROUPS.format(group=self.box.cgroup),
        )  # fmt: skip
        self._keep(
            "kube-controller-manager", *common, f"--root-ca-file={FOLDER}/tls.crt",
            f"--service-account-private-key-file={FOLDER}/tls.key",
        )  # fmt: skip
        self._keep("kube-scheduler", *common)
        self._until(self._node_is_ready, "kubelet")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._until(lambda: self.api.find(account) is not None, "kube-controller-manager")

    @property
    def _gate_flags(self) -> list[str]:
        return [f"--feature-gates={name}={is_on}" for name, is_on in self._gates.items()]

    def _keep(self, name: str, *flags: str, prepare: str = "") -> None:
        words = " ".join(f"'{word}'" for word in (name, *flags))
        script = KEEP.format(prepare=prepare, command=words)
        self.box.start(["sh", "-c", script], f"{name}.log")

    def _until(self, holds: Callable[[], bool], name: str) -> None:
        self.box.until(holds, f"{name}.log", timeout_s=READY_TIMEOUT_S)

    def _node_is_ready(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{NODE}")
        conditions = node["status"].get("conditions", ()) if node else ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _kubeconfig(token: str) -> dict[str, object]:
    server = {"server": "https://127.0.0.1", "certificate-authority": f"{FOLDER}/tls.crt"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _kubelet(group: str, socket: str, gates: Mapping[str, bool]) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["none"],
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "clusterDNS": ["10.0.0.10"],  # no such server; avoids a warning for each pod
        "staticPodPath": f"{FOLDER}/manifests",
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
        # The first one ignores limits that the kubelet may not set.
        "featureGates": {"KubeletInUserNamespace": True, **gates},
    }  # fmt: skip
