# SPDX-License-Identifier: Apache-2.0
"""Engines as units of a real systemd: reloaded or restarted, and restored if they fail."""

from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.engines import suite
from tests.integration import systemd_box

pytestmark = pytest.mark.slow
LOG_ERROR = "containerd: failed to load TOML: nobody likes nvidia"
INSIDE = """
export PYTHONPATH=/host PYTHONDONTWRITEBYTECODE=1
runtime() {
    python3 -c 'from nvct.cli.main import nvct; nvct()' runtime "$@" > /lab/said 2>&1
    echo "status $?"
}
pid() { systemctl show --property=MainPID --value $1; }
is_same() { [ "$(pid $1)" = $2 ] && echo "$1 runs on" || echo "$1 was restarted"; }
is_restored() {
    cmp /lab/config.toml /etc/containerd/config.toml && cmp /lab/daemon.json /etc/docker/daemon.json \
        && echo restored
}
echo 'docker:x:999:' >> /etc/group
mkdir -p /etc/containerd
cat > /lab/config.toml << 'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
END
echo '{"bridge": "none", "iptables": false, "ip6tables": false, "ip-masq": false}' > /lab/daemon.json
cp /lab/config.toml /etc/containerd
cp /lab/daemon.json /etc/docker
systemctl start containerd docker || { echo "SKIP: no engine starts here"; exit; }

echo "== containerd"
before=$(pid containerd)
runtime configure --runtime=containerd --nvidia-runtime-path=/usr/sbin/runc
is_same containerd $before
ctr plugins ls id==cri | awk 'END {print $NF}'

echo "== docker"
before=$(pid docker)
runtime configure --runtime=docker --nvidia-runtime-path=/usr/sbin/runc
is_same docker $before
docker info --format '{{with index .Runtimes "nvidia"}}{{.Path}}{{end}}'

echo "== docker restarted"
runtime configure --runtime=docker --nvidia-runtime-path=/usr/sbin/runc --set-as-default \
    --reload=restart
is_same docker $before
docker info --format '{{.DefaultRuntime}}'

echo "== undo"
before=$(pid containerd)
runtime undo --reload=restart
is_same containerd $before
is_restored

echo "== broken"
mkdir /etc/systemd/system/containerd.service.d
cat > /etc/systemd/system/containerd.service.d/broken.conf << 'END'
[Service]
ExecStartPre=/bin/sh -c 'grep -q nvidia /etc/containerd/config.toml || exit 0; echo "WORDS" >&2; exit 1'
END
systemctl daemon-reload
before=$(pid containerd)
runtime configure --runtime=containerd --nvidia-runtime-path=/usr/sbin/runc
tail -n 1 /lab/said
is_same containerd $before
systemctl is-active containerd
is_restored
"""


def test_units_are_restarted_and_restored(tmp_path: Path) -> None:
    try:
        # Both are layers of what is booted.
        tree = Path(f"{suite.tree('bookworm')}:{systemd_box.tree()}")
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)

    output = systemd_box.run(tmp_path, tree, "v1", INSIDE.replace("WORDS", LOG_ERROR))

    failed = f"containerd.service does not start again: {LOG_ERROR}"
    assert output == [
        "== containerd", "status 0", "containerd was restarted", "ok",
        "== docker", "status 0", "docker runs on", "/usr/sbin/runc",
        "== docker restarted", "status 0", "docker was restarted", "nvidia",
        "== undo", "status 0", "containerd was restarted", "restored",
        "== broken", "status 1",
        f"nvct: {failed}; the former files are back in place [engine]",
        "containerd was restarted", "active", "restored",
    ]  # fmt: skip
