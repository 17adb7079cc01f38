"""What several floors need to know about running modules."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """Whether a gradient is being computed: a module that runs now only computes again what was not stored."""
    return torch._C._current_graph_task_id() != -1
