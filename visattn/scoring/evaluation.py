"""Score heatmaps: which of the methods tells the truth about a model?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import nn

from visattn.core.arguments import Device, at_least_one
from visattn.heatmaps import METHODS, list_methods
from visattn.heatmaps.targets import Class
from visattn.models.saving.saved import Trained
from visattn.modules import check_default_device
from visattn.opening import open_given, own_preparation
from visattn.scoring.engine import Engine
from visattn.scoring.fills import FILLS, black_of
from visattn.scoring.metrics import METRICS, chosen_metrics
from visattn.scoring.pictures import Data, Masks, Pictures, load_pictures
from visattn.scoring.result import BASELINES, Evaluation
from visattn.scoring.scorer import Scorer

if TYPE_CHECKING:
    from visattn.data.preparation import Preparation

BATCH = 32


def evaluate(
    model: nn.Module | str | PathLike[str] | Trained,
    data: Data = "digits",
    methods: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] = ("faithfulness", "localisation", "cost"),
    *,
    masks: Masks = None,
    target: Class = None,
    number: int = 64,
    fill: str = "blur",
    steps: int = 10,
    preparation: Preparation | None = None,
    batch_size: int = BATCH,
    device: Device = None,
    seed: int = 0,
    note: Callable[[str, str], None] | None = None,
    track: Callable[[list[Any]], Iterable[Any]] | None = None,
) -> Evaluation:
    """Score methods of explanation on a model and images; the model is left as it was found.

    ``random``, ``center`` and ``edge``, which know nothing of the model, are always scored as well: a method that is
    not better than these tells nothing.

    Args:
        model: the folder of a run, one of its checkpoints, or a classifier, timm's or yours.
        data: ``"digits"`` (which come with masks), files and folders, or normalised tensors (B, C, H, W).
        methods: see :func:`visattn.list_methods`; all quick ones that fit unless given.
        metrics: names of scores or of their kinds: ``faithfulness``, ``localisation``, ``sanity``, ``cost``, ``all``.
        masks: where objects are: a folder with pictures or Pascal VOC's XML, or a tensor (B, H, W).
        target: the class to explain; the predicted one unless given.
        number: of images, at most.
        fill: what takes the place of removed parts in MoRF, LeRF and SRG; the others have their own.
        steps: of a curve.
        preparation: how images become tensors; what the card of a run says, or timm of its models, unless given.
        batch_size: images at a time.
        device: where to compute what is loaded from a path; cuda if there is one. A model stays where it is.
        seed: of whatever is random.
        note: called at once with what is left out, and why.
        track: wraps lists, as ``tqdm`` does, to show progress.

    >>> import timm, torch
    >>> model = timm.create_model("test_resnet", num_classes=2)
    >>> found = evaluate(model, torch.rand(3, 3, 64, 64), "gradcam", "srg")
    >>> found.methods, found.values["srg"]["gradcam"].shape
    (('gradcam', 'random', 'center', 'edge'), (3,))
    """
    check_default_device()
    wanted, named = chosen_metrics(metrics)
    FILLS[fill]
    steps, number, batch_size = (
        at_least_one(name, each) for name, each in (("steps", steps), ("number", number), ("batch_size", batch_size))
    )
    for name, each, most in (("steps", steps, 1000), ("batch_size", batch_size, 2**16), ("seed", seed, 2**32 - 1)):
        if not 0 <= each <= most:
            raise ValueError(f"{name} must be {'at least 0' if each < 0 else f'at most {most}'}, got {each}")
    for name in [methods] if isinstance(methods, str) else methods or ():
        METHODS[name]
    left_out: list[tuple[str, str]] = []

    def leave_out(what: str, why: str) -> None:
        left_out.append((what, why))
        if note is not None:
            note(what, why)

    trained, prepared = open_given(model, device, preparation)
    pictures = load_pictures(data, masks, lambda: prepared or own_preparation(trained.model), number, leave_out)
    black = None if prepared is None else black_of(prepared)
    engine = Engine(trained.model, pictures.inputs, target, black=black, batch_size=batch_size, seed=seed, track=track)
    scorer = Scorer(trained.model, pictures, engine, fill, steps, seed, leave_out)
    scorer.explain(_fitting(trained.model, pictures, methods, leave_out), track)
    for kind in (scorer.faithfulness, scorer.localisation, scorer.mosaics, scorer.sanity, scorer.cost):
        kind(wanted, named)
    if not (values := scorer.ordered()):
        reasons = "; ".join(f"{what}: {why}" for what, why in left_out)
        raise ValueError(f"none of the scores could be computed ({reasons})")
    return Evaluation(
        model=trained.name,
        methods=tuple(scorer.rankings),
        values=values,
        curves=scorer.curves(),
        agreement=scorer.agreement() if any(METRICS[name].kind == "sanity" for name in wanted) else None,
        names=pictures.names,
        target=tuple(engine.target.tolist()),
        probability=tuple(engine.clean.probability.tolist()),
        images=scorer.shown,
        heatmaps=scorer.heatmaps,
        settings={
            "images": len(engine), "fill": fill, "steps": steps, "seed": seed,
            "target": "predicted" if target is None else "given", "weights": trained.weights,
        },
        left_out=tuple(left_out),
    )  # fmt: skip


def _fitting(
    model: nn.Module, pictures: Pictures, methods: str | Sequence[str] | None, leave_out: Callable[[str, str], None]
) -> list[str]:
    """The methods to score, in order, with the baselines at the end."""
    fitting = list_methods(model, pictures.inputs[:1])
    if methods is None:
        chosen = [name for name in fitting if not METHODS[name].slow]
    else:
        given = [methods] if isinstance(methods, str) else list(methods)
        for name in given:
            if name in fitting.reasons:
                leave_out(name, f"does not fit: {fitting.reasons[name]}")
        chosen = [name for name in given if name not in fitting.reasons]
        if not chosen:
            raise ValueError(f"none of the methods fits the model; {', '.join(fitting)} do")
    return [*dict.fromkeys(name for name in chosen if name not in BASELINES), *BASELINES]
