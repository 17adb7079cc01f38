"""Train any visattn or timm model.

    python train.py --model resnet_cbam                        # on the bundled digits: no data, GPU or network needed
    python train.py --config configs/imagenette.yaml           # a recipe; later flags override it
    python train.py --model convnext_tiny_se --pretrained --data folder --root photographs --epochs 20
    python train.py --resume runs/resnet_cbam-digits           # resume after a crash, Ctrl-C or SIGTERM
    python train.py --help

The run itself is in visattn/training/train.py: data, model, trainer, pictures. If you installed the package without
cloning the repository, use ``visattn train`` instead.
"""

import os
import sys

from visattn_command import begin

if __name__ == "__main__":
    begin("train.py")
    from visattn.cli.train import main

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]  # nothing else is imported from this folder
    sys.exit(main())
