# SPDX-License-Identifier: Apache-2.0
"""The units that keep the published spec as the host is, installed by the package, under systemd."""

import json
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import node_changes, tree
from tests.integration import systemd_box
from tests.support import debian_root
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
OLD, NEW = "580.159.04", "590.48.01"
CGROUPS = {"resolute": "v2"}
"""Systemd knows no others since 258."""
EXPOSURE = 3.5
"""What `systemd-analyze security` may say of the service; 10 is no sandbox at all."""
INSIDE = r"""
set -u
mkdir -p /etc/nvidia-container-runtime
cp /lab/config.toml /etc/nvidia-container-runtime/config.toml
dpkg -i /lab/debs/nvct_*.deb /lab/debs/nvct-[bo]*.deb > /lab/dpkg.log 2>&1 || cat /lab/dpkg.log
spec=/run/cdi/nvidia.yaml
driver() { sed -n 's/.*libcuda.so.\([0-9.]*\).*/\1/p' $spec 2> /dev/null | sort -u | grep -m 1 '[0-9]\.'; }
until_() { for _ in $(seq 1500); do eval "$1" && return; sleep 0.2; done; echo "not: $1"; }
# What changes until the service looks for the last time is published: a unit test has that.
published() { until_ "[ \"\$(driver)\" = $1 ]"; until_ '[ "$(systemctl is-active nvidia-cdi-refresh.service)" = inactive ]'; }
layout() { v=$(sed -n 's/.*hostPath: \(.*farm.*\)/\1/p' $spec 2> /dev/null); [ -d "$v/lib64" ] && echo "farm ${v##*/}" || echo classic; }
say() { echo "layout $1: $(layout)"; echo "$1: $(driver), $(systemctl is-active nvidia-cdi-refresh.path), $(systemctl show -p Result --value nvidia-cdi-refresh.service)"; }

systemctl is-enabled nvidia-cdi-refresh.path nvidia-cdi-refresh.service
published OLD
say installed
nvct status --format json > /lab/status.json
systemd-analyze security --no-pager nvidia-cdi-refresh.service | tail -n 1
systemd-analyze verify --man=no nvidia-cdi-refresh.service nvidia-cdi-refresh.path 2>&1 |
    grep nvidia-cdi | grep -v "Unknown key 'Restart" && echo "not: right units"

echo upgrade > /lab/ask
until_ '[ -e /lab/upgraded ]'
ldconfig
published NEW
say upgraded

mv /lab/node/driver/usr /lab/node/driver/gone
mv /lab/node/proc/driver /lab/node/proc/gone
mv /lab/node/sys/module/nvidia /lab/node/sys/gone
ldconfig
until_ '[ ! -e $spec ]'
[ -e $spec ] || echo "removed: no spec"

mv /lab/node/driver/gone /lab/node/driver/usr
mv /lab/node/proc/gone /lab/node/proc/driver
mv /lab/node/sys/gone /lab/node/sys/module/nvidia
for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do systemctl start nvidia-cdi-refresh.service; done
say often
echo "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH='/etc/cdi/nvidia.yaml'" >> /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
systemctl start nvidia-cdi-refresh.service
[ -e /etc/cdi/nvidia.yaml ] || echo "not: a specification in a folder that was missing"
dpkg -P nvct nvct-operator-extensions nvct-base > /lab/purge.log 2>&1 || cat /lab/purge.log
[ -e $spec ] || [ -e /etc/cdi ] || echo "purged: no spec"
systemctl list-units --all --no-legend 'nvidia-cdi*' | wc -l
""".replace("NEW", NEW).replace("OLD", OLD)


