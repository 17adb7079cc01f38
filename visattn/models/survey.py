"""Find the places in a network where a block could go, by running it once on meta tensors.

Nothing is computed and nothing is changed: what runs is a copy whose parameters have no storage. (Some networks cache
tensors in a forward pass, so the original must not be used.) Networks that cannot run on meta tensors are copied and
run with their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from visattn.hard.scout import Scout
from visattn.models.layout import Layout, Place, is_ambiguous, of_one_pixel, recognise
from visattn.models.patch import Patch
from visattn.models.replaced import replacements
from visattn.models.wrapper import NAME, WRAPPED, WithAttention, plain_name
from visattn.models.wrapping import attachments, unwrapped
from visattn.modules import floating_like, own_size, sharing_copy, weightless_copy

T = TypeVar("T")

# Operations that a shortcut may pass through on its way around a block, as autograd names them.
SHORTCUT = frozenset(
    f"{name}Backward"
    for name in (
        *("Add", "Alias", "AsStrided", "Cat", "Clone", "ConstantPadNd", "Expand", "Gelu", "Hardswish", "Hardtanh"),
        *("LeakyRelu", "Mish", "Permute", "Relu", "ReshapeAlias", "Roll", "Select", "Silu", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "ToCopy", "Transpose", "T", "UnsafeView", "Unsqueeze", "View", "_Blend"),
    )
)
ADDITION = ("AddBackward", "_BlendBackward")  # the second is that of a block that is attached already
COARSE = 4  # a map of fewer rows or columns may be followed by maps of one pixel
LARGE = 512  # side of images that show what every network does


@dataclass
class Visit:
    """One call of a module, without its wrapper if it has one."""

    name: str
    call: int  # how often the module was called before
    module: nn.Module
    shape: tuple[int, ...]
    layout: Layout
    index: int | None  # position in the output if that is a tuple or list
    dtype: torch.dtype
    residual: bool

    @property
    def is_point(self) -> bool:
        """Whether this is one pixel, which looks like what was pooled."""
        return self.layout.size(self.shape) == (1, 1)


@dataclass
class Survey:
    """All places of a network, in the order in which the modules finish."""

    input_shape: tuple[int, ...]
    modules: dict[str, nn.Module]
    declared: list[str]
    visits: list[Visit] = field(default_factory=list)
    entry: str = ""  # the outermost module that is given the image
    ran: bool = False  # whether any module was called at all
    unclear: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maps without an axis that must be the channels
    points: set[str] = field(default_factory=set)  # what may be maps of one pixel, or not
    calls: Counter[str] = field(default_factory=Counter)
    larger: Survey | None = None  # of larger images, where the maps of these are too small to tell

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.input_shape[-2], self.input_shape[-1]

    def widths(self) -> dict[str, list[int]]:
        """How many channels the maps of every module have; several, if it is called for several maps."""
        found: dict[str, dict[int, None]] = {}
        for visit in self.visits:
            found.setdefault(visit.name, {})[visit.layout.channels] = None
        return {name: list(widths) for name, widths in found.items()}

    def places(self) -> dict[str, Place]:
        """Every module whose output is a feature map of one width, by name."""
        found = {}
        widths = self.widths()
        for visit in self.visits:
            if len(widths[visit.name]) > 1:
                continue
            size = visit.layout.size(visit.shape, self.image)
            found[visit.name] = Place(visit.name, visit.layout, size, self.image, visit.index, visit.dtype)
        return found

    def resolutions(self) -> dict[str, tuple[int, int]]:
        """Height and width of every place, for larger images if several resolutions of these are a single pixel."""
        sizes = {name: place.size for name, place in self.places().items()}
        larger = self.larger.resolutions() if self.larger is not None else {}
        return {name: larger.get(name, size) for name, size in sizes.items()}

    def blocks(self) -> list[str]:
        """Residual blocks: modules with a shortcut around them, and others of the same class.

        A stage is also bypassed by the shortcuts of its blocks; it is told apart by holding them in a container.
        """
        kinds = {type(visit.module) for visit in self.visits if visit.residual and _is_unit(visit.module)}
        names = dict.fromkeys(visit.name for visit in self.visits if type(visit.module) in kinds)
        listed = [name for name in names if isinstance(self.modules[name.rpartition(".")[0]], CONTAINERS)]
        units = [name for name in names if not any(inner.startswith(f"{name}.") for inner in listed)]
        return [name for name in units if not any(name.startswith(f"{outer}.") for outer in units)]

    def stages(self) -> list[str]:
        """The end of every resolution.

        timm says where that is in ``feature_info``, which is followed where it names one feature map per resolution.
        Otherwise it is the last residual block of each resolution, or, without such blocks, the last outermost module.
        """
        sizes = self.resolutions()
        if self.declared and all(name in sizes for name in self.declared):
            stem, *rest = self.declared  # an entry may be an activation; as a stem that is too early for attention
            declared = [*([stem] if _has_weights(self.modules[stem]) else []), *rest]
            if len(declared) > 1 and len({sizes[name] for name in declared}) == len(declared):
                return declared
        names = self.blocks() or self.outermost()
        return list({sizes[name]: name for name in names}.values())

    def outermost(self) -> list[str]:
        """Modules that are not inside another one with a map of the same size, if that size has any weights."""
        sizes = self.resolutions()
        depth: dict[tuple[int, int], int] = {}
        for name, size in sizes.items():
            if _has_weights(self.modules[name]):
                depth[size] = min(depth.get(size, 99), name.count("."))
        return [name for name, size in sizes.items() if depth.get(size) == name.count(".")]


CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


FIRST = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm)  # (B, C, H, W)
LAST = (nn.Linear, nn.LayerNorm)  # (B, H, W, C); subclasses of the norm may differ


def _has_weights(module: nn.Module) -> bool:
    return any(p.ndim > 1 for p in module.parameters())


def _is_unit(module: nn.Module) -> bool:
    """Whether a module is neither a leaf nor a mere container."""
    return _has_weights(module) and any(module.children()) and type(module) not in CONTAINERS


def _first_tensor(values: Any) -> Tensor | None:
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple | list) and (inner := _first_tensor(value)) is not None:
            return inner
    return None


def _runs_around(output: Tensor, inputs: Tensor) -> bool:
    """Whether a shortcut leads from the input to the output: additions, but no layer, in between."""
    target, todo, seen = inputs.grad_fn, [(output.grad_fn, False)], set()
    while todo:
        node, added = todo.pop()
        if node is None or (node, added) in seen:
            continue
        seen.add((node, added))
        if node is target:
            if added:
                return True
            continue
        kind = node.name().rstrip("0123456789")
        if kind in SHORTCUT:
            todo += [(after, added or kind in ADDITION) for after, _ in node.next_functions]
    return False


def declared_stages(model: nn.Module) -> list[str]:
    """The module names in timm's ``feature_info``, if the model has one."""
    info = getattr(model, "feature_info", None) or []
    return [entry["module"] for entry in (info if isinstance(info, list) else info.info)]


