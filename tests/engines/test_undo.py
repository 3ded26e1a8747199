# SPDX-License-Identifier: Apache-2.0
"""undo of files that the admin edited after configure: what is left starts in the real engine."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.engines import configured, releases
from tests.engines.box import Box
from tests.engines.daemons import Containerd, Daemon, Docker, Podman

pytestmark = pytest.mark.slow
CONFIG = {
    "docker": "/etc/docker/daemon.json",
    "containerd": "/etc/containerd/config.toml",
    "podman": "/etc/containers/containers.conf",
}
DROP_IN = {
    "containerd": "/etc/containerd/conf.d/99-nvidia.toml",
    "podman": "/etc/containers/containers.conf.d/99-nvidia.conf",
}
SHIM = "nvidia-container-runtime"
MAKES: dict[str, Callable[[Box], Daemon]] = {
    "docker": Docker,
    "podman": Podman,
    "containerd2": lambda box: Containerd(box, 2),
    "containerd3": lambda box: Containerd(box, 3),
}
IN_CI = (("trixie", "docker"), ("trixie", "podman"), ("forky", "containerd3"))
IN_FULL = (
    ("bookworm", "containerd2"), ("trixie", "containerd2"), ("forky", "docker"), ("forky", "podman"),
    ("forky", "containerd2"),
)  # fmt: skip
CASES = [
    *(releases.of_release(case[0], case, name="-".join(case)) for case in IN_CI),
    *(each for case in IN_FULL for each in releases.in_full(case[0], case, name="-".join(case))),
]
EDITS = ("comment", "other runtime", "other default", "our program")


@pytest.fixture(scope="module", params=CASES)
def daemon(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Daemon]:
    release, engine = request.param
    instance = configured.started(lambda: MAKES[engine](machine_of(release)))
    yield instance
    instance.stop()


@pytest.fixture
def bare(daemon: Daemon) -> Daemon:
    """The same, whatever another test left."""
    return configured.cleaned(daemon)


def _written(daemon: Daemon) -> list[str]:
    """Return the files that hold what configure wrote."""
    paths = (CONFIG[daemon.engine], DROP_IN.get(daemon.engine, ""))
    return [path for path in paths if path and (daemon.box.root / path.lstrip("/")).exists()]


def _edit(daemon: Daemon, edit: str) -> None:
    """Edit the files as an admin does."""
    for path in _written(daemon):
        text = daemon.box.read(path)
        if daemon.engine == "docker":
            text = _edited_json(text, edit)
        elif edit == "comment":
            text = f"# mine\n{text}\n# mine as well\n"
        elif edit == "other default":
            text = text.replace('runtime = "nvidia"', 'runtime = "nvidia-cdi"')
            text = text.replace('runtime_name = "nvidia"', 'runtime_name = "nvidia-cdi"')
            text = text.replace("runtime_name = 'nvidia'", "runtime_name = 'nvidia-cdi'")
        elif edit == "our program":
            text = text.replace(f"{SHIM}.cdi", f"{SHIM}.legacy")
        elif daemon.engine == "podman":
            text = text.replace("[engine.runtimes]\n", '[engine.runtimes]\nkata = ["/x/kata"]\n')
        elif path == DROP_IN["containerd"] or "containerd.runtimes.nvidia]" in text:
            cri = (
                "io.containerd.cri.v1.runtime" if "cri.v1" in text else "io.containerd.grpc.v1.cri"
            )
            text += f"\n[plugins.'{cri}'.containerd.runtimes.kata]\nruntime_type = 'io.k.v2'\n"
        daemon.box.write(path, text)


def _edited_json(text: str, edit: str) -> str:
    document = json.loads(text)
    if edit == "comment":
        document["debug"] = True
    elif edit == "other runtime":
        document["runtimes"]["kata"] = {"path": "/x/kata"}
    elif edit == "other default":
        document["default-runtime"] = "nvidia-cdi"
    else:
        program = document["runtimes"]["nvidia-cdi"]["path"]
        document["runtimes"]["nvidia-cdi"]["path"] = program.replace(".cdi", ".legacy")
    return json.dumps(document, indent=1)


def _runs(daemon: Daemon) -> None:
    daemon.restart()
    completed = daemon.run("echo runs")
    assert completed.stdout == "runs\n", completed


def _text(daemon: Daemon) -> str:
    return "\n".join(file[3].decode() for file in daemon.snapshot().values())


@pytest.mark.parametrize("edit", EDITS)
def test_the_engine_starts_after_undo_and_keeps_the_admins_edit(bare: Daemon, edit: str) -> None:
    bare.configure("--set-as-default", "--cdi.enabled")
    _edit(bare, edit)

    bare.undo()

    _runs(bare)
    text = _text(bare)
    expected = {
        "comment": "debug" if bare.engine == "docker" else "# mine",
        "other runtime": "kata",
    }
    expected["our program"] = f"{SHIM}.legacy"
    assert expected.get(edit, "") in text, text
    if edit != "our program":
        assert SHIM not in text, text
        assert '"nvidia' not in text, text


@pytest.mark.parametrize("journal", ["lost", "damaged"])
def test_the_engine_starts_after_remove(bare: Daemon, journal: str) -> None:
    bare.configure("--set-as-default")
    script = "rm /var/lib/nvct/engines/*.json"
    if journal == "damaged":
        script = "for page in /var/lib/nvct/engines/*.json; do echo '{' > $page; done"
    assert bare.box.call("sh", "-c", script).returncode == 0
    if journal == "damaged":
        refused = bare.nvct("undo", f"--runtime={bare.engine}")
        assert refused.returncode != 0
        assert "is damaged" in refused.stderr
        assert "--remove" in refused.stderr

    completed = bare.nvct("undo", f"--runtime={bare.engine}", "--remove")

    assert completed.returncode == 0, completed
    assert SHIM not in _text(bare)
    _runs(bare)


def test_configure_goes_on_with_a_damaged_journal(bare: Daemon) -> None:
    bare.configure()
    bare.box.call("sh", "-c", "for page in /var/lib/nvct/engines/*.json; do : > $page; done")

    completed = bare.configure("--set-as-default")

    assert "is damaged" in completed.stderr, completed
    _runs(bare)
