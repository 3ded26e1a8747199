# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in Debian and Ubuntu: installed, used, upgraded, removed, purged."""

import re
import shutil
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.hostile import hook_attack
from tests.integration import packages
from tests.integration.conftest import SimulatedNode
from tests.support import debian_root
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
RELEASES = debian_root.releases("trixie", more=("bookworm", "resolute", "noble", "jammy"))
STEPS = r"""
work=$1
smi() { nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" "gpu-$1"; }
mkdir -p /etc/nvidia-container-runtime
printf '# the admin was here\n[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' \
    > /etc/nvidia-container-runtime/config.toml
cp /etc/nvidia-container-runtime/config.toml /tmp/admins

echo "== install"
dpkg -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
grep -i -E "warning|traceback" /tmp/dpkg.log && exit 1
cmp /etc/nvidia-container-runtime/config.toml /tmp/admins
nvidia-ctk cdi check
echo "spec: $(nvidia-ctk --quiet cdi list | grep -c nvidia.com/gpu) devices"
ls /usr/lib/nvct/hot.bin
nvidia-container-runtime --version | head -n 1
nvct --version; nvidia-ctk --version; nvidia-container-cli --version | head -n 1
man -w nvidia-ctk 2> /dev/null || ls /usr/share/man/man1/nvidia-ctk.1.gz
smi installed
mv /usr/lib/nvct/nvct-hot /tmp/ 2> /dev/null || : # without it the distribution's Python does the same
smi interpreted
mv /tmp/nvct-hot /usr/lib/nvct/ 2> /dev/null || :
nvidia-container-runtime --root /run/runc-test run --bundle "$work/plain" plain

echo "== upgrade"
dpkg -i "$DEBS"/9.9.9/nvct_*.deb "$DEBS"/9.9.9/nvct-[bo]*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
cmp /etc/nvidia-container-runtime/config.toml /tmp/admins
dpkg-query -W -f '${Version}\n' nvct-base
smi upgraded
nvidia-ctk cdi check

mkdir -p /etc/docker
printf '{ "log-level": "info" }' > /etc/docker/daemon.json
cp /etc/docker/daemon.json /tmp/daemon.json
nvct runtime configure --runtime=docker --set-as-default
grep -c '"default-runtime": "nvidia"' /etc/docker/daemon.json

echo 'NVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/etc/cdi/nvidia.yaml"' >> /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
nvct --quiet publish --output /etc/cdi/nvidia.yaml
ls /etc/cdi/nvidia.yaml

echo "== a simulated node, without a compiler"
for word in sim demo; do
    nvct $word > /tmp/said 2>&1 && { cat /tmp/said; exit 1; }
    tool=$(command -v apt > /dev/null && echo "run apt " || :)  # a small root has dpkg alone
    grep -F "nvct $word needs the package nvct-sim, which is not installed; ${tool}install nvct-sim" /tmp/said ||
        { cat /tmp/said; exit 1; }
done
dpkg -i "$DEBS"/9.9.9/nvct-sim*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
command -v cc && exit 1
nvct sim --base /tmp/sims create lab --profile t4
NVCT_SIM_DEV=/tmp/sims/lab/dev LD_LIBRARY_PATH=/tmp/sims/lab/driver/usr/lib/$(uname -m)-linux-gnu \
    /tmp/sims/lab/driver/usr/bin/nvidia-smi -L
nvct sim --base /tmp/sims destroy lab
rm -r /tmp/sims
nvct sim create left --profile t4
ls -d /var/lib/nvct-sim/left
dpkg -r nvct-sim > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
ls /usr/lib/nvct/nvct_sim /usr/share/man/man1/nvct-sim.1.gz && exit 1
ls -d /var/lib/nvct-sim/left
dpkg -P nvct-sim > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
ls /var/lib/nvct-sim && exit 1
dpkg -V nvct nvct-base nvct-operator-extensions

echo "== MIG by a file"
dpkg -i "$DEBS"/9.9.9/nvct-mig-manager*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
nvidia-mig-parted export | grep -m 1 "mig-enabled: true"
ls /usr/lib/systemd/system/nvidia-mig-manager.service
dpkg -P nvct-mig-manager > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
ls /usr/bin/nvidia-mig-parted && exit 1

echo "== another Python, a failed upgrade"
rm /usr/lib/nvct/hot.bin
dpkg-trigger --by-package=python3-minimal /usr/bin/python3
dpkg --triggers-only --pending > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
ls /usr/lib/nvct/hot.bin
dpkg -i "$DEBS/unfit"/nvct-base*.deb > /tmp/dpkg.log 2>&1 && exit 1
dpkg-query -W -f '${Version} ${db:Status-Abbrev}\n' nvct-base | grep '^9.9.9 ii'
ls /usr/lib/nvct/hot.bin

echo "== remove"
dpkg -r nvct nvct-operator-extensions nvct-base > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
grep "'[^']*nv[^']*' not empty" /tmp/dpkg.log && exit 1
ls /var/run/cdi/nvidia.yaml /etc/cdi/nvidia.yaml /run/nvct /usr/bin/nvidia-ctk 2> /dev/null && exit 1
cmp /etc/nvidia-container-runtime/config.toml /tmp/admins
cmp /etc/docker/daemon.json /tmp/daemon.json
rm -r /etc/docker

echo "== purge, with a view that a container has mounted"
mv /var/lib/nvct/farm /srv/views 2> /dev/null || mkdir -p /srv/views
mkdir -p /var/lib/nvct/farm
mount --bind /srv/views /var/lib/nvct/farm # mountinfo then names a view by the other path
mkdir /var/lib/nvct/farm/580.1-used /var/lib/nvct/farm/580.1-unused
mount --bind /var/lib/nvct/farm/580.1-used /mnt
dpkg -P nvct-base > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
cmp /etc/nvidia-container-runtime/config.toml /tmp/admins
rm -r /etc/nvidia-container-runtime
grep "'[^']*nv[^']*' not empty" /tmp/dpkg.log && exit 1
grep "containers use /var/lib/nvct/farm/580.1-used" /tmp/dpkg.log
umount /mnt
find /var/lib/nvct
rmdir /var/lib/nvct/farm/580.1-used
umount /var/lib/nvct/farm
rmdir /srv/views
rmdir /var/lib/nvct/farm /var/lib/nvct
echo "== end"
"""


