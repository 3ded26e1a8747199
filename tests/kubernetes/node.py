# SPDX-License-Identifier: Apache-2.0
"""A node of a test's cluster: a private machine with a container engine and a kubelet.

A node's address is on its loopback device. The kubelet trusts all clients in the machine's network.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvct_sim import tree
from tests.engines.box import DRIVER_ROOT, Box, BoxedProcess
from tests.engines.supervised import Supervised
from tests.kubernetes import programs
from tests.kubernetes.api import Api

FOLDER = "/run/kubernetes"
"""Files of the cluster, in the machine's private /run: they vanish with the machine."""
LINK = "nodes0"
"""The network device that leads to the other node."""
READY_TIMEOUT_S = 60.0
SYSCTL = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10",
    "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip
"""The kubelet sets these host-wide values; it gets private files to write instead."""
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
GROUPS = """
for hierarchy in /sys/fs/cgroup/*/; do
  mkdir -p ${{hierarchy}}{group}
  for file in cpus mems; do
    [ ! -e ${{hierarchy}}cpuset.$file ] || cat ${{hierarchy}}cpuset.$file > ${{hierarchy}}{group}/cpuset.$file
  done
done
"""
"""Runs at each start of the kubelet: a systemd that starts on this host removes empty groups."""
POWER_OFF = r"""
pkill -KILL -f 'containerd-[s]him'
for folder in /proc/[0-9]*; do
  ! grep -q kubepods $folder/cgroup || kill -KILL ${folder#/proc/}
done 2>/dev/null
rm -rf /run/nvct /run/nvct-agent /run/cdi
"""
"""What a boot leaves: no container, and nothing of nvct in /run."""
ROUTES = """
set -eu
ip link set {link} up
ip route add {to.address} dev {link} src {own.address}
ip route add {to.pods} via {to.address} src {own.address}
"""
KEEP = "while :; do {prepare} {command}; sleep 0.1; done"
"""Starts a daemon again when it ends, as a service manager does."""


@dataclass(frozen=True)
class Place:
    """Name and addresses of a node."""

    name: str
    address: str
    pods: str


FIRST = Place("node", "10.0.0.1", "10.244.0.0/24")
"""Its address is also that of the service `kubernetes`, so that kube-proxy is not needed."""
SECOND = Place("second", "10.0.1.2", "10.244.1.0/24")


