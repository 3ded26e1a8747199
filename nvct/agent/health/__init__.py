# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs and MIG instances: a state machine."""