REPLACED = r"""
dpkg -i "$peer"/*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
echo "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=uuid # the admin's" >> $env
cp $env /tmp/admins.env
dpkg -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb > /tmp/dpkg.log 2>&1 < /dev/null || { cat /tmp/dpkg.log; exit 1; }
cmp $env /tmp/admins.env
dpkg -V nvct nvct-base nvct-operator-extensions
dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' 'nvidia-*' 'libnvidia-*'
grep -l "the incumbent" /usr/bin/nv* /usr/lib/systemd/system/nv* /usr/lib/udev/rules.d/*nv* && exit 1
ls /usr/bin/nvidia-container-toolkit /usr/lib/systemd/system/nvidia-cdi-refresh.service
dpkg-divert --list '*nvidia*' | grep . && exit 1
dpkg -P nvidia-docker2 nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools \
    libnvidia-container1 > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
dpkg -V nvct nvct-base nvct-operator-extensions
dpkg -P nvct nvct-operator-extensions nvct-base > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
"""

ROLLED_BACK = r"""
config=/etc/nvidia-container-runtime/config.toml
here() { dpkg "$@" > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }; }
here -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb
cp $config /tmp/ours
here -r nvct nvct-operator-extensions nvct-base
here --force-confold -i "$peer"/*.deb
here -P nvct-base
cmp $config /tmp/ours
here -P nvidia-docker2 nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools \
    libnvidia-container1
here -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb # finds the file
here -P nvct nvct-operator-extensions nvct-base
cmp $config /tmp/ours
rm -r /etc/nvidia-container-runtime
here -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb
here -P nvct nvct-operator-extensions nvct-base
ls $config && exit 1
echo "== end"
"""

MIGRATED = r"""
here() { dpkg "$@" > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }; }
here -i "$peer"/*.deb
units=/etc/systemd/system
mkdir -p /etc/cdi /etc/nvidia-container-runtime $units/multi-user.target.wants
printf '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' > /etc/nvidia-container-runtime/config.toml
cat > /etc/cdi/nvidia.yaml # as nvidia-ctk wrote it
echo "ExecStart=/usr/bin/nvidia-ctk cdi generate" > $units/nvidia-cdi-refresh.service # as 1.18.0 left it
ln -s $units/nvidia-cdi-refresh.service $units/multi-user.target.wants/
state() { find /etc/cdi $units /etc/nvidia-container-runtime ! -type d ! -name '*leases*' ! -name '*.path' \
    -printf '%p %l\n' -type f -exec cat {} + | sort; }
state > /tmp/before
here -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb
nvct migrate apply
ls /etc/cdi/nvidia.yaml $units/nvidia-cdi-refresh.service && exit 1
readlink $units/multi-user.target.wants/nvidia-cdi-refresh.service
nvct cdi list | grep -c nvidia.com/gpu=
nvct migrate back
state | diff /tmp/before -
echo "== back by removal"
nvct migrate apply > /dev/null
here -r nvct nvct-operator-extensions nvct-base
state | diff /tmp/before -
here -P nvct-base
here -P nvidia-docker2 nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools \
    libnvidia-container1
echo "== end"
"""

