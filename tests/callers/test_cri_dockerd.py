# SPDX-License-Identifier: Apache-2.0
"""Docker below a kubelet by cri-dockerd, with nvct's runtime as Docker's default one."""

from collections.abc import Iterator

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.callers import programs
from tests.callers.checks import SCRIPT
from tests.engines import conftest as engines
from tests.engines.box import Box
from tests.engines.checks import UUID
from tests.engines.configs import PAUSE
from tests.engines.daemons import Docker
from tests.engines.engines import CONFIG
from tests.engines.supervised import LOOP, Supervised
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import machine
from tests.kubernetes.pods import Pod, run_all

pytestmark = pytest.mark.slow
RUNC = """\
#!/bin/sh
bundle=$(echo "$*" | sed -n 's/.*--bundle \\([^ ]*\\).*/\\1/p')
[ -z "$bundle" ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$bundle/config.json"
exec /usr/sbin/runc "$@"
"""
"""A runc for this machine, where no score can be lowered; cri-dockerd asks for it in each pod."""


class CriDockerd(Supervised, Docker):
    """dockerd, and cri-dockerd before it."""

    program = "/usr/sbin/dockerd"
    socket = "/run/cri-dockerd.sock"

    def __init__(self, box: Box) -> None:
        self._shim = programs.path_of(programs.CRI_DOCKERD)
        super().__init__(box)
        self.configure("--set-as-default")
        box.write("/run/lenient/runc", RUNC)
        box.call("chmod", "755", "/run/lenient/runc")
        lenient = '[nvidia-container-runtime]\nruntimes = ["/run/lenient/runc"]\n'
        box.write(CONFIG, f"{box.read(CONFIG)}\n{lenient}")

    def _command(self) -> list[str]:
        words = [
            self._shim, f"--container-runtime-endpoint=unix://{self.socket}",
            f"--pod-infra-container-image={PAUSE}", "--cri-dockerd-root-directory=/run/cri-dockerd",
        ]  # fmt: skip
        loops = (LOOP.format(program=self.program), LOOP.format(program=" ".join(words)))
        return ["/bin/sh", "-c", " & ".join(f"({loop})" for loop in loops)]

    def _answers(self) -> bool:
        return super()._answers() and self.box.accepts(self.socket)

    def _load(self) -> None:
        super()._load()
        done = self.docker("load", "--input", f"{self.box.work}/pause.tar")
        assert done.returncode == 0, done

    def can_run_privileged(self) -> bool:
        return True

    def has_user_namespaces(self) -> bool:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with machine(CriDockerd, *engines.prepare("trixie", tmp_path_factory)) as engine:
            yield Cluster(engine)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


def test_pods(cluster: Cluster) -> None:
    asks = {
        name: {"NVIDIA_VISIBLE_DEVICES": value} for name, value in (("one", "0"), ("all", "all"))
    }
    wanted = {name: Pod(script=SCRIPT, env=env) for name, env in asks.items()}
    results = run_all(cluster.api, {**wanted, "none": Pod(script=SCRIPT)})
    found = {name: len(UUID.findall(result.log)) for name, result in results.items()}
    assert found == {"one": 1, "all": 8, "none": 0}, results
    for name, count in found.items():
        lines = results[name].log.splitlines()
        assert str(count) in lines, results  # Docker mixes the lines of stderr with the others
        assert any(line.endswith("/libcuda.so.1") for line in lines) == (count > 0), results
