# SPDX-License-Identifier: Apache-2.0
"""The contract of the program: failures, successes, messages, and where they are recorded."""

import json
import os
from pathlib import Path

import pytest

from nvct.container.cdi_hook.main import HOOKS, main
from nvct.container.recorder import NAME
from nvct.doctor import decisions
from nvct.errors import LINE_LIMIT
from nvct.version import TOOLKIT_VERSION, __version__
from tests.support.containers import Container, run_hook
from tests.support.forked import may_unshare
from tests.support.processes import captured
from tests.support.shim_lab import REPOSITORY


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        ([], "no CDI hook specified"),
        (["--unheard-of"], "no CDI hook specified"),
        (["new-hook"], "unsupported CDI hook: new-hook"),
        (["new\nhook"], "unsupported CDI hook: new\\nhook"),
    ],
)
def test_a_hook_of_another_version_is_a_warning(
    arguments: list[str], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0

    assert capsys.readouterr().err == f"nvidia-cdi-hook: warning: {warning}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create-symlinks", "--nonsense"], "unknown flag --nonsense [usage]"),
        (["--nonsense", "create-symlinks"], "unknown flag --nonsense [usage]"),
        (["update-ldcache", "--folder"], "flag --folder needs a value [usage]"),
        (["apply", "--mask-params=maybe"], "--mask-params is 'maybe', not true or false [usage]"),
        (["chmod", "--mode", "9"], "--mode is '9', not an octal number such as 755 [usage]"),
        (["chmod", "--path", "/x"], "--mode is '', not an octal number such as 755 [usage]"),
        (["create-symlinks", "--link", "a:b"], "--link 'a:b' is not TARGET::LINK [usage]"),
    ],
)
def test_a_wrong_command_line_of_a_known_hook_fails(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1

    assert capsys.readouterr().err == f"nvidia-cdi-hook: {message}\n"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"", "the container's state is not JSON: a value is missing at 0"),
        (b"[]", "the container's state is not a JSON object"),
        (b"{}", "the container's state names no bundle"),
        (b'{"bundle":"x"}', "the container's state has the relative path 'x'"),
        (b'{"root":"."}', "the container's state names no bundle"),
        (b'{"bundle":7}', "the container's state has a bundle that is not a string"),
        (b'{"bundle":"/nonexistent"}', "cannot read /nonexistent/config.json: No such file or"),
        (b'{"bundle":"/x"} {}', "the container's state is not JSON: something follows its end"),
    ],
)
def test_a_state_that_names_no_root_fails(
    state: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_hook("update-application-profile", state=state) == 1

    shown = capsys.readouterr().err
    assert shown.startswith(f"nvidia-cdi-hook: {message}")
    assert shown.endswith("[bad-bundle]\n")
    assert len(shown) <= LINE_LIMIT + 1


@pytest.mark.parametrize("config", [{}, {"root": {}}, {"root": {"path": ""}}, {"root": None}])
def test_a_config_without_root_path_fails(
    container: Container, config: object, capsys: pytest.CaptureFixture[str]
) -> None:
    container.write_config(config)

    assert container.hook("update-application-profile") == 1
    assert "config.json has no root.path" in capsys.readouterr().err


def test_the_hosts_root_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_hook("update-application-profile", state=b'{"root":"/../"}') == 1

    assert "the container's root is the host's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ({"root": {"path": "{root}"}}, None),
        (None, {"root": "{root}", "bundle": "/nonexistent"}),
        (None, {"root": "rootfs", "bundle": "{bundle}"}),  # as crun 1.8 writes it
    ],
    ids=["absolute in config.json", "in the state", "relative in the state"],
)
def test_the_root_is_the_states_or_that_of_config_json(
    container: Container, config: object, state: dict[str, str] | None
) -> None:
    places = {"{root}": str(container.root), "{bundle}": str(container.bundle)}
    if config:
        container.write_config({"root": {"path": str(container.root)}})
    else:
        (container.bundle / "config.json").unlink()
    given = state and {key: places.get(value, value) for key, value in state.items()}

    assert container.hook("create-symlinks", "--link", "a::/b", state=given) == 0
    assert container.tree() == {"b": "-> a"}


