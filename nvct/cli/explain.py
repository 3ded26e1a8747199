# SPDX-License-Identifier: Apache-2.0
"""Command: nvct explain. Options, call and print; `nvct.doctor.explanation` has the logic."""

from __future__ import annotations

import json
import os
import sys

import click
from click.shell_completion import CompletionItem

from nvct import paths
from nvct.cli import explain_container, screen
from nvct.cli.cluster import KUBECONFIG, explain_pod
from nvct.cli.options import container_names, driver_release, format_option, show
from nvct.config.model import without_choice
from nvct.doctor import explanation, messages
from nvct.doctor.messages import Found
from nvct.doctor.reasons import Reason
from nvct.errors import UsageError, printable
from nvct.oci import bundle as bundles
from nvct.oci.bundle import Bundle

LIMIT = 64 << 20


def _words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    reasons = (name for name in Reason.__members__ if incomplete and name.startswith(incomplete))
    names = [*container_names(ctx, param, incomplete), *reasons]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


@click.command()
@click.argument(
    "config_json", required=False, shell_complete=_words,
    metavar="[CONFIG_JSON | CONTAINER | POD | MESSAGE | REASON]",
)  # fmt: skip
@click.option("--bundle", help="Folder of an OCI bundle, instead of its CONFIG_JSON.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE",
              help="Explain this request, without a container.")  # fmt: skip
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=VALUE",
              help="Same, as an annotation.")  # fmt: skip
@click.option("--mount", "mounts", multiple=True, metavar="DEST",
              help=f"Same, as a mount of /dev/null below {paths.VOLUME_MOUNT_ROOT}.")  # fmt: skip
