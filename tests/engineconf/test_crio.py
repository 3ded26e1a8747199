# SPDX-License-Identifier: Apache-2.0
"""CRI-O's drop-ins against its documented options, and by CRI-O where it is built or on PATH."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nvct.config import toml_file
from nvct.engine import crio
from nvct.engine.model import Files
from nvct.errors import ContainerNotPossibleError
from tests.engineconf.test_corpus import CASES, HERE, Case
from tests.engines import crio_program

SCHEMA = json.loads((HERE / "crio.schema.json").read_text())
TREES = [case for case in CASES if case.engine == "crio"]
HOOKS = "/etc/containers/oci/hooks.d"


def _drop_in(case: Case, root: Path) -> str:
    """Configure everything that CRI-O can be told; return the drop-in."""
    case.lay_out(root)
    options = replace(case.options(), default="nvidia", hooks_dir=HOOKS, spec_dirs=("/opt/cdi",))
    (edit,) = crio.plan(options, Files(str(root))).edits
    path = root / edit.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(edit.after or b"")
    return path.read_text()


def _check(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("case", TREES, ids=lambda case: case.name)
def test_a_drop_in_has_only_documented_options(case: Case, tmp_path: Path) -> None:
    _check(toml_file.parse(_drop_in(case, tmp_path), crio.DROP_IN))


@pytest.mark.parametrize(
    "text",
    [
        '[crio.runtime.runtimes.nvidia]\nruntime_pth = "/x"\nruntime_path = "/x"\n',
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "nvidia-container-runtime"\n',
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\nmonitor_env = "PATH=/bin"\n',
        '[crio.runtimes.nvidia]\nruntime_path = "/x"\n',
        '[crio.runtime]\ndefault_runtime = "nvidia"\n',
    ],
    ids=["misspelt", "relative", "type", "place", "no-handler"],
)
def test_the_schema_refuses_what_cri_o_would_not_take(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        _check(toml_file.parse(text, crio.DROP_IN))


def test_cri_o_itself_takes_every_drop_in(tmp_path: Path) -> None:
    try:
        program = crio_program.folder() / "crio"
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    for number, case in enumerate(TREES):
        root = tmp_path / str(number)
        root.mkdir()
        _drop_in(case, root)
        etc = root / "etc/crio"
        argv = [str(program), f"--config-dir={etc}/crio.conf.d", "config"]
        if (etc / "crio.conf").exists():
            argv.insert(1, f"--config={etc}/crio.conf")
        completed = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        assert completed.returncode == 0, (case.name, completed.stderr)
        for name in ("nvidia", "nvidia-cdi", "nvidia-legacy"):
            assert f"[crio.runtime.runtimes.{name}]" in completed.stdout, case.name