SPLIT = r"""
install() { dpkg -B -i "$@" > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }; }
install "$DEBS"/0.0.9/nvct-base*.deb
nvct sim list --profiles > /dev/null
echo "== without the simulation"
install "$DEBS"/nvct-base*.deb
ls /usr/lib/nvct/nvct_sim && exit 1
nvct sim list && exit 1
echo "== with it"
dpkg --unpack "$DEBS"/0.0.9/nvct-base*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
install "$DEBS"/nvct-sim*.deb "$DEBS"/nvct-base*.deb
dpkg -V nvct-base nvct-sim
nvct sim list --profiles > /dev/null
dpkg-query -S /usr/lib/nvct/nvct_sim/tree.py
dpkg -P nvct-sim nvct-base > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
"""


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, in 9.9.9 a newer version of them, and in unfit one that cannot be installed.

    In 0.0.9 is an nvct-base of the time when the simulation was a part of it.
    """
    out = tmp_path_factory.mktemp("versions") / "debs"
    shutil.copytree(debian_root.packages(tmp_path_factory), out)
    packages.bump(out, "9.9.9")
    packages.unfit(out)
    packages.undivided(out, "0.0.9")
    return out


def in_a_root(release: str, debs: Path, simulated: SimulatedNode, steps: str) -> str:
    """Run steps in a distribution's root; return what they print."""
    try:
        root = debian_root.root(release)
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    env = {packages.ROOT_ENV: str(root), packages.DEBS_ENV: str(debs)}
    simulated.run(packages.installed, {**env, packages.STEPS_ENV: steps})
    said = (simulated.work / "said").read_text(encoding="utf-8")
    print(said)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_packages_come_and_go(release: str, debs: Path, simulated: SimulatedNode) -> None:
    said = in_a_root(release, debs, simulated, STEPS)
    assert len(re.findall(r"^GPU 0: NVIDIA H100.*UUID: GPU-", said, re.MULTILINE)) == 3
    assert "plain container" in said
    assert "spec: 29 devices" in said
    assert said.index("== upgrade") < said.index("9.9.9\n") < said.index("== remove")
    assert (simulated.work / "left").read_text(encoding="utf-8") == ""


@pytest.mark.engine
@pytest.mark.slow
def test_the_simulation_leaves_an_older_nvct_base(debs: Path, simulated: SimulatedNode) -> None:
    said = in_a_root("bookworm", debs, simulated, SPLIT)

    assert "nvct-sim: /usr/lib/nvct/nvct_sim/tree.py\n" in said
    assert (simulated.work / "left").read_text(encoding="utf-8") == ""


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_every_command_works_where_nothing_has_run_before_and_no_image_has_a_say_in_a_hook(
    release: str, debs: Path, simulated: SimulatedNode
) -> None:
    hook_attack.build(simulated.work)
    shutil.copy(hook_attack.__file__, simulated.work)

    said = in_a_root(release, debs, simulated, FRESH)

    lines = [line for line in said.splitlines() if re.match(r"\d+( WRONG)?: ", line)]
    assert len(lines) > 20
    assert [line for line in lines if not line.startswith("0: ")] == [], said
    assert "docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1 image\n" in said
    assert " containers, 0 wrong" in said


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_the_packages_take_the_place_of_the_incumbents(
    release: str, debs: Path, simulated: SimulatedNode
) -> None:
    steps = Path(__file__).with_name("incumbent.sh").read_text(encoding="utf-8") + REPLACED
    said = in_a_root(release, debs, simulated, steps).splitlines()
    there = [line.split()[0] for line in said if " ii" in line]
    assert there == ["libnvidia-container1"]
    # The incumbent's have files in /lib, which Ubuntu 24.04 has diverted; its package leaves this.
    theirs = "lib.usr-is-merged" if release == "noble" else ""
    assert (simulated.work / "left").read_text(encoding="utf-8") == theirs


