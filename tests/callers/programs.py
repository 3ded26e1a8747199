# SPDX-License-Identifier: Apache-2.0
"""Callers that no release of Debian has, built from their Go modules (tests.support.go_programs).

`python -m tests.callers.programs` builds them and prints their folders (`make callers`): three
minutes of CPU once.
"""

import sys
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from tests.support.go_programs import Program, build

HERE = Path(__file__).parent
BUILDKITD, BUILDCTL = (
    Program(
        name=name,
        source=HERE / "buildkit",
        module="github.com/moby/buildkit",
        package=f"github.com/moby/buildkit/cmd/{name}",
        stamps={"github.com/moby/buildkit/version.Version": "{version}"},
        prefix=f"{name}-",
    )
    for name in ("buildkitd", "buildctl")
)
NERDCTL = Program(
    name="nerdctl",
    source=HERE / "nerdctl",
    module="github.com/containerd/nerdctl/v2",
    package="github.com/containerd/nerdctl/v2/cmd/nerdctl",
    prefix="nerdctl-",
)
CRI_DOCKERD = Program(
    name="cri-dockerd",
    source=HERE / "cri_dockerd",
    module="github.com/Mirantis/cri-dockerd",
    package="github.com/Mirantis/cri-dockerd",
    prefix="cri-dockerd-",
)
PROGRAMS = (BUILDKITD, BUILDCTL, NERDCTL, CRI_DOCKERD)


def path_of(program: Program) -> str:
    """Return the path of a built program.

    Raises:
        ContainerNotPossibleError: it is not built.
    """
    if not program.folder().is_dir():
        raise ContainerNotPossibleError(f"{program.name} is not built", hint="make callers")
    return str(program.folder() / program.name)


if __name__ == "__main__":
    try:
        print(*map(build, PROGRAMS), sep="\n")
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
