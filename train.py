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

from visattn_command import check_environment, check_folder, leaving_at_once

if __name__ == "__main__":
    check_folder("train.py")
    check_environment("train.py")
    with leaving_at_once(b"stopped before training began: nothing to save\n"):
        from visattn.missing import MissingPackage, saying_what_to_install

        try:
            with saying_what_to_install():
                from visattn.cli.train import main
        except MissingPackage as error:
            sys.exit(f"train.py: {error}")
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # nothing else is imported from this folder
    sys.exit(main())
