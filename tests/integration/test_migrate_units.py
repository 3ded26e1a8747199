# SPDX-License-Identifier: Apache-2.0
"""`nvct migrate` on a host with systemd: whose units are in force, and enabled, before and after."""

import shutil
from pathlib import Path

import pytest

from nvct_sim import tree
from tests.integration import systemd_box
from tests.support import bundled, debian_root
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
SETUP = r"""
set -u
etc=/etc/systemd/system packaged=/usr/lib/systemd/system
mkdir -p /etc/nvidia-container-runtime /etc/cdi
cp /lab/config.toml /etc/nvidia-container-runtime/config.toml
cp /lab/nvidia.yaml /etc/cdi/
[ ! -e /lab/bundle ] || ln -s /lab/bundle/bin/nvct /usr/bin/nvct
printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true nvidia-ctk cdi generate\n[Install]\nWantedBy=multi-user.target\n' \
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
"""
STEPS = r"""
say
cp /lab/units/* $packaged/ # as nvct's packages bring them
nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
nvct migrate back > /lab/log 2>&1 || cat /lab/log
say
rm $packaged/nvidia-cdi-refresh.* # a bundle has no units
systemctl daemon-reload
nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
nvct migrate back > /lab/log 2>&1 || cat /lab/log
say
"""
DEBS = r"""
here() { dpkg "$@" > /lab/log 2>&1 || cat /lab/log; }
say
here -i /lab/debs/nvct_*.deb /lab/debs/nvct-[bo]*.deb
nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
here -r nvct nvct-operator-extensions nvct-base
say
here -P nvct nvct-operator-extensions nvct-base
say
mv $etc/nvidia-cdi-refresh.* $packaged/ # as other releases of NVIDIA's packages have them
systemctl daemon-reload
systemctl --force enable nvidia-cdi-refresh.path nvidia-cdi-refresh.service 2> /dev/null
systemctl restart nvidia-cdi-refresh.path nvidia-cdi-refresh.service
say
here -i /lab/debs/nvct_*.deb /lab/debs/nvct-[bo]*.deb
say
"""
RPM = r"""
erase() { # as rpm does
    sh /lab/PREUN 0 > /lab/log 2>&1
    rm $packaged/nvidia-cdi-refresh.*
    sh /lab/POSTUN 0 >> /lab/log 2>&1
}
cp /lab/units/* $packaged/
nvct migrate apply > /lab/log 2>&1 || cat /lab/log
say
erase
say
ls -d /var/lib/nvct /etc/cdi/nvidia.yaml 2> /dev/null
cp /lab/units/* $packaged/
nvct migrate apply > /lab/log 2>&1 || cat /lab/log
mount -t tmpfs -o ro full /etc/cdi
erase
say
grep "^nvct: .*engines has" /lab/log
ls /var/lib/nvct/engines
umount /etc/cdi
nvct migrate back > /lab/log 2>&1 || cat /lab/log
ls /var/lib/nvct/engines /etc/cdi
"""


def _said(folder: str, watches: str, service: str = "inactive") -> str:
    """Return the line about two units that are enabled; of these, the path unit runs."""
    units = f"{folder}/nvidia-cdi-refresh"
    return f"active {units}.path no enabled {service} {units}.service no enabled {watches} (PathChanged)"


def _lines(lab: Path, steps: str) -> list[str]:
    """Run steps on a node with systemd, and return what they say."""
    machine = systemd_box.tree()
    tree.create("node", "t4-4", lab, native_cache=REPOSITORY / ".cache/native")
    shutil.copytree(REPOSITORY / "packaging/systemd", lab / "units")
    shutil.copy(REPOSITORY / "tests/unit/cli/incumbent/nvidia.yaml", lab)
    (lab / "config.toml").write_text(systemd_box.config("/etc/cdi"))

    lines = systemd_box.run(lab, machine, "v2", SETUP + steps)

    print("\n".join(lines))
    return [line.replace("/usr/lib/", "/lib/") for line in lines]


THEIRS = _said("/etc/systemd/system", "/etc/nvidia-ctk")
FIRST = _said("/etc/systemd/system", "/etc/nvidia-ctk", "active")
"""As an active service that has run is not started by its path, it does not stay active."""
OURS = _said("/lib/systemd/system", "/etc/nvidia-container-runtime/config.toml")


@pytest.mark.slow
def test_units_of_the_incumbent_are_enabled_and_run_once_the_debs_are_removed_or_purged(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    shutil.copytree(debian_root.packages(tmp_path_factory), tmp_path / "debs")

    lines = _lines(tmp_path, DEBS)

    packaged = _said("/lib/systemd/system", "/etc/nvidia-ctk", "active")
    assert lines == [FIRST, OURS, THEIRS, THEIRS, packaged, OURS]


@pytest.mark.slow
def test_units_of_nvct_are_in_force_after_apply_and_the_former_after_back_or_the_rpms_are_erased(
    tmp_path: Path,
) -> None:
    """The record of what could not be put back when they were erased stays, and a later `back` uses it."""
    if shutil.which("rpmspec") is None:
        pytest.skip("no rpmspec")
    shutil.copytree(bundled.tree(), tmp_path / "bundle", symlinks=True)
    for script in ("PREUN", "POSTUN"):
        (tmp_path / script).write_text(_of_base(script))

    lines = _lines(tmp_path, STEPS + RPM)

    folder = "/var/lib/nvct/engines"
    said = (
        f"nvct: {folder} has former files that could not be put back: install nvct and run nvct"
        " migrate back"
    )
    locks = ["lock", "migrate.lock"]
    kept = [locks[0], "migrate.journal", locks[1]]
    put_back = ["/etc/cdi:", "nvidia.yaml", "", f"{folder}:", *locks]
    assert lines[:4] == [FIRST, OURS, THEIRS, f"inactive  no  inactive  no  {THEIRS}"]
    assert lines[4:7] == [OURS, THEIRS, "/etc/cdi/nvidia.yaml"]
    assert lines[7:] == [THEIRS, said, *kept, *put_back]


def _of_base(script: str) -> str:
    """Return a scriptlet of the package nvct-base."""
    defined = ["--define=nvct_version 0", f"--define=nvct_tree {REPOSITORY}"]
    spec = str(REPOSITORY / "packaging/rpm/nvct.spec")
    command = ["rpmspec", "-q", *defined, f"--qf=%{{NAME}}\n%{{{script}}}\n\f", spec]
    every = captured(command, check=True).stdout.split("\f")
    return next(text for text in every if text.startswith("nvct-base\n")).partition("\n")[2]
