# SPDX-License-Identifier: Apache-2.0
"""The delivery by nvct itself: what it loads before it enters a container."""

import subprocess
import sys

LATE = ("container.rootfs.compat", "container.rootfs.libraries", "linux.files", "linux.mountinfo")


def test_modules_that_hooks_import_late_are_there_before_a_user_namespace_hides_their_files() -> (
    None
):
    code = (
        "import sys\nfrom nvct.container.prestart import deliver\ndeliver._load_all()\n"
        f"print([name for name in {LATE} if f'nvct.{{name}}' not in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout == "[]\n"