def dry_run(
    model: nn.Module, images: Tensor | tuple[int, ...], find: Callable[[nn.Module, Tensor], T], *, compute: bool = True
) -> T:
    """Return what a function finds by running a copy of a network.

    The copy has no storage; for a network that looks at values, it is a copy with the weights instead.

    Args:
        model: any network; it is left alone.
        images: a batch, or the shape of one, whose values do not matter.
        find: runs the copy that it is given on images that it is given.
        compute: whether a network that looks at values may be run with them; if not, it raises.
    """
    if not isinstance(images, Tensor):
        images = floating_like(model).new_zeros(images)
    try:
        return find(weightless_copy(model), torch.empty_like(images, device="meta"))
    except Exception:  # whatever a network does with values that are not there
        if not compute:
            raise
        return find(sharing_copy(model), images.detach())


def survey(model: nn.Module, example: Tensor | tuple[int, ...], *, compute: bool = True) -> Survey:
    """Run a network once and note every module whose output is a feature map.

    If the images are so small that some maps may be a single pixel, larger ones tell which these are: where the places
    are does not depend on the size of the images. A network that looks at values is run with larger ones than it was
    made for only if twice the size is enough.

    Args:
        model: any network.
        example: a batch of at least two images, or the shape of one; only its shape matters.
        compute: whether a network that looks at values may be run with them; if not, it raises.
    """
    found, larger = _surveyed(model, example, compute), None
    coarse = _is_coarse(found)
    if coarse or any(is_ambiguous(visit.shape, found.image) for visit in found.visits):
        batch, channels, height, width = found.input_shape
        again = survey if coarse and min(height, width) < LARGE else _settled
        try:
            _, rows, columns = own_size(model)
            affordable = not coarse or (2 * height <= rows and 2 * width <= columns)
            larger = again(model, (batch, channels, 2 * height, 2 * width), compute=affordable)
        except Exception:  # a network can refuse an image in any way it likes
            larger = None
        if coarse and larger is None:
            found.points = {visit.name for visit in found.visits if visit.is_point}
        found.larger = larger if coarse else None
    _settle(found, larger)
    return found


def _surveyed(model: nn.Module, images: Tensor | tuple[int, ...], compute: bool) -> Survey:
    return dry_run(model, images, lambda copy, images: _walk(copy, images.requires_grad_()), compute=compute)


