# SPDX-License-Identifier: Apache-2.0
"""`nvct doctor --fix` and `--undo`: what is changed, and how it is taken back."""
