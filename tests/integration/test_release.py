# SPDX-License-Identifier: Apache-2.0
"""README's lines, with what `make release` makes on a local web server: apt, dnf and pip in clean roots."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.version import __version__ as version
from tests.engines import image
from tests.integration import packages
from tests.integration.conftest import SimulatedNode
from tests.support import debian_root, released
from tests.support.processes import captured

pytestmark = [pytest.mark.slow, pytest.mark.release]
RELEASES = debian_root.releases(more=("trixie", "bookworm", "noble"))
STEPS = r"""
work=$1
sudo() { "$@"; }
curl() { /usr/lib/apt/apt-helper -q download-file "$3" "$2"; }
apt() { apt-get -y -o APT::Install-Recommends=true -o APT::Update::Error-Mode=any "$@" > /tmp/apt.log 2>&1; }
smi() { nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" "gpu-$1"; }
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
mkdir -p /etc/nvidia-container-runtime
printf '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' > /etc/nvidia-container-runtime/config.toml
@LINES@
grep "^W:" /tmp/apt.log && exit 1
dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' 'nvct*'
smi installed

echo "== Docker"
. "$work/docker_in_root.sh"
@DOCKER@
cmp /etc/docker/daemon.json /tmp/daemon.json
docker_ends
echo "== no more of Docker"
apt purge nvct nvct-base nvct-operator-extensions || { cat /tmp/apt.log; exit 1; }
echo "== end"
"""
DNF = r"""
curl() { /usr/lib/apt/apt-helper -q download-file "$3" "$2"; }
sudo() { "$@" > /tmp/log 2>&1; }
dnf() { command dnf -y --installroot=/target --releasever=0 --setopt=reposdir=/etc/yum.repos.d "$@"; }
distribution() { # of a Python: a root with what nvct needs of others, and a shell
	rm -rf /target
	{
		printf 'Name: all\nVersion: 1\nRelease: 1\nSummary: none\nLicense: none\nProvides: python3 = %s\n' "$1"
		rpm -qp --requires "$DEBS"/*.rpm | grep -v -E '^(nvct|rpmlib|config|python3 )' | sed 's/^/Provides: /'
		printf '%%description\n%%install\nmkdir -p %%{buildroot}/bin\ncp /bin/busybox %%{buildroot}/bin/sh\n%%files\n/bin/sh\n'
	} > /tmp/all.spec
	rpmbuild -bb --define "_topdir /tmp/rpm" /tmp/all.spec
	dnf install /tmp/rpm/RPMS/*/all-1-1.*.rpm
}
mkdir -p /etc/yum.repos.d
@GET@
distribution 3.9
@INSTALL@ && exit 1
cat /tmp/log
dnf install nvct-bundle
ls /target/usr/lib/nvct/bundle/bin/nvct
distribution 3.13
@INSTALL@
ls /target/usr/lib/nvct/cold
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a release."""
    www = shutil.copytree(
        released.made(tmp_path_factory), tmp_path_factory.mktemp("www") / "release"
    )
    with released.served(www) as url:
        for name in ("nvct.sources", "nvct.repo"):
            path = www / name
            path.write_text(path.read_text().replace(released.URL, url))
        yield url


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
GPU = r"^GPU 0: NVIDIA H100.*UUID: GPU-"
README = (released.REPOSITORY / "README.md").read_text()


def docker_of_readme() -> str:
    """Return the lines that use it with Docker."""
    (block,) = re.findall(r"^(    sudo nvct runtime plan .*\n(?:    .*\n)+)", README, re.MULTILINE)
    lines = [line.split("   #")[0].strip() for line in block.splitlines()]
    assert len(lines) == 6
    lines[-1:-1] = ["docker run --rm --gpus all IMAGE nvidia-smi -L"]
    return "\n".join(line.replace("IMAGE", "plain:test") for line in lines)


def of_readme(url: str) -> str:
    """Return the lines that install it, each with what apt says if it fails."""
    (block,) = re.findall(r"^(    sudo curl .*\n(?:    sudo apt .*\n)+)", README, re.MULTILINE)
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    assert len(lines) == 3
    return "\n".join(
        f"{line.replace('https://SERVER', url)} || {{ cat /tmp/apt.log; exit 1; }}" for line in lines
    )  # fmt: skip


def in_its_root(release: str) -> tuple[str, ...]:
    """Return Docker's packages, and apt where a small root has dpkg alone."""
    more = ("apt",) if release in debian_root.UBUNTU else ()
    return (*more, "docker.io", *(("docker-cli",) if release == "trixie" else ()))


def docker_image(simulated: SimulatedNode) -> None:
    """Write what docker_in_root.sh loads, and itself."""
    image.archive(simulated.rootfs, "plain:test", simulated.work / "plain.tar")
    shutil.copy(Path(__file__).with_name("docker_in_root.sh"), simulated.work)


@pytest.mark.parametrize("release", RELEASES)
def test_the_lines_of_readme_lead_to_a_container(
    release: str, server: str, simulated: SimulatedNode, tmp_path: Path
) -> None:
    try:
        root = debian_root.root(release, *in_its_root(release))
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    docker_image(simulated)
    steps = STEPS.replace("@LINES@", of_readme(server)).replace("@DOCKER@", docker_of_readme())
    env = {
        packages.ROOT_ENV: str(root),
        packages.DEBS_ENV: str(tmp_path),
        packages.STEPS_ENV: steps,
    }
    simulated.run(packages.installed, env)
    said = (simulated.work / "said").read_text()
    print(said)
    said, docker, _ = re.split("== .*Docker\n", said)
    assert len(re.findall(GPU, said, re.MULTILINE)) == 1
    assert len(re.findall(GPU, docker, re.MULTILINE)) == 2
    assert len(re.findall(r"^GPU 7: NVIDIA H100", docker, re.MULTILINE)) == 1
    assert f"nvct {version} ii" in said
    assert f"nvct-operator-extensions {version} ii" in said


@pytest.mark.skipif(not debian_root.FULL, reason="make ci-full")
def test_dnf_takes_what_fits_the_distributions_python(
    server: str, simulated: SimulatedNode, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        root = debian_root.root("bookworm", "dnf", "rpm", "busybox-static")
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    get, install = re.findall(r"`(sudo (?:curl \S+ /etc/yum\S+ \S+|dnf install nvct))`", README)
    steps = DNF.replace("@GET@", get.replace("https://SERVER", server)).replace(
        "@INSTALL@", install
    )
    rpms = str(released.made(tmp_path_factory) / "rpm")
    env = {packages.ROOT_ENV: str(root), packages.DEBS_ENV: rpms, packages.STEPS_ENV: steps}
    simulated.run(packages.installed, env)
    said = (simulated.work / "said").read_text()
    assert "nothing provides python3 >= 3.10 needed by nvct-base" in said


@pytest.mark.skipif(not debian_root.FULL, reason="make ci-full")
def test_pip_installs_what_an_admin_needs_beside_kubectl(server: str, tmp_path: Path) -> None:
    venv = tmp_path / "nvct-admin"
    captured([sys.executable, "-m", "venv", venv], check=True)
    address = f"nvct[client] @ {server}/python/nvct-{version}-py3-none-any.whl"
    captured([venv / "bin/pip", "install", "--quiet", address], check=True)

    def said(*words: str) -> str:
        done = captured([venv / "bin/nvct", *words], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
        return done.stdout + done.stderr

    (tmp_path / "pod.yaml").write_text(POD)
    assert "deviceClassName: gpu.nvidia.com" in said("convert", "--claims", "pod.yaml")
    for words in (["cluster", "status"], ["explain", "default/pod"]):
        text = said(*words, "--kubeconfig=none")
        assert "there is no access to the cluster: Configuration file none not found" in text
    assert not list(venv.glob("lib/*/site-packages/grpc"))  # the agent's


@pytest.mark.skipif(not debian_root.FULL, reason="make ci-full")
@pytest.mark.parametrize(("kind", "count"), [("deb", 5), ("rpm", 5)])
def test_two_builds_are_equal(kind: str, count: int, tmp_path: Path) -> None:
    """The second is of a copy, whose files have other times."""
    copy, left_out = tmp_path / "copy", (".git", ".venv", ".cache", "build", "dist", "tests")
    shutil.copytree(
        released.REPOSITORY, copy, ignore=shutil.ignore_patterns(*left_out),
        copy_function=shutil.copyfile,
    )  # fmt: skip
    for path in copy.glob("nvct/**/*.py"):
        os.utime(path, (1e9, 1e9))
    (copy / "build").symlink_to(released.REPOSITORY / "build")
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    env["VENV"] = str(released.REPOSITORY / ".venv")
    built = []
    for source, mask in ((released.REPOSITORY, "022"), (copy, "077")):
        out = tmp_path / mask
        command = f"umask {mask}; exec sh {source}/packaging/{kind}/build.sh {out}"
        captured(["sh", "-c", command], env=env, check=True)
        built.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert len(built[0]) == count
    assert [name for name in built[0] if built[0][name] != built[1][name]] == []
