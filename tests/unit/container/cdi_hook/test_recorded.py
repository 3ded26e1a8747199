# SPDX-License-Identifier: Apache-2.0
"""Where a hook records why it failed: in the run directory, or in that of the engine's user."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nvct.container.recorder import NAME, folder_of_hook
from nvct.paths import RUN_DIR
from tests.support.forked import may_unshare
from tests.support.shim_lab import REPOSITORY

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
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c",
         ENTER.format(uid=UID, name=NAME), "sh", *hook],
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/tmp/image"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done
    record = json.loads(done.stdout)
    assert record["outcome"] == "refused"
    assert record["program"] == "nvidia-cdi-hook"
    assert record["took"].endswith(" ms")


def test_root_s_hook_records_in_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    assert folder_of_hook(RUN_DIR, str(tmp_path), root=str(tmp_path)) == RUN_DIR


def test_a_user_without_a_runtime_directory_has_no_other(tmp_path: Path) -> None:
    for users in (str(tmp_path), str(tmp_path / "missing")):
        assert folder_of_hook(RUN_DIR, users, root="/nowhere") == RUN_DIR
