# SPDX-License-Identifier: Apache-2.0
"""Stands in for traceback in the static executable, which has no source lines to show."""


def format_exception(error: BaseException) -> list[str]:
    """Return the lines of a traceback, without the source's."""
    lines = ["Traceback (most recent call last):\n"]
    found = error.__traceback__
    while found is not None:
        code = found.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {found.tb_lineno}, in {code.co_name}\n')
        found = found.tb_next
    return [*lines, f"{type(error).__name__}: {error}\n"]
