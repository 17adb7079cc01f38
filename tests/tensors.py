"""What tensors a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation returned, and the most bytes behind one."""

    def __init__(self):
        super().__init__()
        self.elements = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and not value.is_meta:
                self.elements = max(self.elements, value.numel())
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result
