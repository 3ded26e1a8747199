# SPDX-License-Identifier: Apache-2.0
"""Why containers get no GPU: the reasons, the checks that find them, and their mends."""
