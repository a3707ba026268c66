"""A module of kernels whose import does not come to an end."""

from __future__ import annotations

import threading

threading.Event().wait()
