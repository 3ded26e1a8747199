# SPDX-License-Identifier: Apache-2.0
"""From the former version to this one and back, by apt, while Docker runs containers with GPUs.

The former is built from the checkout that NVCT_TESTS_FORMER names; without it, it is this one.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.integration import packages
from tests.integration.conftest import SimulatedNode
from tests.integration.test_release import docker_image, in_its_root
from tests.support import debian_root, released
from tests.support.processes import captured

STEPS = r"""
work=$1
apt() { apt-get -y --allow-downgrades "$@" > /tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }; }
mkdir -p /etc/nvidia-container-runtime
printf '# an admin\n[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' > /etc/nvidia-container-runtime/config.toml
cp /etc/nvidia-container-runtime/config.toml /tmp/config.toml
install() { # FOLDER
	echo "== $1"
	apt install "$DEBS/$1"/nvct*.deb
	grep "needs: nvct runtime configure" /tmp/apt.log && exit 1 # it was done before
	[ "$(dpkg-query -W -f '${db:Status-Abbrev}' 'nvct*' | tr -d ' ')" = iiiiiiiiii ]
	cmp /etc/nvidia-container-runtime/config.toml /tmp/config.toml
}
runs() { # NAME: each container that runs has its GPU still; new ones by each way get theirs
	for name in $(docker ps --format '{{.Names}}'); do
		echo "$name: $(docker exec "$name" nvidia-smi -L)"
	done
	docker run --detach --name "$1-shim" --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0 plain:test sleep 3600
	docker run --detach --name "$1-hook" --gpus device=1 plain:test sleep 3600
	docker exec "$1-shim" nvidia-smi -L
	docker exec "$1-hook" nvidia-smi -L
	nvidia-ctk cdi check
	nvct runtime status > /dev/null
	for command in status doctor ps log list "explain --env NVIDIA_VISIBLE_DEVICES=all" "config"; do
		nvct $command > /tmp/said 2>&1 && status=0 || status=$?
		grep -i -E "traceback|unexpected|damaged|cannot be read|not valid" /tmp/said && exit 1
		echo "nvct $command: $status"
	done
}
missing=/dev/nvidia-uvm-tools
mends() { rm -f $missing; nvct doctor --fix > /tmp/said 2>&1 || :; ls $missing; }
mended() { nvct doctor --undo > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }

install former
. "$work/docker_in_root.sh"
nvct runtime configure --runtime=docker
systemctl restart docker
runs former
mends

install next
runs next
docker stop --time 1 former-shim next-hook
nvct runtime undo
cmp /etc/docker/daemon.json /tmp/daemon.json
nvct runtime configure --runtime=docker
mended
mends

install former
runs back
docker stop --time 1 former-hook next-shim back-shim back-hook
mended
nvct runtime undo
cmp /etc/docker/daemon.json /tmp/daemon.json
echo "== end"
"""


def former(folder: Path, debs: Path) -> Path:
    """Write the packages of the former version into the folder."""
    if not released.FORMER:
        return shutil.copytree(debs, folder)
    env = {
        **os.environ,
        "DPKG_DEB_COMPRESSOR_LEVEL": "0",
        "VENV": str(released.REPOSITORY / ".venv"),
    }
    captured(["sh", f"{released.FORMER}/packaging/deb/build.sh", folder], env=env, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(not debian_root.FULL, reason="make ci-full")
def test_a_version_and_the_former_one_read_each_others_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, simulated: SimulatedNode
) -> None:
    try:
        root = debian_root.root("trixie", *in_its_root("trixie"))
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    debs = debian_root.packages(tmp_path_factory)
    folder = tmp_path / "debs"
    folder.mkdir()
    former(folder / "former", debs)
    for deb in debs.glob("*.deb"):
        shutil.copy(deb, folder)
    packages.bump(folder, "9.9.9")
    (folder / "9.9.9").rename(folder / "next")
    docker_image(simulated)
    env = {packages.ROOT_ENV: str(root), packages.DEBS_ENV: str(folder), packages.STEPS_ENV: STEPS}
    simulated.run(packages.installed, env)

    said = (simulated.work / "said").read_text()
    print(said)
    parts = re.split(r"^== .*\n", said, flags=re.MULTILINE)[1:]
    # Those that are exec'd, and two new ones.
    assert [part.count("GPU 0: NVIDIA H100") for part in parts] == [2, 2 + 2, 2 + 2, 0]
