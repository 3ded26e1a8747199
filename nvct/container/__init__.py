# SPDX-License-Identifier: Apache-2.0
"""What happens to a container, hot: `decide` decides what it gets, programs deliver that."""
