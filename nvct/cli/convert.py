# SPDX-License-Identifier: Apache-2.0
"""Command: nvct convert."""

from __future__ import annotations

import click

from nvct.cli.context import say


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--claims", is_flag=True,
              help="Ask by ResourceClaims (DRA) in place of limits.")  # fmt: skip
def convert(*, file: str, claims: bool) -> None:
    """Turn manifests of NVIDIA's Kubernetes 1.9 into manifests of today; explain each change.

    FILE has pods, or objects that make pods; - is stdin. The manifests go to stdout, without
    their comments; what was changed goes to stderr. With --claims, limits of nvidia.com/gpu and
    nvidia.com/mig-* become ResourceClaims, and conditions on labels of GPUs conditions of these.

    Example: nvct convert gpu-pod.yml | kubectl create -f -
    """
    from nvct.agent.manifests import convert as manifests
    from nvct.agent.manifests import convert_claims, manifest_file

    documents = manifest_file.load_all("/dev/stdin" if file == "-" else file)
    templates = convert_claims.Templates(documents)
    converted = []
    for document in documents:
        result, changes = manifests.convert(document)
        results = [result]
        if claims:
            results, more = convert_claims.convert(result, templates)
            changes += more
        converted += results
        for change in changes:
            say(change)
    click.echo(manifest_file.dump_all(converted), nl=False)
