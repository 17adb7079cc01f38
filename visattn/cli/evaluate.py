"""``visattn evaluate``: are the heatmaps of a model true?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from visattn.cli.inputs import DONE, NOTHING, PARTLY, LeftOut, listed, model_command, named_model, progress
from visattn.files import say

EPILOG = f"""\
examples:
  visattn evaluate --weights runs/resnet_cbam-digits
  visattn evaluate --model vit_small_patch16_224 --data photographs/ --methods rollout,chefer,gradcam --metrics all
  visattn evaluate --model resnet50 --data JPEGImages/ --masks Annotations/ --metrics localisation,srg

metrics, single ones or kinds of them:
  faithfulness    srg (the headline), morf, lerf, insertion, deletion, positive, negative, road, saco, drop, increase
  localisation    with masks: pointing, energy, mass, rank, iou; without: gridpg (mosaics of four images)
  sanity          randomisation, other_class, sensitivity
  cost            passes, seconds

written to --out:
  index.html      the table; a click on a method shows its best and its worst images
  scores.csv      means, bootstrap intervals, and differences to random, center and edge
  scores.json     the same, and the numbers of every image
  curves.png      the answer while the most, and while the least relevant parts are removed first

exit codes:
  {DONE}  everything was scored
  {PARTLY}  something was left out; stderr says what and why
  {NOTHING}  wrong usage, or nothing could be scored
"""


def add_command(commands: Any) -> None:
    """Enter the command into the parser."""
    parser = model_command(commands, "evaluate", "score heatmaps, to know whether they are true", EPILOG, batch_size=32)
    parser.add_argument(
        "--data", metavar="WHAT", nargs="+", default=["digits"], help="digits (with masks), files and folders [digits]"
    )
    parser.add_argument("--masks", metavar="FOLDER", help="pictures of masks or Pascal VOC's .xml, named as the images")
    parser.add_argument("--methods", metavar="A,B", help="see visattn.list_methods [all quick ones that fit]")
    parser.add_argument(
        "--metrics", metavar="A,B", default="faithfulness,localisation,cost", help="scores, kinds of scores, or all"
    )
    parser.add_argument(
        "--balanced", action="store_true", help="balanced gradients, for the methods that have the choice"
    )
    parser.add_argument("--number", metavar="N", type=int, default=64, help="images, at most [64]")
    parser.add_argument("--fill", metavar="NAME", default="blur", help="blur, mean, black, neighbours or linear [blur]")
    parser.add_argument("--steps", metavar="N", type=int, default=10, help="of a curve [10]")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of whatever is random [0]")
    parser.add_argument("--out", metavar="FOLDER", default="scores", help="where to write [scores]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Score the heatmaps."""
    from visattn.heatmaps.methods.base import check_method
    from visattn.report.folder import make_folder
    from visattn.scoring.evaluation import evaluate
    from visattn.scoring.fills import FILLS
    from visattn.scoring.metrics import chosen_metrics
    from visattn.scoring.result import MAKER, RESULT

    # Whatever can be wrong with the request is said before anything is computed.
    left_out = LeftOut()
    methods, metrics = listed(arguments.methods, "--methods"), listed(arguments.metrics, "--metrics")
    for name in methods or ():
        check_method(name)
    chosen_metrics(metrics or ())
    FILLS[arguments.fill]
    make_folder(Path(arguments.out), RESULT, MAKER)
    trained, preparation = named_model(arguments)
    with progress() as track:
        found = evaluate(
            trained,
            arguments.data[0] if arguments.data == ["digits"] else arguments.data,
            methods,
            metrics or (),
            masks=arguments.masks,
            number=arguments.number,
            fill=arguments.fill,
            steps=arguments.steps,
            balanced=arguments.balanced,
            preparation=preparation,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
            note=left_out.add,
            track=track,
        )
    page = found.save(arguments.out)
    say(found)
    say(page)
    return left_out.code