ENGINE = r"""
set -u
mkdir -p /etc/nvidia-container-runtime
cp /lab/config.toml /etc/nvidia-container-runtime/config.toml
dpkg -i /lab/debs/nvct_*.deb /lab/debs/nvct-[bo]*.deb > /lab/dpkg.log 2>&1 || cat /lab/dpkg.log
cat > /usr/local/bin/engine <<'END'
spec=/run/cdi/nvidia.yaml
view=$(sed -n 's/.*hostPath: \(.*farm.*\)/\1/p' $spec)
[ -e "$view/lib64/libcuda.so.1" ] && echo "engine: ${view##*/}" || echo "engine: no view ($view)"
END
cat > /etc/systemd/system/docker.service <<'END'
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh /usr/local/bin/engine > /lab/engine'
[Install]
WantedBy=multi-user.target
END
systemctl -q enable docker.service
for _ in $(seq 1500); do [ -e /run/cdi/nvidia.yaml ] && break; sleep 0.2; done
systemctl start docker.service
cat /lab/engine
rm /lab/engine
"""
AFTER_REBOOT = "until [ -e /lab/engine ]; do sleep 0.2; done; cat /lab/engine"


VERIFY = r"""
mount --bind packaging/udev "$1/usr/lib/udev/rules.d"
chroot "$1" udevadm verify --resolve-names=never /usr/lib/udev/rules.d/99-nvidia-cdi-refresh.rules
"""


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages."""
    return debian_root.packages(tmp_path_factory)


@pytest.mark.engine
def test_udev_has_nothing_to_say_of_the_rules() -> None:
    # Debian 13's: `verify` came with 254, and looks for what is written oddly, too.
    try:
        root = debian_root.root("trixie", "base-files", "libc6", "udev", bare=True)
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))

    done = captured(
        ["unshare", "--mount", "sh", "-euc", VERIFY, "verify", root], cwd=REPOSITORY, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("Success: +1$", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("release", debian_root.releases("bookworm", more=("resolute",)))
def test_the_published_spec_follows_the_driver(release: str, debs: Path, tmp_path: Path) -> None:
    machine = systemd_box.tree(release)
    node = tree.create("node", "h100", base=tmp_path, native_cache=REPOSITORY / ".cache/native")
    _prepare(tmp_path, debs)
    upgrading = threading.Thread(target=_upgrade_when_asked, args=(tmp_path, node), daemon=True)
    upgrading.start()

    said = systemd_box.run(tmp_path, machine, CGROUPS.get(release, "v1"), INSIDE)

    print("\n".join(said))
    assert said[:2] == ["enabled", "enabled"]
    found = dict(line.split(": ", 1) for line in said if ": " in line)
    assert found["installed"] == f"{OLD}, active, success"
    assert found["upgraded"] == f"{NEW}, active, success"
    assert found["removed"] == found["purged"] == "no spec"
    for when, driver in (("installed", OLD), ("upgraded", NEW), ("often", NEW)):
        assert found[f"layout {when}"].startswith(f"farm {driver}-"), found
    assert found["often"] == f"{NEW}, active, success"
    assert not [line for line in said if line.startswith("not: ")]
    status = {part["name"]: part for part in json.loads((tmp_path / "status.json").read_text())}
    assert status["specs"]["health"] == status["units"]["health"] == "ok"
    exposure = next(line for line in said if "Overall exposure level" in line)
    assert float(re.findall(r"[0-9]+\.[0-9]+", exposure)[-1]) < EXPOSURE


@pytest.mark.slow
def test_an_engine_finds_the_view_after_a_reboot(debs: Path, tmp_path: Path) -> None:
    machine = systemd_box.tree()
    tree.create("node", "h100", base=tmp_path, native_cache=REPOSITORY / ".cache/native")
    _prepare(tmp_path, debs)

    said = systemd_box.run(tmp_path, machine, "v1", ENGINE, AFTER_REBOOT)

    assert len(said) == 2, said
    assert said[0].startswith(f"engine: {OLD}-")
    assert said[1] == said[0]


def _prepare(lab: Path, debs: Path) -> None:
    shutil.copytree(debs, lab / "debs")
    text = systemd_box.config("/run/cdi")
    # A view has links of the driver's files: the sandbox can only read it.
    text += 'farm-dir = "/lab/farm"\n'
    (lab / "config.toml").write_text(text, encoding="utf-8")


def _upgrade_when_asked(lab: Path, node: tree.Node) -> None:
    while not (lab / "ask").exists():
        time.sleep(0.1)
    node_changes.reload_module(node_changes.upgrade(node, NEW))
    (lab / "upgraded").touch()
