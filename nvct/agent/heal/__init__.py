# SPDX-License-Identifier: Apache-2.0
"""GPUs that have failed are healed without a person: off by default."""