@click.option("--privileged", is_flag=True, help="Same, for a container with CAP_SYS_ADMIN.")
@click.option("--program", type=click.Choice(paths.SHIM_PROGRAMS), default=paths.SHIM_PROGRAM,
              show_default=True, help="The runtime that the engine calls.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="List all that would be injected.")
@click.option("--namespace", "-n", default="", help="POD's namespace.")
@KUBECONFIG
@format_option("text")
def explain(
    *,
    config_json: str | None,
    bundle: str | None,
    env: tuple[str, ...],
    annotations: tuple[str, ...],
    mounts: tuple[str, ...],
    privileged: bool,
    program: str,
    everything: bool,
    namespace: str,
    kubeconfig: str,
    form: str,
) -> None:
    """Print what a container would get, and why; change nothing.

    CONFIG_JSON is an OCI bundle's config.json, or - for stdin. The exit status is 1 if the
    container could not be created. Run it as the user of the engine: it reads the config.toml and
    the plans of the user who runs it, and policy rules test the uid.

    CONTAINER is the name, id or process of a container of this host. The output has the request
    and where it came from, the policy's decision, what was added to the container and what was
    left out, the time of each step, and the container's GPUs. A container that was refused or has
    ended is found by its id. A line `unknown` says what could not be found out.

    POD is NAMESPACE/NAME, or a name with --namespace. The output says which devices the pod has
    and which expression chose each, or why the pod waits. The API server is asked.

    MESSAGE is what a program printed, in quotes, or a whole log on stdin with -. The output has
    the cause of each known message, and what to do. nvct knows messages of itself, Docker,
    containerd, CRI-O, runc, crun, the kubelet, NVIDIA's driver and programs, NVML, CUDA, PyTorch
    and NCCL.

    REASON is a reason's name, such as DriverNotLoaded, or an error's code, such as bad-config. The
    output says what is checked, and what to do.

    Example: nvct explain --env NVIDIA_VISIBLE_DEVICES=0
    """
    data = sys.stdin.buffer.read(LIMIT) if config_json == "-" else b""
    standard_input = data.decode("utf-8", "surrogateescape")
    kind = "pod" if namespace else _kind(config_json, standard_input)
    if config_json and kind != "bundle":
        if kind == "message":
            _explain_message(standard_input or config_json, form)
        elif kind == "reason":
            _explain_reason(config_json, form)
        elif kind == "pod":
            owner, _, name = config_json.rpartition("/")
            explain_pod(namespace or owner, name, kubeconfig, form)
        else:
            _explain_container(config_json, form)
        return
    words = bool(env or annotations or mounts)
    _refuse_mixture(config_json, bundle, words=words, privileged=privileged)
    if words:
        _need_values("--env", "NAME=VALUE", env)
        _need_values("--annotation", "KEY=VALUE", annotations)
        asked = dict(one.split("=", 1) for one in annotations)
        found = explanation.of_words(list(env), asked, list(mounts), privileged=privileged)
    elif config_json == "-":
        found = Bundle("standard input", standard_input)
    else:
        found = bundles.load(config_json or bundles.config_path(bundle or ""))
    surroundings = without_choice(dict(os.environ))
    named = click.get_current_context().meta.get("nvct.config")
    if named:
        surroundings[paths.CONFIG_ENV] = os.path.abspath(named)
    document = explanation.explain(found, program, surroundings, driver_release)
    lines = explain_container.text(document, everything=everything, width=screen.columns())
    show(form, document, [lines])
    if document["error"]:
        sys.exit(1)


def _explain_container(word: str, form: str) -> None:
    try:
        explain_container.explain_existing(word, form)
    except UsageError as error:
        error.hint = _similar(word) or error.hint
        raise


def _explain_message(text: str, form: str) -> None:
    """Print the cause of each known message in a text, and what to do."""
    found = messages.explained(text)
    if all(one.message.is_general for one in found) and (own := messages.message_of(text)):
        found = [Found(own, 1, 1)]
    if not found:
        raise UsageError(
            "this is not a known message about GPUs", hint="`sudo nvct doctor` checks the host"
        )
    texts = (_message_text(one, is_log="\n" in text.strip()) for one in found)
    shown = {"messages": [one.to_dict() for one in found]}
    show(form, shown, map(printable, "\n\n".join(texts).split("\n")))


def _explain_reason(name: str, form: str) -> None:
    reason = Reason[name]
    paragraphs = (
        ("", f"{name}: {reason.question} The answer is no."),
        ("  looks at: ", reason.evidence),
        ("  do: ", reason.remedy),
    )
    document = {
        "reason": name,
        "question": reason.question,
        "evidence": reason.evidence,
        "remedy": reason.remedy,
    }
    width = screen.columns()
    show(form, document, (text for each in paragraphs for text in screen.wrapped(*each, width)))


def _message_text(found: Found, *, is_log: bool) -> str:
    message = found.message
    times = f", {found.times} times" if found.times > 1 else ""
    lines = [f"line {found.line}{times}"] if is_log else []
    width = screen.columns()
    lines += screen.wrapped("", printable(f"{message.source}: {message.cause}"), width)
    lines += screen.wrapped("  do: ", printable(message.remedy), width)
    if message.reason:
        lines.append(f"  reason: {message.reason.name}")
    return "\n".join(lines)


def _refuse_mixture(
    config_json: str | None, bundle: str | None, *, words: bool, privileged: bool
) -> None:
    """Refuse a command line that names more than one thing to explain, or none."""
    given = sum((config_json is not None, bundle is not None, words))
    if given != 1 or "" in (config_json, bundle) or (privileged and not words):
        raise UsageError(
            "explain takes one thing: a file, container, pod, message, reason, bundle or request",
            hint="for example nvct explain --env NVIDIA_VISIBLE_DEVICES=0",
        )


def _need_values(option: str, metavar: str, words: tuple[str, ...]) -> None:
    for one in words:
        if "=" not in one:
            raise UsageError(f"{option} {one!r} is not {metavar}")


def _kind(word: str | None, standard_input: str) -> str:
    """Return what a word names: a bundle, a message, a reason, a pod, or a container."""
    if not word or os.path.lexists(word):
        return "bundle"
    if word == "-":
        return "message" if _is_log(standard_input) else "bundle"
    if word in Reason.__members__:
        return "reason"
    if any(map(str.isspace, word)) or messages.explained(word) or messages.message_of(word):
        return "message"
    if word.endswith(".json") or word.startswith(("/", ".")):
        return "bundle"
    return "pod" if word.count("/") == 1 and all(word.split("/")) else "container"


def _similar(word: str) -> str:
    import difflib  # 4 ms

    kinds = {
        **dict.fromkeys(Reason.__members__, "reason"),
        **dict.fromkeys(messages.codes(), "code"),
    }
    similar = difflib.get_close_matches(word, kinds, 1, cutoff=0.8)
    return f"did you mean the {kinds[similar[0]]} {similar[0]}?" if similar else ""


def _is_log(text: str) -> bool:
    """Report whether a text is a log of programs, not a config.json; a log can be JSON, too."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return '"ociVersion"' not in text and bool(messages.explained(text))
