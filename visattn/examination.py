"""What a model looks at in images: heatmaps by several methods, as arrays, pictures and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from visattn.constants import WITH_PATCHES
from visattn.core.arguments import at_least_one, functions, list_of_names, one_or_several, yes_or_no
from visattn.heatmaps import METHODS, Explanation, attention_heads, best_method, fitting_methods
from visattn.heatmaps.aim import Aim
from visattn.heatmaps.auto import Choice
from visattn.heatmaps.explaining import MethodList, check_signs
from visattn.heatmaps.findings import Examiner, Question, classes_of
from visattn.heatmaps.methods.base import AUTO, check_method
from visattn.heatmaps.targets import resolve
from visattn.listing import shown
from visattn.missing import saying_what_to_install
from visattn.models.saving.saved import Trained
from visattn.modules import check_default_device, evaluating
from visattn.opening import open_given, own_preparation
from visattn.scoring.words import score as score_pictures

if TYPE_CHECKING:
    from visattn.data.images import InMemory
    from visattn.data.preparation import Preparation
    from visattn.report.folder import HeatmapFolder
    from visattn.report.views import Finding

Picture: TypeAlias = "str | PathLike[str] | InMemory"


@dataclass(frozen=True)
class Examination:
    """Result of :func:`examine`.

    Args:
        findings: one per image; if a folder was written, only those on its page.
        number: number of images examined.
        left_out: what was skipped, each with the reason.
        page: the HTML page, if a folder was written.
    """

    findings: tuple[Finding, ...]
    number: int
    left_out: tuple[tuple[str, str], ...]
    page: Path | None = None


@saying_what_to_install()
def examine(
    model: nn.Module | str | PathLike[str] | Trained,
    images: Picture | Sequence[Picture],
    methods: str | Sequence[str] = AUTO,
    *,
    target: int | str | None = None,
    of: str | None = None,
    versus: int | str | None = None,
    out: str | PathLike[str] | HeatmapFolder | None = None,
    layers: str | int | Sequence[str | int] | None = None,
    heads: str | int | Sequence[int] | None = None,
    score: bool = False,
    balanced: bool = False,
    signed: bool = False,
    classes: Sequence[str] | None = None,
    preparation: Preparation | None = None,
    batch_size: int = 8,
    device: str | torch.device | None = None,
    note: Callable[[str, str], None] | None = None,
    track: Callable[[list[Any]], Iterable[Any]] | None = None,
) -> Examination:
    """Find out what a model looks at in images, by several methods, leaving the model unchanged.

    Args:
        model: a run folder, a checkpoint, or a network (timm's or your own).
        images: files, folders, Pillow images, or uint8 arrays (H, W, 3) or (H, W); one or a list.
        methods: see :func:`visattn.list_methods`; ``auto`` is the one that scored best for this kind of model.
        target: index or name of the class to explain; by default the predicted class.
        of: what to explain of it: its ``logit`` (the default, unless ``auto`` knows better), ``log_probability`` or
            ``probability``.
        versus: index or name of another class, to explain why the target rather than that one.
        out: folder to which pictures, arrays, a page and a manifest are written.
        layers: also show single attention heads of these layers (names or indices, or ``"all"``).
        heads: also show these single attention heads (indices, or ``"all"``).
        score: also check every heatmap against the model, and say in a sentence what was found.
        balanced: take gradients from a balanced backward pass, for methods that have the choice.
        signed: keep what speaks against the class, as negative numbers and in blue, for methods that know it.
        classes: class names in order; known for runs and for ImageNet.
        preparation: preprocessing; by default that of the model card or of timm's configuration.
        batch_size: images per batch.
        device: where to run a model that is loaded from a path; cuda if available. A network stays where it is.
        note: called with each skipped item and the reason, as soon as it is skipped.
        track: wraps the list of images to show progress, as ``tqdm`` does.

    >>> import numpy, timm
    >>> model = timm.create_model("test_vit", num_classes=2)
    >>> found = examine(model, numpy.zeros((80, 60, 3), "uint8"), "rollout", classes=["cat", "dog"])
    >>> found.findings[0].heatmaps["rollout"].shape
    (160, 160)
    """
    from visattn.data.images import gather, read_batches

    check_default_device()
    batch_size = at_least_one("batch_size", batch_size)
    yes_or_no(score=score, balanced=balanced, signed=signed)
    functions(note=note, track=track)
    wanted = list_of_names("methods", methods)
    if not wanted:
        raise ValueError("no methods: name some, or leave them out")
    for name in wanted:
        check_method(name)
    if of is not None:
        Aim(of)  # raises if there is no such thing
    left_out: list[tuple[str, str]] = []

    def leave_out(what: str, why: str) -> None:
        left_out.append((what, why))
        if note is not None:
            note(what, why)

    pictures = gather(images, leave_out)
    folder = _folder(out)
    trained, known = open_given(model, device, preparation)
    prepared = known or own_preparation(trained.model)
    with evaluating(trained.model):
        number, names = classes_of(trained.model, trained.classes if classes is None else classes, prepared)
        index, other = (
            None if each is None else int(each[0])
            for each in (
                resolve(_one_class(what, each), 1, number, names)
                for what, each in (("target", target), ("versus", versus))
            )
        )
        example = torch.zeros(1, *prepared.size).to(next(trained.model.parameters()).device)
        fitting = fitting_methods(trained.model, example, {*wanted, "attention"} - {AUTO})
        asked, reasons = _arguments(trained, example, wanted, fitting, of, balanced, signed, leave_out)
        question = _question(trained, example, asked, fitting, layers, heads, len(pictures), leave_out)
        if score and number < 2:
            raise ValueError(f"{trained.name} has no classes, so that its heatmaps cannot be scored")
        judge = partial(_judged, trained.model) if score else None
        examiner = Examiner(trained.model, prepared, question, index, number, names, other, judge)
        findings: list[Finding] = []
        count = 0
        batches = read_batches(pictures if track is None else track(pictures), batch_size, leave_out)
        for batch in batches if question.methods or question.heads else ():
            try:
                found = examiner.examine([Path(name).name for name, _ in batch], [pixels for _, pixels in batch])
            except torch.OutOfMemoryError as error:
                raise ValueError("the device is out of memory: lower the batch size") from error
            for (name, _), finding in zip(batch, found, strict=True):
                if finding is None:
                    continue
                count += 1
                if folder is None:
                    findings.append(finding)
                else:
                    folder.add(name, finding)
    for what, why in examiner.failures():
        leave_out(what, why)
    if folder is None or not count:
        return Examination(tuple(findings), count, tuple(left_out))
    page = folder.finish(trained.name, _facts(trained, prepared, folder, question, reasons, left_out))
    return Examination(tuple(folder.findings), count, tuple(left_out), page)


def _judged(model: nn.Module, explanation: Explanation, x: Tensor) -> list[str]:
    return [str(each) for each in score_pictures(explanation, model, x)]


def _one_class(what: str, given: Any) -> Any:
    """A class; a list of several raises, since one is explained in all images."""
    if isinstance(given, list | tuple) and len(given) != 1:
        raise ValueError(f"{what} is one class for all images, got {shown(given)}")
    return given


def _folder(out: Any) -> HeatmapFolder | None:
    if out is None:
        return None
    from visattn.report.folder import HeatmapFolder

    return out if isinstance(out, HeatmapFolder) else HeatmapFolder(out, METHODS)


def _arguments(
    trained: Trained,
    example: Tensor,
    methods: list[str],
    fitting: MethodList,
    of: str | None,
    balanced: bool,
    signed: bool,
    leave_out: Callable[[str, str], None],
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What to give to ``explain`` for every method that applies to the model, and why it was chosen if it was."""
    found: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    best = best_method(trained.model, example) if AUTO in methods else None
    for name in methods:
        if best is not None and name == best.method:
            continue  # auto shows it, with the options that scored best
        if name in fitting.reasons:
            leave_out(name, f"does not apply to {trained.name}: {fitting.reasons[name]}")
            continue
        choice = best if best is not None and name == AUTO else Choice(name)
        method = METHODS[choice.method]
        found[choice.method] = {
            "of": of or choice.of,
            "signed": signed and method.signed,
            **choice.options,
            **method.balanced(balanced),
        }
        if choice.reason:
            reasons[choice.method] = choice.reason
    if signed and found:
        check_signs(found)
    return found, reasons


def _question(
    trained: Trained,
    example: Tensor,
    asked: dict[str, dict[str, Any]],
    fitting: MethodList,
    layers: str | int | Sequence[str | int] | None,
    heads: str | int | Sequence[int] | None,
    images: int,
    leave_out: Callable[[str, str], None],
) -> Question:
    """What to find out about every image."""
    grid = layers is not None or heads is not None
    head_layers = None if layers in (None, "all") else one_or_several("layers", layers)
    head_numbers = None if heads in (None, "all") else one_or_several("heads", heads)
    if grid and "attention" not in fitting:
        grid = False
        leave_out("layers and heads", f"do not apply to {trained.name}: {fitting.reasons['attention']}")
    if grid:
        attention_heads(trained.model, example, head_layers, head_numbers)  # raises if there is no such layer or head
    patches = "attention" in fitting and images <= WITH_PATCHES
    return Question(asked, grid, head_layers, head_numbers, patches)


def _facts(
    trained: Trained,
    preparation: Preparation,
    folder: HeatmapFolder,
    question: Question,
    reasons: dict[str, str],
    left_out: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Entries of the manifest besides the images."""
    import visattn

    return {
        "weights": trained.weights,
        "input": asdict(preparation),
        "methods": {
            method: {
                "of_class": METHODS[method].of_class,
                "layers": layers,
                **question.methods[method],
                "reason": reasons.get(method, ""),
            }
            for method, layers in folder.layers.items()
        },
        "left_out": [{"what": what, "why": why} for what, why in left_out],
        "versions": {"visattn": visattn.__version__, "torch": torch.__version__},
    }