class ClusterNode:
    """A node; its kubelet starts when there is an API server."""

    api: Api

    def __init__(self, engine: Supervised, place: Place, gates: Mapping[str, bool]) -> None:
        """Prepare a machine with a running, configured engine.

        Raises:
            ContainerNotPossibleError: the programs are not built.
        """
        self.place = place
        self.box = engine.box
        self.engine = engine
        self._gates = gates
        for folder in programs.folders():
            self.box.see(str(folder))
        words = (f"{path}={value}" for path, value in SYSCTL.items())
        _run(
            self.box, PREPARE.format(address=place.address, folder=FOLDER, sysctl=" ".join(words))
        )
        self._write("10-pods.conflist", json.dumps(_network(place.pods)), "/etc/cni/net.d")
        kubelet = _kubelet(self.box.cgroup, engine.socket, gates)
        self._write("kubelet.yaml", json.dumps(kubelet))

    @property
    def name(self) -> str:
        """Return the name of its Node object."""
        return self.place.name

    @property
    def path(self) -> str:
        """Return the path of its Node object."""
        return f"/api/v1/nodes/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of its Node object."""
        return dict(self.api.get(self.path)["metadata"]["labels"])

    def label(self, *words: str) -> None:
        """Set labels of the Node by `key=value`, and remove them by `key-`."""
        pairs = (word.removesuffix("-").partition("=") for word in words)
        labels = {key: value if equals else None for key, equals, value in pairs}
        self.api.patch(self.path, {"metadata": {"labels": labels}})

    @contextlib.contextmanager
    def running(self, log: str, *words: str) -> Iterator[BoxedProcess]:
        """Run a program in the machine, which gets SIGTERM at the end; `log` is for `log`."""
        process = self.box.start([*words], log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(READY_TIMEOUT_S)

    def log(self, name: str) -> str:
        """Return what a program in the machine has written, "" if it has not started yet."""
        with contextlib.suppress(FileNotFoundError):
            return (self.box.work / name).read_text(errors="replace")
        return ""

    def restart_kubelet(self) -> None:
        """End the kubelet; it is started again at once."""
        self.box.call("pkill", "-x", "kubelet")

    def boot(self) -> None:
        """Do what a boot of the machine does to containers, to /run, and to the daemons.

        Programs that a test has started in the machine run on.
        """
        _run(self.box, POWER_OFF)
        self.engine.reload()
        self.restart_kubelet()

    def start_kubelet(self, api: Api, token: str, certificate: str) -> None:
        """Start the kubelet, and wait until the Node is ready.

        Raises:
            ContainerNotPossibleError: it does not start.
        """
        self.api = api
        self._write("tls.crt", certificate)
        self._write("node.kubeconfig", json.dumps(kubeconfig(token)))
        self._keep(
            "kubelet", f"--config={FOLDER}/kubelet.yaml", f"--hostname-override={self.name}",
            f"--kubeconfig={FOLDER}/node.kubeconfig", f"--node-ip={self.place.address}",
            prepare=GROUPS.format(group=self.box.cgroup),
        )  # fmt: skip
        self._until(self.is_ready, "kubelet")

    def is_ready(self) -> bool:
        """Report whether the Node object says that the node is ready."""
        node = self.api.find(self.path)
        conditions = node["status"].get("conditions", ()) if node else ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _write(self, name: str, text: str, folder: str = FOLDER) -> None:
        self.box.write(f"{folder}/{name}", text)

    def _keep(self, name: str, *flags: str, prepare: str = "") -> None:
        words = " ".join(f"'{word}'" for word in (name, *flags))
        script = KEEP.format(prepare=prepare, command=words)
        self.box.start(["sh", "-c", script], f"{name}.log")

    def _until(self, holds: Callable[[], bool], name: str) -> None:
        self.box.until(holds, f"{name}.log", timeout_s=READY_TIMEOUT_S)


@contextlib.contextmanager
def machine(
    engine_of: Callable[[Box], Supervised], engines: Path, simulated: tree.Node, work: Path
) -> Iterator[Supervised]:
    """Yield a running engine in a machine of its own, which vanishes at the end.

    Args:
        engine_of: makes the engine.
        engines: of a release; this and the next two are from `tests.engines.conftest.prepare`.
        simulated: what the machine is a simulation of; destroyed at the end.
        work: a folder that the machine shares with the host.

    Raises:
        ContainerNotPossibleError: the machine or the engine does not start here.
    """
    box = None
    try:
        box = Box(engines, simulated, work, DRIVER_ROOT)
        engine = engine_of(box)
        engine.start()
        yield engine
    finally:
        if box is not None:
            box.close()
        tree.destroy(simulated)


def connect(one: ClusterNode, other: ClusterNode) -> None:
    """Join the networks of two nodes, those of their pods included, by a pair of devices."""
    into_one = ("nsenter", f"--target={one.box.init}", "--net", "--")
    peer = ("type", "veth", "peer", "name", LINK, "netns", str(other.box.init))
    subprocess.run([*into_one, "ip", "link", "add", LINK, *peer], check=True)
    for own, to in ((one, other), (other, one)):
        _run(own.box, ROUTES.format(link=LINK, own=own.place, to=to.place))


def kubeconfig(token: str) -> dict[str, object]:
    """Return the kubeconfig of a user, by a token, for all nodes."""
    server = {
        "server": f"https://{FIRST.address}", "certificate-authority": f"{FOLDER}/tls.crt"
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _run(box: Box, script: str) -> None:
    done = box.call("sh", "-c", script)
    assert done.returncode == 0, done


def _network(pods: str) -> dict[str, object]:
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "disableCheck": True,  # for CRI-O: a bridge's address changes with its pods
        "plugins": [
            {
                "type": "bridge", "bridge": "pods0", "isGateway": True,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }  # fmt: skip


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