def test_an_endless_state_is_refused(
    container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    state = container.bundle / "state.json"
    state.write_bytes(b" " * (2 << 20))

    with state.open("rb") as file:
        assert main(["update-application-profile"], file.fileno()) == 1
    assert "longer than 1048576 bytes" in capsys.readouterr().err


VERSIONS = f"NVIDIA CDI Hook version {TOOLKIT_VERSION}\nnvct: {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *((words.split(), "update-ldcache") for words in ("--help", "help", "-h", "-h noop")),
        *((["chmod", word], "usage: nvidia-cdi-hook chmod ") for word in ("help", "h", "--help")),
        (["--version"], VERSIONS),
        (["noop"], ""),
    ],
)
def test_help_version_and_noop_read_no_state(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, -1) == 0

    text = capsys.readouterr().out
    if said in ("", VERSIONS):
        assert text == said
    elif arguments[0] == "chmod":
        assert text.startswith(said)
    assert said in text


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_has_help_with_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"], -1) == 0

    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: nvidia-cdi-hook {name}")
    assert all(f"--{flag}" in shown for flag in HOOKS[name])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--debug", "noop"], ["noop", "--debug"], ["noop", "-d", "--quiet=true"],
        ["noop", "extra", "--quiet"], ["--quiet=false", "noop", "x", "y"], ["--", "noop"],
        ["noop", "--", "--nosuch"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_keys_that_the_incumbent_ignores_are_ignored(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr() == ("", "")


STATE = b'{"ociVersion": "1.0.2", "bundle": "/b/\\u001b[31m%s"}' % (b"x" * 9000)


@pytest.mark.parametrize(
    ("words", "state", "bundle", "error"),
    [
        (["create-symlinks", "--nonsense"], STATE, ".", "unknown flag --nonsense"),
        (["create-symlinks", "--link=a::/b"], b"[]", ".", "the container's state is not a JSON"),
        (["create-symlinks", "--link=a::/b"], STATE, "/b/\x1b[31mxx", "cannot read /b/"),
    ],
)
def test_why_a_hook_failed_is_recorded(
    tmp_path: Path, words: list[str], state: bytes, bundle: str, error: str
) -> None:
    reading, writing = os.pipe()
    os.write(writing, state)
    os.close(writing)
    folder = str(tmp_path / "run")

    assert main(words, reading, run_dir=folder) == 1

    os.close(reading)
    (record,) = decisions.look([folder]).records
    assert (record["outcome"], record["program"]) == ("refused", "nvidia-cdi-hook")
    assert record["bundle"].startswith(bundle)
    assert record["error"].startswith(error)


def test_a_hook_that_succeeds_or_cannot_record_leaves_nothing(
    container: Container, tmp_path: Path
) -> None:
    container.file("/b")
    (tmp_path / "file").touch()
    state = tmp_path / "state.json"
    state.write_text(f'{{"bundle": "{container.bundle}"}}')
    words = ["create-symlinks", f"--container-spec={state}"]

    assert main([*words, "--link=a::/c"], -1, run_dir=str(tmp_path / "run")) == 0
    assert not (tmp_path / "run").exists()
    assert main([*words, "--link=a:b"], -1, run_dir=str(tmp_path / "file/run")) == 1


def test_a_flag_after_a_word_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["create-symlinks", "word", "--link=a::/b", "--container-spec=/nonexistent"]
    assert main(words, -1) == 1
    assert "/nonexistent" in capsys.readouterr().err


# Where a hook records why it failed: in the run directory, or in that of the engine's user.


UID = 5001
HOOK = "import sys; sys.path.insert(0, {0!r}); from nvct.container.cdi_hook.launch import main; main('')"
ENTER = """\
set -e
mount -t tmpfs -o mode=755 none /run
mkdir /run/user
mkdir -m 700 /run/user/{uid} /run/user/4242
chown {uid}:{uid} /run/user/{uid}
setpriv --reuid {uid} --regid {uid} --clear-groups unshare --user --map-root-user "$@" < /dev/null || true
cat /run/user/{uid}/nvct/{name}
"""


@pytest.mark.skipif(not may_unshare(), reason="needs CAP_SYS_ADMIN")
def test_a_hook_of_a_user_s_engine_records_in_the_user_s_folder() -> None:
    """As an engine starts it: as root of a user namespace, with the variables of an image."""
    code = HOOK.format(str(REPOSITORY))
    python = ["/usr/bin/python3", "-I", "-S", "-c", code]  # one that the user may execute
    hook = [*python, "nvidia-cdi-hook", "chmod", "--no-such-flag"]
    done = captured(
        ["unshare", "--mount", "--propagation=private", "sh", "-c",
         ENTER.format(uid=UID, name=NAME), "sh", *hook],
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/tmp/image"}, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done
    record = json.loads(done.stdout)
    assert record["outcome"] == "refused"
    assert record["program"] == "nvidia-cdi-hook"
    assert record["took"].endswith(" ms")


@pytest.mark.parametrize(
    ("state", "wrong"), [({"pid": 1, "bundle": "/b"}, "pid 1"), ({"pid": 5}, "bundle None")]
)
def test_leases_are_kept_for_a_container_with_process_and_bundle(
    state: dict[str, object], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    path.write_text(json.dumps(state), encoding="utf-8")
    with path.open() as file:
        status = main(
            ["keep-leases", f"--folder={tmp_path}", "--holder=1.1", "--count=1"], file.fileno()
        )

    assert status == 1
    assert f"the container's state has the {wrong};" in capsys.readouterr().err
