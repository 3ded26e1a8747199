# SPDX-License-Identifier: Apache-2.0
"""What users are to do on each platform: the texts of `platforms`.

Each paragraph of a text is one sentence; {names} in it are replaced by values.
"""

from __future__ import annotations

OTHER_FILE_SYSTEM = """
it runs in another file system, a container's or a snap's: run the command there
"""

OTHER_USER = """
it is user {uid}'s: run the command as that user
"""

DOCKER_CONTAINERD = """
dockerd starts this containerd and writes its file: configure Docker
"""

DOCKER_DESKTOP = """
Docker Desktop's engine runs in a virtual machine of its own: it reads what Settings > Docker
Engine says, and no file of this host

it has GPUs only with its WSL 2 backend on Windows, which passes them on by itself; on Linux
install Docker Engine (docker-ce or docker.io) beside it
"""

SNAP_DOCKER = """
Docker from snap cannot run programs of the host and brings its own NVIDIA toolkit, set up when a
driver is there as it starts: snap restart docker

docker run --runtime=nvidia then works, --gpus does not; for that and for nvct: snap remove docker,
and install docker.io or docker-ce
"""

RANCHER = """
{name} registers the handler nvidia by itself when it starts and finds nvidia-container-runtime in
/usr/bin: systemctl restart {unit}

for it as the default: {program} server|agent --default-runtime=nvidia

{config} is rewritten at each start; handlers of other names go into {template} after a first line
{{{{ template "base" . }}}}
"""

RANCHER_DROP_IN = """
{config} is rewritten when {name} starts: only {drop_in} is written
"""

K0S = """
k0s writes {config} itself and merges into it what {drop_in} holds: put the handlers' tables there,
with version = 2; k0s then restarts containerd
"""

K0S_DROP_IN = """
k0s imports {folder} and restarts containerd when a file there changes
"""

MICROK8S = """
{config} is made from {template} at each start: that one is edited
"""

NIXOS = """
NixOS makes this file from its configuration: set hardware.nvidia-container-toolkit.enable = true,
which gives engines CDI

a runtime goes into virtualisation.docker.daemon.settings.runtimes or
virtualisation.containerd.settings
"""

TALOS = """
put the handler into machine.files of Talos' machine configuration, path
/etc/cri/conf.d/20-customization.part
"""

BOTTLEROCKET = """
Bottlerocket makes this file from its settings: its *-nvidia variants have the runtime built in
"""

KIND = """
this node of kind keeps the change as long as it lives; for new clusters put it into
containerdConfigPatches of kind's configuration
"""

EKS_BOOTSTRAP = """
EKS' bootstrap.sh writes {config} when the node joins: run the command after it
"""

EKS_NODEADM = """
nodeadm writes {config} at each boot: put the same TOML into spec.containerd.config of the node's
NodeConfig, or the change ends with the boot
"""

AKS = """
AKS writes {config} when it makes the node, and a new node image takes the change away: run the
command from a DaemonSet; pools with GPUs have NVIDIA's runtime already
"""

GKE = """
GKE writes {config} at each boot: run the command from a DaemonSet

programs start only from /home/kubernetes/bin there: install nvct's into it and name them with
--nvidia-runtime-path
"""


def sentences(text: str, **values: str) -> tuple[str, ...]:
    """Return the sentences of a text, with the names in braces replaced by values."""
    paragraphs = text.strip().split("\n\n")
    return tuple(" ".join(paragraph.split()).format(**values) for paragraph in paragraphs)
