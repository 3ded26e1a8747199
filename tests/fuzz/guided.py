# SPDX-License-Identifier: Apache-2.0
"""Fuzzing guided by coverage: one child process for each target, as atheris ends its process.

Atheris (PyPI: atheris, Apache-2.0, wheels for CPython 3.11 to 3.13 on x86_64) is optional. It
has libFuzzer's flags; corpus and findings go into the folder that is named.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST = 4096
SECONDS = 10
"""libFuzzer's limit for one input."""


def fuzz(name: str, executions: int, seed: int, folder: Path) -> int:
    """Run a target by atheris in a process of its own; return how many findings there are."""
    findings = folder / name
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nvct-fuzz-corpus-") as corpus:
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", name, corpus,
             f"-atheris_runs={executions}", f"-seed={seed % (1 << 32) or 1}", f"-max_len={MOST}",
             f"-timeout={SECONDS}", f"-artifact_prefix={findings}/"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        kept = len(os.listdir(corpus))
    seconds = time.monotonic() - start
    found = sorted(findings.iterdir())
    bad = len(found) or int(done.returncode != 0)
    print(
        f"{name:8} {executions:9} executions, {kept:8} in corpus, {seconds:7.1f} s, {bad} findings",
        flush=True,
    )
    if bad:
        print(done.stderr[-3000:], *found, sep="\n")
    return bad


def child(argv: list[str]) -> None:
    """Be the process that fuzzes: TARGET CORPUS [libFuzzer's flags]."""
    import atheris  # type: ignore[import-untyped,unused-ignore]  # optional

    with atheris.instrument_imports(include=["nvct"]):
        from tests.fuzz import targets
    from tests.fuzz.outcome import try_one

    target = targets.TARGETS[argv[1]]
    corpus = Path(argv[2])
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed{number}").write_bytes(data)
    dictionary = corpus.with_suffix(".dict")
    dictionary.write_text(
        "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words),
        encoding="ascii",
    )

    def one(data: bytes) -> int:
        return 0 if try_one(target, data) else -1  # -1: not worth a place in the corpus

    atheris.Setup([argv[0], str(corpus), f"-dict={dictionary}", *argv[3:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    child(sys.argv)
