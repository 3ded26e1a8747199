# SPDX-License-Identifier: Apache-2.0
"""Why a GPU cannot be had: the reasons, the checks that find them, and their mending."""
