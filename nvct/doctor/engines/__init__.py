# SPDX-License-Identifier: Apache-2.0
"""What the container engines read and run, and how they give GPUs."""