def _settled(model: nn.Module, shape: tuple[int, ...], *, compute: bool) -> Survey:
    """What images of this shape tell alone."""
    found = _surveyed(model, shape, compute)
    _settle(found, None)
    return found


def _is_coarse(found: Survey) -> bool:
    """Whether there are outputs of one pixel, and maps so small that these may be maps as well."""
    points = [visit for visit in found.visits if visit.is_point]
    sides = [min(visit.layout.size(visit.shape, found.image)) for visit in found.visits if not visit.is_point]
    layers = any(isinstance(visit.module, FIRST[:1]) and max(visit.module.stride) > 1 for visit in points)
    return bool(points) and (layers or min(sides, default=0) < COARSE)


def _settle(found: Survey, larger: Survey | None) -> None:
    """Find what cannot be told from small maps: larger images tell, or some layers do; what nothing tells is left out.

    These are maps of one pixel, and the channels of maps with as many rows and columns.
    """
    larger = larger or Survey(found.input_shape, {}, [])
    known = {(visit.name, visit.call, visit.index): visit for visit in larger.visits}
    for visit in list(found.visits):
        again = known.get((visit.name, visit.call, visit.index))
        if again is not None and len(again.shape) == len(visit.shape):
            visit.layout, visit.residual = again.layout.like(visit.shape), again.residual
        elif visit.is_point:
            found.visits.remove(visit)
        elif not is_ambiguous(visit.shape, found.image):
            if visit.call < larger.calls[visit.name] and visit.name not in larger.unclear:
                found.visits.remove(visit)
        elif type(visit.module) in LAST:
            visit.layout = Layout("NHWC", visit.shape[3])
        elif not isinstance(visit.module, FIRST):
            found.unclear[visit.name] = visit.shape[1:]
            found.visits.remove(visit)


def called(model: nn.Module, input_shape: tuple[int, ...]) -> set[str]:
    """The attached blocks that a network calls for images of this shape."""
    seen: set[str] = set()

    def run(shadow: nn.Module, images: Tensor) -> set[str]:
        for name, attached in attachments(shadow).items():
            attached.register_forward_pre_hook(lambda _module, _args, name=name: seen.add(name))
        shadow(images)
        return seen

    return dry_run(model, input_shape, run)


def _walk(model: nn.Module, example: Tensor) -> Survey:
    batch, (height, width) = example.shape[0], example.shape[-2:]
    # A wrapper is called by its parent and has the output that counts; what it wraps says what kind of module it is.
    outer = {plain_name(name): module for name, module in model.named_modules() if not name.endswith(WRAPPED)}
    modules = {name: unwrapped(each) for name, each in outer.items()}
    result = Survey(tuple(example.shape), modules, declared_stages(model))
    prefix = getattr(model, "num_prefix_tokens", 0)
    entries: dict[bool, list[str]] = {}

    def visit(name: str) -> Any:
        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            result.ran = True
            call = result.calls[name]
            result.calls[name] += 1
            inputs = _first_tensor((*args, *kwargs.values()))
            # The image itself goes into the outermost module; or what was made of it, but is as large.
            if inputs is example or (inputs is not None and inputs.shape == example.shape):
                entries.setdefault(inputs is example, []).append(name)
            several = isinstance(output, tuple | list)
            for index, value in enumerate(output if several else [output]):
                if not isinstance(value, Tensor) or value.shape[:1] != (batch,):
                    continue
                layout = recognise(value.shape, (height, width), prefix)
                point = of_one_pixel(value.shape) if layout is None else layout
                if point is None:
                    continue
                residual = inputs is not None and inputs.shape == value.shape and _runs_around(value, inputs)
                position = index if several else None
                shape, dtype = tuple(value.shape), value.dtype
                result.visits.append(Visit(name, call, modules[name], shape, point, position, dtype, residual))
                if layout is not None:
                    return

        return hook

    # No gradient leads from a scout's maps to the answer.
    scouts = tuple(f"{name}." for name, module in modules.items() if isinstance(module, Scout))
    inner = tuple(f"{name}." for name in replacements(model))  # what a block is made of is its own affair
    owners = [module for module in model.modules() if isinstance(module, WithAttention | Patch)]
    parts = {part for owner in owners for part in owner.get_submodule(NAME).modules()}
    for name, module in outer.items():
        hidden = module in parts or f"{name}.".startswith(scouts) or name.startswith(inner)
        if name and not hidden and not isinstance(module, torch.jit.ScriptModule):  # which take no hooks
            module.register_forward_hook(visit(name), with_kwargs=True)
    with torch.enable_grad():
        model(example)
    result.entry = min(entries.get(True) or entries.get(False) or [""], key=len)
    return result
