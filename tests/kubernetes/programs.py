# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' programs and helm, built from their Go modules and kept outside the checkout.

`python -m tests.kubernetes.programs` builds them and prints their folders (`make kubernetes`). The
first build takes about ten minutes of CPU for Kubernetes, two and a half for helm, and 2.5 GB of
Go's build cache; later calls find the programs.
"""

import sys
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from tests.support.go_programs import Program, build

HERE = Path(__file__).parent

# helm and kubectl read the version of Kubernetes from these.
_COMPONENT = "k8s.io/component-base/version"
KUBERNETES = Program(
    name="kubernetes",
    source=HERE / "program",
    module="k8s.io/kubernetes",
    package=".",
    stamps={
        f"{_COMPONENT}.gitVersion": "{version}",
        f"{_COMPONENT}.gitMajor": "{major}",
        f"{_COMPONENT}.gitMinor": "{minor}",
    },
    links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
)
HELM = Program(
    name="helm",
    source=HERE / "helm",
    module="helm.sh/helm/v4",
    package="helm.sh/helm/v4/cmd/helm",
    stamps={"helm.sh/helm/v4/internal/version.version": "{version}"},
    prefix="helm-",
)
PROGRAMS = (KUBERNETES, HELM)


def folders() -> list[Path]:
    """Return the folders with the programs.

    Raises:
        ContainerNotPossibleError: the programs are not built.
    """
    for program in PROGRAMS:
        if not program.folder().is_dir():
            raise ContainerNotPossibleError(f"{program.name} is not built", hint="make kubernetes")
    return [program.folder() for program in PROGRAMS]


if __name__ == "__main__":
    try:
        for each in PROGRAMS:
            print(build(each))
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
