# SPDX-License-Identifier: Apache-2.0
"""Docker and containerd with the shim as their runtime; in `make ci-full` of each release, in either layout."""

from collections.abc import Callable, Iterator

import pytest

from tests.engines import checks
from tests.engines.engines import Docker, Engine, Want

pytestmark = pytest.mark.slow


CHECKS = (
    checks.gives_what_is_asked_for, checks.reaches_exec_and_outlives_a_restart,
    checks.serves_read_only_roots, checks.leaves_a_volume_alone,
    checks.leaves_an_images_file_alone, checks.lets_nobody_write, checks.follows_an_upgrade,
)  # fmt: skip


@pytest.fixture(params=["docker", "containerd"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each of the engines."""
    chosen: Engine = request.getfixturevalue(request.param)
    return chosen


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_with_the_shim(
    check: Callable[[Engine, str], None], engine: Engine, layout: str
) -> None:
    check(engine, layout)


@pytest.mark.parametrize("runtime", ["runc", "nvidia"])
def test_gpus_work_with_and_without_the_shim(docker: Docker, layout: str, runtime: str) -> None:
    for asks, count in (("all", 8), ('"device=1,2"', 2)):
        want = Want(env=(), flags=("--gpus", asks, f"--runtime={runtime}"))
        completed = docker.run(f"nvidia-smi -L; {checks.LISTED}", want)
        assert completed.returncode == 0, completed
        assert len(checks.UUID.findall(completed.stdout)) == count, completed
        delivered = layout if runtime == "nvidia" else "classic"
        assert completed.stdout.splitlines()[-1].startswith(checks.libraries(delivered)), completed


def test_a_committed_container_runs_in_either_layout_and_without_a_gpu(
    docker: Docker, layout: str
) -> None:
    name = docker.keep()
    image = f"committed:{layout}"
    completed = docker.docker("commit", name, image)
    assert completed.returncode == 0, completed
    docker.remove(name)
    bare = docker.run("ldconfig -p | wc -l; ldconfig", Want(env=(), image=image))
    assert bare.returncode == 0, bare
    script = f"nvidia-smi -L; {checks.LISTED}"
    for other in checks.LAYOUTS:
        docker.configure(other)
        checks.has_one_gpu(docker.run(script, Want(image=image)), other)
    want = Want(env=(), image=image, flags=("--gpus=device=0", "--runtime=runc"))
    checks.has_one_gpu(docker.run(script, want), "classic")


def test_an_image_is_built_with_the_driver_at_hand(docker: Docker, layout: str) -> None:
    image = f"built:{layout}"
    docker.box.write(
        "/run/build/Dockerfile",
        "FROM plain:test\nENV NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=utility\n"
        "RUN nvidia-smi -L && touch /done\n",
    )
    # The builder of old: the other one runs its own runc, whatever the default runtime is.
    completed = docker.docker(
        "build",
        "--no-cache",
        "--network=none",
        f"--tag={image}",
        "/run/build",
        DOCKER_BUILDKIT="0",
    )
    assert completed.returncode == 0, completed
    assert len(checks.UUID.findall(completed.stdout)) == 1, completed
    bare = docker.run("cat /done; ldconfig", Want(image=image, flags=("--runtime=runc",)))
    assert bare.returncode == 0, bare
    checks.has_one_gpu(docker.run(f"nvidia-smi -L; {checks.LISTED}", Want(image=image)), layout)


@pytest.fixture
def remapped(docker: Docker, layout: str) -> Iterator[Docker]:
    """dockerd with users that are not the host's."""
    docker.configure(layout, staged=False)  # a view of bind mounts is not for user namespaces
    for name in ("subuid", "subgid"):
        docker.box.write(f"/etc/{name}", "nobody:200000:65536\n")
    docker.again(userns_remap="nobody:nogroup")
    yield docker
    docker.again()


def test_remapped_users_find_the_driver(remapped: Docker, layout: str) -> None:
    docker = remapped
    done = docker.docker("load", "--input", f"{docker.box.work}/plain.tar")
    assert done.returncode == 0, done
    done = docker.run(f"ls -ln /etc/ld.so.cache; nvidia-smi -L; {checks.LISTED}")
    checks.has_one_gpu(done, layout)
    assert done.stdout.split()[2:4] == ["0", "0"], done
    name = docker.keep()
    assert docker.restart(name).returncode == 0
    checks.has_one_gpu(docker.exec(name, f"nvidia-smi -L; {checks.LISTED}"), layout)
    docker.remove(name)
