# SPDX-License-Identifier: Apache-2.0
"""Stands in for json in the static executable, which has only the C scanner."""
