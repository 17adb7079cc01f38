"""Share what one process was told with all the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class Agreement:
    """The largest number handed in by any process, the same everywhere.

    It is exchanged over the CPUs, so that no device has to wait. A single process agrees with itself.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo") if several else None
        self._number = np.zeros(1, np.int64)
        self._pending: dist.Work | None = None

    def hand_in(self, number: int) -> None:
        """Start telling the others."""
        self._number[0] = number
        if self._group is not None:
            tensor = torch.from_numpy(self._number)
            self._pending = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def result(self) -> int:
        """Result of the last :meth:`hand_in`; 0 if nothing has been handed in since."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        number, self._number[0] = int(self._number[0]), 0
        return number

    def now(self, number: int) -> int:
        """Agree on the largest number right now; all processes wait for each other."""
        before = self.result()
        self.hand_in(number)
        return max(before, self.result())

    def exchange(self, number: int) -> int:
        """Hand in a number and return the largest one of the previous exchange, which has had time to complete."""
        if self._group is None:
            return number
        agreed = self.result()
        if not agreed:
            self.hand_in(number)
        return agreed
