# SPDX-License-Identifier: Apache-2.0
"""What tasks and programs are made of: settings, context, log, back-off, /status."""
