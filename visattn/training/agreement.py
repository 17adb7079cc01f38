"""What one process was told, all of them have to know."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class Agreement:
    """The largest number that any process has handed in, the same everywhere.

    It goes through the CPUs, so that no device has to wait for it. One process alone agrees with itself.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo") if several else None
        self._number = np.zeros(1, np.int64)
        self._pending: dist.Work | None = None

    def hand_in(self, number: int) -> None:
        """Start to tell the others."""
        self._number[0] = number
        if self._group is not None:
            tensor = torch.from_numpy(self._number)
            self._pending = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def result(self) -> int:
        """What came of the last :meth:`hand_in`; 0 if nothing was handed in since."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        number, self._number[0] = int(self._number[0]), 0
        return number

    def now(self, number: int) -> int:
        """The largest number at this moment; all processes wait for each other."""
        before = self.result()
        self.hand_in(number)
        return max(before, self.result())

    def exchange(self, number: int) -> int:
        """The largest number of the last exchange, which has had the time since then to get around."""
        if self._group is None:
            return number
        agreed = self.result()
        if not agreed:
            self.hand_in(number)
        return agreed
