"""Does a policy learn where to look? RAM against a random policy with as many glimpses, three seeds each.

Run: python benchmarks/where_to_look.py --out runs/where [--root data] [--only mnist]

Trains whatever is not yet in ``--out`` (about five minutes per run on digits and twenty on the MNISTs, on one core),
then writes the table of all runs found there into docs/hard_attention.md and draws docs/where_it_looks.png.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from visattn.data.digits import Difficulty
from visattn.data.readers import Source
from visattn.data.sources import open_source
from visattn.hard import RAM
from visattn.heatmaps import on_mask
from visattn.models.saving.saved import open_trained
from visattn.report.heatmaps import Answer
from visattn.report.paths import draw_paths
from visattn.report.views import Fixations

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "hard_attention.md", ROOT / "docs" / "where_it_looks.png"
MARK = "<!-- table: made by benchmarks/where_to_look.py -->"
SEEDS = (0, 1, 2)
POLICIES = ("learned", "random")
BATCH = 500
SAMPLES = 10  # paths per image, for the second error


@dataclass(frozen=True)
class Task:
    """A data set, and the config that trains on it."""

    name: str
    config: str
    size: int
    data: str = "digits"
    difficulty: Difficulty = "cluttered"
    random_epochs: int | None = None  # of the random policy, when it is given fewer

    def source(self, root: str | None) -> Source:
        """The images."""
        source = open_source(self.data, root=root, difficulty=self.difficulty)
        assert isinstance(source, Source)
        return source


TASKS = (
    Task("translated digits", "hard_digits", 12, difficulty="translated"),
    Task("cluttered digits", "hard_digits", 12),
    Task("MNIST", "ram_mnist", 8, "mnist", random_epochs=60),
    Task("Fashion-MNIST", "ram_fashion", 8, "fashion_mnist", random_epochs=60),
)


def folder(out: Path, task: Task, policy: str, seed: int) -> Path:
    return out / f"{task.name}-{policy}-{seed}".replace(" ", "-").lower()


def train(task: Task, policy: str, seed: int, out: Path, root: str | None) -> None:
    """Train one run with the ordinary command."""
    run = folder(out, task, policy, seed)
    command = [
        sys.executable, str(ROOT / "train.py"), "--config", str(ROOT / "configs" / f"{task.config}.yaml"),
        "--model-options", f"{{glimpses: 6, size: {task.size}, policy: {policy}}}", "--seed", str(seed),
        "--difficulty", task.difficulty, "--out", str(run.parent), "--name", run.name, "--film-every", "0",
        "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--resume",
        *(["--root", root] if root is not None and task.data != "digits" else []),
        *(["--epochs", str(task.random_epochs)] if policy == "random" and task.random_epochs else []),
    ]  # fmt: skip
    subprocess.run(command, check=True)


@dataclass(frozen=True)
class Outcome:
    """Errors on the validation images, and how often a fixation is on the object, all in percent.

    ``borrowed`` and ``hits_elsewhere`` follow the path that the model chose for another image: if the path did not
    depend on the image, they would equal ``error`` and ``hits``.
    """

    error: float
    sampled: float
    borrowed: float
    hits: float | None = None
    hits_elsewhere: float | None = None
    chance: float | None = None


def batches(source: Source) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """All validation images in grey, (B, 1, H, W), with labels and masks."""
    for start in range(0, len(source.val), BATCH):
        indices = range(start, min(start + BATCH, len(source.val)))
        images, labels = zip(*(source.val.read(index, 0) for index in indices), strict=True)
        grey = torch.stack([torch.from_numpy(image[..., :1].copy()) for image in images]).permute(0, 3, 1, 2) / 255
        masks = None
        if source.mask is not None:
            masks = torch.stack([torch.from_numpy(source.mask(index)) for index in indices])
        yield grey, torch.tensor(labels), masks


@torch.no_grad()
def measure(run: Path, source: Source) -> Outcome:
    """Measure the last epoch, since the best one would have been selected on the same images."""
    model = open_trained(None, str(run / "checkpoints" / "last.ckpt")).model
    assert isinstance(model, RAM)
    images, labels, masks = zip(*batches(source), strict=True)
    found: dict[str, list[Tensor]] = {"error": [], "sampled": [], "borrowed": []}
    path = torch.cat([model.fixations(each)[0] for each in images])
    borrowed = path.roll(1, 0)
    for number, (x, label) in enumerate(zip(images, labels, strict=True)):
        model.samples = 1
        found["error"].append(model(x).argmax(1) != label)
        model.samples = SAMPLES
        found["sampled"].append(model(x).argmax(1) != label)
        found["borrowed"].append(model.along(x, borrowed[number * BATCH :][: len(x)]).argmax(1) != label)
    if source.mask is not None:
        mask = torch.cat([each for each in masks if each is not None])
        found |= {"hits": [on_mask(path, mask)], "hits_elsewhere": [on_mask(borrowed, mask)], "chance": [mask]}
    return Outcome(**{name: 100 * torch.cat(each).float().mean().item() for name, each in found.items()})


def spread(values: Sequence[float]) -> str:
    """Mean and range.

    >>> spread([1.0, 2.0, 4.5])
    '2.5 (1.0 to 4.5)'
    """
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(out: Path, root: str | None) -> str:
    """Format all runs found, as Markdown."""
    lines = [
        "| data | policy | seeds | error | ten paths | another's path | fixations on the digit | another's fixations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        for policy in POLICIES:
            runs = [folder(out, task, policy, seed) for seed in SEEDS]
            runs = [run for run in runs if (run / "model.safetensors").is_file()]
            if not runs:
                continue
            source = task.source(root)
            found = [measure(run, source) for run in runs]
            cells = [task.name, policy, str(len(found))]
            for name in ("error", "sampled", "borrowed", "hits", "hits_elsewhere"):
                values = [value for each in found if (value := getattr(each, name)) is not None]
                cells.append(spread(values) if values else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@torch.no_grad()
def draw(out: Path, task: Task, count: int = 6) -> None:
    """Draw the paths of both policies on the first validation images."""
    source = task.source(None)
    assert source.mask is not None
    images, labels, masks = next(batches(source))
    looked = {}
    for policy in POLICIES:
        model = open_trained(None, str(folder(out, task, policy, SEEDS[0]) / "checkpoints" / "last.ckpt")).model
        assert isinstance(model, RAM)
        points, (height, width) = model.fixations(images)
        answers = model(images).softmax(1).max(1)
        looked[f"{policy} policy"] = [
            (Fixations(points[i].numpy(), (width, height)), Answer(str(int(labels[i])), str(int(said)), float(sure)))
            for i, (sure, said) in enumerate(zip(answers.values[:count], answers.indices, strict=False))
        ]
    assert masks is not None
    pixels = np.stack([source.val.read(index, 0)[0] for index in range(count)])
    draw_paths(PICTURE, pixels, looked, title=f"RAM on {task.name}, seed {SEEDS[0]}", masks=masks[:count].numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/where"), help="folder of the runs")
    parser.add_argument("--root", help="folder of MNIST and Fashion-MNIST")
    parser.add_argument("--only", help="tasks whose name contains this")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in TASKS:
            for policy in POLICIES:
                run = folder(arguments.out, task, policy, seed)
                wanted = arguments.only is None or arguments.only in task.name
                if wanted and not (run / "model.safetensors").is_file():
                    train(task, policy, seed, arguments.out, arguments.root)
    before, _, rest = PAGE.read_text().partition(MARK)
    _, _, after = rest.partition(MARK)
    draw(arguments.out, TASKS[1])
    PAGE.write_text(f"{before}{MARK}\n\n{table(arguments.out, arguments.root)}\n\n{MARK}{after}")


if __name__ == "__main__":
    main()
