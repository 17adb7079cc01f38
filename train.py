"""Train any visattn or timm model.

    python train.py --model resnet_cbam                        # on the embedded digits: no data, GPU or network needed
    python train.py --config configs/imagenette.yaml           # a recipe; any flag after it changes it
    python train.py --model convnext_tiny_se --pretrained --data folder --root photographs --epochs 20
    python train.py --resume runs/resnet_cbam-digits           # go on after a crash, Ctrl-C or SIGTERM
    python train.py --help

The story it follows is in visattn/cli/train.py: settings, data, model, trainer, pictures. People who installed the
package without cloning the repository have the same as ``visattn train``.
"""

import os
import signal
import sys
from types import FrameType


def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """End while everything is still being imported, which takes seconds."""
    os.write(sys.stderr.fileno(), b"stopped before training began: nothing to save\n")
    os._exit(128 + number)


if __name__ == "__main__":
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    from visattn.cli.train import main

    for number, handler in before.items():
        signal.signal(number, handler)
    sys.exit(main())
