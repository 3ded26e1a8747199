# SPDX-License-Identifier: Apache-2.0
"""Docker 29.8 for the tests: newer than in any release of Debian or Ubuntu, so it is built.

`python -m tests.engines.docker_program` builds dockerd, the command line and Compose from their Go
modules, and prints their folders (`make docker`): five minutes of CPU once, none if they are built.
runc and containerd are Debian's.
"""

import sys
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from tests.support.go_programs import Program, build

RELEASE = "29.8.1"
"""The release of Docker that moby's v2.0.0-beta.24 belongs to."""
DOCKERD = Program(
    name="dockerd",
    source=Path(__file__).parent / "dockerd",
    module="github.com/moby/moby/v2",
    package="github.com/moby/moby/v2/cmd/dockerd",
    stamps={"github.com/moby/moby/v2/dockerversion.Version": RELEASE},
    tags=("exclude_graphdriver_btrfs",),
    prefix="dockerd-",
)
DOCKER = Program(
    name="docker",
    source=Path(__file__).parent / "docker",
    module="github.com/docker/cli",
    package="github.com/docker/cli/cmd/docker",
    stamps={"github.com/docker/cli/cli/version.Version": RELEASE},
    # A module without go.mod, for which Go would assume the language of Go 1.16.
    compiler_flags=("github.com/docker/cli/...=-lang=go1.26",),
    prefix="docker-",
)

COMPOSE = Program(
    name="docker-compose",
    source=Path(__file__).parent / "compose",
    module="github.com/docker/compose/v5",
    package="github.com/docker/compose/v5/cmd",
    prefix="compose-",
)
PROGRAMS = (DOCKERD, DOCKER, COMPOSE)


def built() -> tuple[Path, ...]:
    """Return the paths of PROGRAMS.

    Raises:
        ContainerNotPossibleError: they are not built.
    """
    for program in PROGRAMS:
        if not program.folder().is_dir():
            raise ContainerNotPossibleError(f"{program.name} is not built", hint="make docker")
    return tuple(program.folder() / program.name for program in PROGRAMS)


if __name__ == "__main__":
    try:
        print(*map(build, PROGRAMS), sep="\n")
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
