# SPDX-License-Identifier: Apache-2.0
"""`nvct install --publish` from a container of a node with systemd: units publish again."""

import shutil
from pathlib import Path

import pytest

from nvct_sim import tree
from tests.integration import systemd_box
from tests.support import bundled

REPOSITORY = Path(__file__).parents[2]
INSIDE = r"""
set -u
mkdir -p /seen
mount --rbind / /seen # as a container has the host's root
toml=/opt/nvidia/toolkit/.config/nvidia-container-runtime/config.toml spec=/run/cdi/nvidia.yaml
until_() { for _ in $(seq 150); do eval "$1" && return; sleep 0.2; done; echo "not: $1"; journalctl --no-pager -u nvct-publish | tail -n 8; }
installer() {
    /lab/bundle/bin/nvct install --no-daemon --no-runtime-config --publish --root=/opt/nvidia --host-root=/seen \
        --pid-file=/run/nvct-agent/toolkit.pid --driver-root=/lab/node/driver \
        --driver-root-ctr-path=/lab/node/driver "$@" > /lab/log 2>&1 || cat /lab/log
}
idle() { [ "$(systemctl is-active nvct-publish.service)" = inactive ]; } # else no change is seen
published() { grep -q libcuda $spec 2> /dev/null && idle; }
changed() { cp /etc/ld.so.cache /etc/new; mv /etc/new /etc/ld.so.cache; } # what ldconfig does
installer
echo "installed: $(systemctl is-active nvct-publish.path), $(grep warning: /lab/log)"
cp /lab/config.toml $toml # whose host is the simulated one
until_ published
for part in driver/usr proc/driver; do mv /lab/node/$part /lab/node/${part%/*}/gone; done
changed
until_ '[ ! -e $spec ] && idle'
for part in driver/usr proc/driver; do mv /lab/node/${part%/*}/gone /lab/node/$part; done
changed
until_ published
installer --uninstall
grep -c "^removed" /lab/log
echo "removed: $(systemctl is-active nvct-publish.path), $(ls /run/systemd/system | grep -c nvct), $(ls $spec $toml 2> /dev/null)"
"""


@pytest.mark.slow
def test_units_publish_again_when_the_driver_changes(tmp_path: Path) -> None:
    machine = systemd_box.tree()
    tree.create("node", "t4-4", tmp_path, native_cache=REPOSITORY / ".cache/native")
    shutil.copytree(bundled.tree(), tmp_path / "bundle", symlinks=True)
    text = systemd_box.config("/run/cdi")
    hook = "/opt/nvidia/toolkit/nvidia-cdi-hook"
    (tmp_path / "config.toml").write_text(f'{text}hook-path = "{hook}"\n')

    lines = systemd_box.run(tmp_path, machine, "v2", INSIDE)

    print("\n".join(lines))
    assert lines[0].startswith("installed: active, ")
    assert lines[1:] == ["3", "removed: inactive, 0, "]
