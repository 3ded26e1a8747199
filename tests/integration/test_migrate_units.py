# SPDX-License-Identifier: Apache-2.0
"""`nvct migrate` on a host with systemd: whose units are in force, and enabled, before and after."""

import shutil
from pathlib import Path

import pytest

from nvct_sim import tree
from tests.integration import systemd_box
from tests.support import bundled

REPOSITORY = Path(__file__).parents[2]
INSIDE = r"""
set -u
nvct=/lab/bundle/bin/nvct etc=/etc/systemd/system packaged=/usr/lib/systemd/system
mkdir -p /etc/nvidia-container-runtime /etc/cdi
cp /lab/config.toml /etc/nvidia-container-runtime/config.toml
cp /lab/nvidia.yaml /etc/cdi/
ln -s $nvct /usr/bin/nvct
printf '[Service]\nType=oneshot\nExecStart=/bin/true nvidia-ctk cdi generate\n[Install]\nWantedBy=multi-user.target\n' \
    > $etc/nvidia-cdi-refresh.service
printf '[Path]\nPathChanged=/etc/nvidia-ctk\n[Install]\nWantedBy=multi-user.target\n' > $etc/nvidia-cdi-refresh.path
systemctl daemon-reload
systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service 2> /dev/null
say() {
    for unit in path service; do
        systemctl show --property=FragmentPath,UnitFileState,ActiveState,NeedDaemonReload nvidia-cdi-refresh.$unit |
            sort | sed 's/.*=//' | tr '\n' ' '
    done
    systemctl show --property=Paths nvidia-cdi-refresh.path | grep -o "/[^ =]* (PathChanged)" | head -n 1
}
say
cp /lab/units/* $packaged/ # as nvct's packages bring them
$nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
$nvct migrate back > /lab/log 2>&1 || cat /lab/log
say
rm $packaged/nvidia-cdi-refresh.* # a bundle has no units
systemctl daemon-reload
$nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
$nvct migrate back > /lab/log 2>&1 || cat /lab/log
say
"""


def _said(folder: str, watches: str) -> str:
    """Return the line about two units that are enabled; of these, the path unit runs."""
    units = f"{folder}/nvidia-cdi-refresh"
    return f"active {units}.path no enabled inactive {units}.service no enabled {watches} (PathChanged)"


@pytest.mark.slow
def test_units_of_nvct_are_in_force_after_apply_and_the_former_after_back(tmp_path: Path) -> None:
    machine = systemd_box.tree()
    tree.create("node", "t4-4", tmp_path, native_cache=REPOSITORY / ".cache/native")
    shutil.copytree(bundled.tree(), tmp_path / "bundle", symlinks=True)
    shutil.copytree(REPOSITORY / "packaging/systemd", tmp_path / "units")
    shutil.copy(REPOSITORY / "tests/unit/cli/incumbent/nvidia.yaml", tmp_path)
    text = systemd_box.config("/etc/cdi")
    (tmp_path / "config.toml").write_text(text)

    lines = systemd_box.run(tmp_path, machine, "v2", INSIDE)

    theirs = _said("/etc/systemd/system", "/etc/nvidia-ctk")
    ours = _said("/lib/systemd/system", "/etc/nvidia-container-runtime/config.toml")
    assert [line.replace("/usr/lib/", "/lib/") for line in lines] == [
        theirs, ours, theirs, f"inactive  no  inactive  no  {theirs}",
    ]  # fmt: skip
