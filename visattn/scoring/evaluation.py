"""Score heatmaps: which of the methods tells the truth about a model?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from visattn.core.arguments import Device, at_least_one, checked_seed, functions, list_of_names, whole, yes_or_no
from visattn.heatmaps import METHODS, best_method, fitting_methods, list_methods
from visattn.heatmaps.methods.base import AUTO, check_method
from visattn.heatmaps.targets import Class
from visattn.listing import shown
from visattn.models.saving.saved import Trained
from visattn.modules import NOT_DENSE, check_default_device, is_dense
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
Methods: TypeAlias = "str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None"


def evaluate(
    model: nn.Module | str | PathLike[str] | Trained,
    data: Data = "digits",
    methods: Methods = None,
    metrics: str | Sequence[str] = ("faithfulness", "localisation", "cost"),
    *,
    masks: Masks = None,
    target: Class = None,
    number: int = 64,
    fill: str = "blur",
    steps: int = 10,
    balanced: bool = False,
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
        data: ``"digits"``, the bundled ones, which come with masks (``"./digits"`` is a folder of yours); files and
            folders; or normalised tensors (B, C, H, W).
        methods: see :func:`visattn.list_methods`; ``auto`` and all quick ones that fit unless given. To compare options
            of a method, give a dictionary of names and arguments of :func:`visattn.explain`:
            ``{"last": {"method": "gradcam"}, "third": {"method": "gradcam", "layer": "layer3"}}``.
        metrics: names of scores or of their kinds: ``faithfulness``, ``localisation``, ``sanity``, ``cost``, ``all``.
        masks: where objects are: a folder with pictures or Pascal VOC's XML, or a tensor (B, H, W).
        target: the class to explain; the predicted one unless given.
        number: of images, at most.
        fill: what takes the place of removed parts in MoRF, LeRF and SRG; the others have their own.
        steps: of a curve.
        balanced: take gradients from a balanced backward pass, for methods that have the choice.
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
    yes_or_no(balanced=balanced)
    functions(note=note, track=track)
    wanted = chosen_metrics(metrics)
    FILLS[fill]
    steps, batch_size = at_least_one("steps", steps, 1000), at_least_one("batch_size", batch_size, 2**16)
    number = at_least_one("number", number)
    seed = checked_seed(seed)
    asked = None if methods is None else _arguments(methods)
    left_out: list[tuple[str, str]] = []

    def leave_out(what: str, why: str) -> None:
        left_out.append((what, why))
        if note is not None:
            note(what, why)

    if isinstance(data, Tensor) and not is_dense(data):
        raise TypeError(f"a tensor of images must be dense, got {NOT_DENSE}: call to_dense(), or stack them")
    trained, prepared = open_given(model, device, preparation)
    pictures = load_pictures(data, masks, lambda: prepared or own_preparation(trained.model), number, leave_out)
    black = None if prepared is None else black_of(prepared)
    engine = Engine(trained.model, pictures.inputs, target, black=black, batch_size=batch_size, seed=seed, track=track)
    scorer = Scorer(trained.model, pictures, engine, fill, steps, seed, wanted, leave_out)
    arguments = _fitting(trained.model, pictures, asked, balanced, leave_out)
    is_auto = any(each["method"] == AUTO for each in arguments.values())
    auto = {AUTO: str(best_method(trained.model, pictures.inputs[:1]))} if is_auto else {}
    scorer.explain(arguments, track)
    if not scorer.rankings.keys() - (set(BASELINES) - (asked or {}).keys()):
        raise ValueError(f"none of the methods could be scored ({_reasons(left_out)})")
    for kind in (scorer.faithfulness, scorer.localisation, scorer.mosaics, scorer.sanity, scorer.cost):
        kind()
    if not (values := scorer.ordered()):
        raise ValueError(f"none of the scores could be computed ({_reasons(left_out)})")
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
            "images": len(engine), "fill": fill, "steps": steps, "seed": seed, "balanced": balanced,
            "target": "predicted" if target is None else "given", **auto, "weights": trained.weights,
        },
        left_out=tuple(left_out),
    )  # fmt: skip


def _arguments(methods: str | Sequence[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What to give to ``explain``, by the name under which the scores will stand."""
    if not isinstance(methods, Mapping):
        methods = {name: {"method": name} for name in list_of_names("methods", methods)}
    if not methods:
        raise ValueError("no methods: name some, or leave them out for all that fit")
    for name, arguments in methods.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ValueError(f"a method stands in the table under a name of one line, got {shown(name)}")
        if name in BASELINES and arguments != {"method": name}:
            raise ValueError(f"{name!r} is the name of a baseline: give your method another one")
        if not isinstance(arguments, Mapping) or "method" not in arguments:
            raise ValueError(f"{name!r} needs arguments of visattn.explain with a method among them, got {arguments!r}")
        if taken := {"model", "x", "target"} & arguments.keys():
            raise ValueError(f"{', '.join(sorted(taken))} of {name!r} cannot differ from that of the others")
        versus = arguments.get("versus")
        if versus is not None and not isinstance(versus, str) and whole(versus) is None:
            raise ValueError(f"versus of {name!r} is one class, the same for all images, got {shown(versus)}")
        check_method(arguments["method"])
    return {name: dict(arguments) for name, arguments in methods.items()}


def _reasons(left_out: Sequence[tuple[str, str]]) -> str:
    by_reason: dict[str, list[str]] = {}
    for what, why in left_out:
        by_reason.setdefault(why, []).append(what)
    return "; ".join(f"{', '.join(what)}: {why}" for why, what in by_reason.items())


def _fitting(
    model: nn.Module,
    pictures: Pictures,
    asked: dict[str, dict[str, Any]] | None,
    balanced: bool,
    leave_out: Callable[[str, str], None],
) -> dict[str, dict[str, Any]]:
    """The methods to score and their arguments, in order, with the baselines at the end."""
    example = pictures.inputs[:1]
    if asked is None:
        quick = [name for name in list_methods(model, example) if not METHODS[name].slow]
        chosen = {name: {"method": name} for name in (AUTO, *quick)}
    else:
        names = {each["method"] for each in asked.values()} - {AUTO}
        reasons = fitting_methods(model, example, names).reasons
        for name, arguments in asked.items():
            if arguments["method"] in reasons:
                leave_out(name, f"does not fit: {reasons[arguments['method']]}")
        chosen = {name: each for name, each in asked.items() if each["method"] not in reasons}
    if not chosen:
        raise ValueError(f"none of the methods fits the model; {', '.join(list_methods(model, example))} do")
    own = {name: _options(each, balanced) | each for name, each in chosen.items() if name not in BASELINES}
    return own | {name: {"method": name} for name in BASELINES}


def _options(arguments: dict[str, Any], balanced: bool) -> dict[str, Any]:
    return {} if arguments["method"] == AUTO else METHODS[arguments["method"]].balanced(balanced)
