# SPDX-License-Identifier: Apache-2.0
"""A bundle that the hook cannot read, as Docker's with userns-remap."""

import json
import os
import warnings
from pathlib import Path

import pytest

from nvct.container.cdi_hook.context import Context
from nvct.container.plan import hook_command as options
from nvct.errors import NvctError

MAPPED = "         0     200000      65536\n"
HOST = "         0          0 4294967295\n"
USER = 65534


def output_inside(tmp_path: Path, ids: str) -> str:
    """Open the root as a user without access to the bundle, with the root as working directory."""
    tmp_path.chmod(0o755)
    rootfs = tmp_path / "closed/bundle/rootfs"
    rootfs.mkdir(parents=True)
    (rootfs / "mark").touch()
    (rootfs.parent / "config.json").write_text('{"root": {"path": "rootfs"}}')
    (tmp_path / "closed").chmod(0o700)
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/uid_map").write_text(ids)
    (proc / "self/root").symlink_to("/")
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(rootfs.parent)}))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread's locks
        pid = os.fork()
    if pid == 0:
        try:
            os.chdir(rootfs)
            for folder in [tmp_path, *tmp_path.parents]:
                if not folder.stat().st_mode & 0o001:
                    folder.chmod(folder.stat().st_mode | 0o001)  # pytest's own are 0700
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            given = options.Options()
            given.given = {"container-spec": [str(state)], "proc-root": [str(proc)]}
            root = Context(given, -1, lambda _text: None).mounts()
            answer = ",".join(root.listdir("/", 10) or [])
        except NvctError as error:
            answer = error.message
        except BaseException as error:
            answer = repr(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


def test_in_a_user_namespace_the_root_is_the_folder_in_which_the_hook_starts(
    tmp_path: Path,
) -> None:
    assert output_inside(tmp_path, MAPPED) == "mark"


def test_outside_a_user_namespace_a_closed_bundle_is_an_error(tmp_path: Path) -> None:
    message = output_inside(tmp_path, HOST)

    assert "config.json" in message
    assert "Permission denied" in message
