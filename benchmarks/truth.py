"""Score every heatmap method on models of every kind, and write docs/truth.md.

Run: python -m benchmarks.truth                 trains four small models (unless runs/truth has them), scores, writes
     python -m benchmarks.truth vit swin --slow  only these models, with the methods that take many passes, too
     python -m benchmarks.truth --lite0 FILE --photographs FOLDER    the photographs: see docs/truth.md
     python -m benchmarks.truth --table         docs/truth.md from the results that are there

The figures are in benchmarks/results/truth.json. ``auto`` is the quick method with the best mean of "overall" over the
models of a kind: ``tests/test_auto.py`` compares.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import visattn
from benchmarks.truth_table import write_table
from visattn.data.images import find_images
from visattn.data.preparation import Preparation
from visattn.heatmaps import METHODS, list_methods
from visattn.heatmaps.auto import kind_of
from visattn.opening import open_model, own_preparation
from visattn.scoring.engine import Engine
from visattn.scoring.faithfulness import FAITHFULNESS
from visattn.scoring.fills import black_of
from visattn.scoring.localisation import LOCALISATION
from visattn.scoring.mosaics import CONFIDENT, make_mosaics
from visattn.scoring.pictures import load_pictures
from visattn.scoring.ranking import Ranking
from visattn.scoring.statistics import bootstrap

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "truth.json"
RUNS = Path("runs") / "truth"
IMAGES, MOSAICS, STEPS = 32, 16, 8
CELLS = 16  # the most rows and columns of a map
FILLS = ("blur", "mean", "black")

# How the small models are trained, all on the cluttered digits.
TRAINING = {
    "resnet18_cbam": ["--model", "resnet_cbam"],
    "vit": [
        "--model", "vit_tiny_patch16_224", "--image-size", "64", "--epochs", "30", "--lr", "1e-3", "--batch-size", "32",
        "--warmup-epochs", "2", "--model-options", "{patch_size: 8, embed_dim: 128, depth: 6, num_heads: 4}",
    ],
    "swin": [
        "--model", "swin_tiny_patch4_window7_224", "--image-size", "64", "--epochs", "16", "--lr", "1e-3",
        "--batch-size", "32", "--warmup-epochs", "2", "--model-options",
        "{patch_size: 4, window_size: 4, embed_dim: 48, depths: [2, 2, 4], num_heads: [2, 4, 8], drop_path_rate: 0.0}",
    ],
    "convnext": [
        "--model", "convnext_atto", "--image-size", "64", "--epochs", "10", "--lr", "2e-3", "--batch-size", "32",
        "--warmup-epochs", "1", "--model-options", "{patch_size: 2, depths: [2, 2, 4, 2]}",
    ],
}  # fmt: skip


def ways(model: nn.Module, example: Tensor, *, slow: bool) -> dict[str, dict[str, Any]]:
    """Every method that fits, with what it may explain and with balanced gradients, by a name for the table."""
    found: dict[str, dict[str, Any]] = {}
    for name in list_methods(model, example):
        method = METHODS[name]
        if method.slow and not slow:
            continue
        for of in ("logit", "log_probability") if method.of_class and not method.slow else ("logit",):
            for balanced in (False, True) if "balanced" in method.options() and not method.slow else (False,):
                words = [name, *(["of log p"] if of != "logit" else []), *(["balanced"] if balanced else [])]
                found[", ".join(words)] = {"method": name, "of": of} | ({"balanced": True} if balanced else {})
    return found


def at_one_resolution(maps: Tensor) -> Tensor:
    """(B, h, w), averaged over cells if it is finer than the others: single pixels would be another question."""
    size = min(CELLS, maps.shape[1]), min(CELLS, maps.shape[2])
    return F.adaptive_avg_pool2d(maps[:, None].float(), size)[:, 0]


def scored(
    model: nn.Module, images: Tensor, masks: Tensor | None, preparation: Preparation, *, slow: bool
) -> dict[str, Any]:
    """What stands in the results about one model."""
    engine = Engine(model, images, black=black_of(preparation), batch_size=32)
    mosaics = make_mosaics(model, engine, most=MOSAICS)
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for name, arguments in ways(model, images[:1], slow=slow).items():
        start = time.perf_counter()
        try:
            maps, mosaic_maps = (
                torch.cat([visattn.explain(model, x, target=y, **arguments).raw for x, y in batches])
                for batches in (
                    zip(images.split(16), engine.target.split(16), strict=True),
                    zip(mosaics.images.split(8), mosaics.target.split(8), strict=True),
                )
            )
        except ValueError as error:
            left_out.append((name, str(error)))
            continue
        ranking = Ranking(at_one_resolution(maps))
        srg = {fill: FAITHFULNESS["srg"](engine, ranking, fill, STEPS) for fill in FILLS}
        where = {"GridPG": mosaics.score(Ranking(mosaic_maps))}
        if masks is not None:
            where |= {each: LOCALISATION[each](ranking, masks).float() for each in ("pointing", "energy")}
        row = {"name": name, "slow": METHODS[arguments["method"]].slow, **summary(srg, where)}
        rows.append(row)
        print(f"{row} {time.perf_counter() - start:.0f} s", flush=True)
    rows.sort(key=lambda row: -row["overall"])
    found = {"kind": kind_of(model, images[:1]), "images": len(images), "mosaics": len(mosaics.images)}
    return {**found, "rows": rows, "left_out": left_out}


def summary(srg: dict[str, Tensor], where: dict[str, Tensor]) -> dict[str, Any]:
    """The mean of every score, their overall mean, and its interval over images and over mosaics.

    Args:
        srg: by fill, (images,).
        where: scores of localisation, (images,), or (mosaics,) for GridPG.
    """
    of_mosaics = where["GridPG"] / (2 * len(where))
    others = [each / (2 * len(where)) for name, each in where.items() if name != "GridPG"]
    of_images = torch.stack([*(each / (2 * len(srg)) for each in srg.values()), *others]).sum(0)
    parts = [bootstrap(each.numpy()) for each in (of_images, of_mosaics)]
    overall = sum(each.mean for each in parts)
    low = overall - math.hypot(*(each.mean - each.low for each in parts))
    high = overall + math.hypot(*(each.high - each.mean for each in parts))
    scores = {f"SRG {fill}": float(each.mean()) for fill, each in srg.items()}
    scores |= {name: float(each.mean()) for name, each in where.items()}
    return {"scores": scores, "overall": overall, "interval": [low, high]}


def train(name: str) -> Path:
    """The folder of a trained model, which is trained if it is not there."""
    folder = RUNS / name
    if not (folder / "model.json").is_file():
        command = [sys.executable, "train.py", *TRAINING[name], "--out", str(RUNS), "--name", name]
        subprocess.run(command, check=True, cwd=HERE.parent)
    return folder


def on_digits(name: str, *, slow: bool) -> dict[str, Any]:
    trained, preparation = open_model(None, str(train(name)), None)
    pictures = load_pictures("digits", None, lambda: preparation, IMAGES, print)
    return scored(trained.model.eval(), pictures.inputs, pictures.masks, preparation, slow=slow)


def on_photographs(weights: Path, folder: Path) -> dict[str, Any]:
    """EfficientNet-Lite0 on photographs that it is sure of."""
    model = timm.create_model("tf_efficientnet_lite0").eval()
    tensors = torch.load(weights, map_location="cpu", weights_only=True).values()
    model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))
    preparation = own_preparation(model)
    pictures = load_pictures(find_images([str(folder)])[0], None, lambda: preparation, 10**6, print)
    with torch.no_grad():
        sure = torch.cat([model(each).softmax(1).amax(1) for each in pictures.inputs.split(8)]) >= CONFIDENT
    return scored(model, pictures.inputs[sure], None, preparation, slow=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*TRAINING, []], help="all unless given")
    parser.add_argument("--lite0", type=Path, metavar="FILE", help="weights of EfficientNet-Lite0, in timm's order")
    parser.add_argument("--photographs", type=Path, metavar="FOLDER")
    parser.add_argument("--slow", action="store_true", help="also the methods that take many passes per image")
    parser.add_argument("--table", action="store_true", help="only write docs/truth.md")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"models": {}}
    if arguments.photographs is not None:
        found = on_photographs(arguments.lite0, arguments.photographs)
        results = save(results, "efficientnet_lite0, photographs", found)
    elif not arguments.table:
        for name in arguments.models or TRAINING:
            results = save(results, f"{name}, digits", on_digits(name, slow=arguments.slow))
    write_table(results, HERE.parent / "docs" / "truth.md")


def save(results: dict[str, Any], title: str, found: dict[str, Any]) -> dict[str, Any]:
    """The results with those of one more model, written to their file."""
    results["models"][title] = found
    results["versions"] = {"torch": torch.__version__, "timm": timm.__version__}
    threads = torch.get_num_threads()
    results["machine"] = f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, no GPU"
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
