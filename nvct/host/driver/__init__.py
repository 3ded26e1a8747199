# SPDX-License-Identifier: Apache-2.0
"""The driver's files: libraries, programs, firmware, configuration."""