@pytest.mark.slow
def test_a_purge_leaves_what_another_toolkit_uses_or_was_there_before(
    debs: Path, simulated: SimulatedNode
) -> None:
    steps = Path(__file__).with_name("incumbent.sh").read_text(encoding="utf-8") + ROLLED_BACK

    assert "== end" in in_a_root("bookworm", debs, simulated, steps)


@pytest.mark.slow
def test_a_host_moves_from_the_incumbents_packages_and_back(
    debs: Path, simulated: SimulatedNode
) -> None:
    spec = Path(__file__).parents[1] / "unit/cli/incumbent/nvidia.yaml"
    recorded = f"<<'END'\n{spec.read_text(encoding='utf-8')}END\n"
    written = "cat > /etc/cdi/nvidia.yaml"
    steps = MIGRATED.replace(f"{written} # as nvidia-ctk wrote it\n", f"{written} {recorded}")
    incumbent = Path(__file__).with_name("incumbent.sh").read_text(encoding="utf-8")

    said = in_a_root("bookworm", debs, simulated, incumbent + steps)

    assert "nvidia-cdi-refresh.service goes: it hides /usr/lib/systemd/system" in said
    assert "\n/usr/lib/systemd/system/nvidia-cdi-refresh.service\n" in said
    assert "== end" in said


FRESH = r"""
work=$1
dpkg -i "$DEBS"/nvct_*.deb "$DEBS"/nvct-[bo]*.deb > /tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
printf '#!/bin/sh\necho docker "$@"\n' > /usr/bin/docker
chmod +x /usr/bin/docker
mkdir -p /etc/nvidia-container-runtime /tmp/bin /tmp/bundle/rootfs/usr/bin /tmp/bundle/rootfs/usr/lib
printf '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' > /etc/nvidia-container-runtime/config.toml
fresh() { # COMMAND, where nothing has run before
	rm -rf /run/nvct
	code=0
	"$@" > /tmp/said 2>&1 < /dev/null || code=$?
	wrong=''
	grep -q -i -E "traceback|unexpected|gave no answer|cannot be started" /tmp/said && wrong=' WRONG'
	echo "$code$wrong: $*"
	[ "$code$wrong" = 0 ] || sed 's/^/    /' /tmp/said
}
fresh nvct explain --env NVIDIA_VISIBLE_DEVICES=all
fresh nvct list
fresh nvct status
fresh nvct refresh
fresh nvct publish
fresh nvct farm list
fresh nvct snapshot --output=/tmp/snapshot
fresh nvct runtime status
fresh nvct launchers install --bin-dir=/tmp/bin
fresh nvct hook noop
fresh nvidia-ctk cdi generate --output=/tmp/spec.yaml
fresh nvidia-ctk cdi list
fresh nvidia-ctk cdi check
fresh nvidia-ctk cdi diff /tmp/spec.yaml /tmp/spec.yaml
fresh nvidia-ctk cdi transform root --input=/tmp/spec.yaml --from=/ --to=/x
fresh nvidia-ctk config
fresh nvidia-ctk config default
fresh nvidia-ctk hook noop
fresh nvidia-ctk runtime configure --runtime=docker --dry-run
fresh nvidia-ctk system create-dev-char-symlinks --dev-char-path=/tmp/char --create-all
fresh nvidia-container-cli info
fresh nvidia-container-cli list
fresh unshare --mount sh -c '
mount --bind /tmp/bundle/rootfs /tmp/bundle/rootfs
exec nvidia-container-cli --root=/run/nvidia/driver configure --no-cgroups --device=0 --utility --pid=$$ /tmp/bundle/rootfs'
fresh nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" fresh
fresh nvidia-container-runtime-hook --version
fresh nvidia-docker --version
NV_GPU=1 nvidia-docker run image
python3 -I "$1/hook_attack.py" "$1" /usr/bin/nvidia-cdi-hook /usr/bin/nvidia-ctk /usr/bin/nvct \
    /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit
"""


@pytest.mark.engine
@pytest.mark.slow
def test_lintian_has_nothing_to_say(debs: Path) -> None:
    found = sorted(debs.glob("*.deb"))
    command = ["lintian", "--fail-on", "error,warning", "--allow-root", *map(str, found)]
    try:
        done = captured(command)
    except FileNotFoundError:
        pytest.skip("no lintian")
    assert done.returncode == 0, done.stdout
