"""Turn the attention of a vision transformer into patch attention, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.layers.attention import Attention as TimmAttention
from timm.layers.attention import AttentionRope
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from torch import nn

from visattn.models.image_shape import ImageShape
from visattn.models.layout import Layout, Place
from visattn.models.patch import (
    Patch,
    PatchAttention,
    PatchAttentionRope,
    PatchBeitAttention,
    PatchEvaAttention,
    PatchScope,
    attention_for,
)
from visattn.models.wrapper import plain_name
from visattn.models.wrapping import image_shape, watch_image
from visattn.registry import matching, suggest

# Names for create_model: one choice differs from timm's attention.
PATCH_ATTENTION: dict[str, dict[str, Any]] = {
    "patch": {},
    "cosine": {"score": "cosine"},
    "additive": {"score": "additive"},
    "general": {"score": "general"},
    "gaussian": {"score": "gaussian"},
    "sparsemax": {"distribution": "sparsemax"},
    "entmax15": {"distribution": "entmax15"},
    "sigmoid": {"distribution": "sigmoid"},
    "local": {"scope": "local_2d"},
    "window": {"scope": "window_2d"},
}
REPLACEMENTS: dict[type[nn.Module], type[Patch]] = {
    TimmAttention: PatchAttention,
    AttentionRope: PatchAttentionRope,
    EvaAttention: PatchEvaAttention,
    BeitAttention: PatchBeitAttention,
}
ORIGINALS = {patch: timm_class for timm_class, patch in REPLACEMENTS.items()}


def swap_attention(
    model: nn.Module,
    at: str | Sequence[str] | None = None,
    *,
    score: str = "scaled_dot",
    distribution: str = "softmax",
    scope: str = "global",
    **scope_options: Any,
) -> nn.Module:
    """Turn every attention of a vision transformer into patch attention, in place, keeping its weights.

    Args:
        model: a timm model of the ViT, DeiT, EVA or BEiT kind.
        at: names or globs of the attention modules, or of the blocks that they are in; all by default.
        score: ``scaled_dot``, ``cosine``, ``additive``, ``general``, ``gaussian``, ...
        distribution: ``softmax``, ``sparsemax``, ``entmax15``, ``sigmoid``, ...
        scope: ``global``, ``local_2d`` or ``window_2d``.
        **scope_options: ``radius`` of a local, ``size`` of a window scope.
    """
    for what, choice in (("score", score), ("distribution", distribution), ("scope", scope)):
        if not isinstance(choice, str):
            raise TypeError(f"{what} is a name, got {choice!r}")
    modules = {plain_name(name): module for name, module in model.named_modules()}
    available = {name: module for name, module in modules.items() if type(module) in REPLACEMENTS}
    if not available:
        taken = any(isinstance(module, Patch) for module in model.modules())
        reason = "already has patch attention" if taken else "has no attention that patch attention can replace"
        names = ", ".join(f"{kind.__module__}.{kind.__name__}" for kind in REPLACEMENTS)
        raise ValueError(f"{type(model).__name__} {reason} (it replaces {names})")
    patterns = ["*"] if at is None else [at] if isinstance(at, str) else list(at)
    if not patterns:
        raise ValueError("at is empty: name at least one attention")
    chosen: set[str] = set()
    for pattern in patterns:
        meant = matching(pattern, modules)
        matches = {name for name in available if name in meant or name.rpartition(".")[0] in meant}
        if not matches:
            raise ValueError(f"no attention matches {pattern!r}; there are: {', '.join(available)}")
        chosen |= matches
    targets = [module for name, module in available.items() if name in chosen]
    windows = {"local_2d": "radius", "window_2d": "size"}
    for option in scope_options:
        if option != windows.get(scope):
            valid = ["score", "distribution", "scope", *filter(None, [windows.get(scope)])]
            raise TypeError(f"patch attention with scope {scope!r} has no option {option!r}: {suggest(option, valid)}")
    entry = next((name for name in modules if name.split(".")[-1] == "patch_embed"), None)
    if scope in windows and entry is None:
        raise ValueError(f"{type(model).__name__} has no patch_embed that says how its patches lie: scope {scope!r}")
    # Patches lie as in the image.
    image = image_shape(model, entry) if scope in windows and entry is not None else ImageShape()
    prefix = getattr(modules[(entry or "").rpartition(".")[0]], "num_prefix_tokens", 0)
    side = getattr(modules.get(entry or ""), "patch_size", None) or (1, 1)
    patches = Place(entry or "", Layout("tokens", 0, prefix), (1, 1), tuple(side))
    attentions = []
    for target in targets:
        one = PatchScope(scope, prefix, image, patches, **scope_options) if scope in windows else scope
        attentions.append(attention_for(target, score, distribution, one))
    if scope in windows and entry is not None:
        watch_image(model, entry, image)
    for target, attention in zip(targets, attentions, strict=True):
        # Only the class changes: the module keeps its weights, its hooks, its place in the network and its keys in
        # state_dict, and setting the class back restores it exactly.
        target.__class__ = REPLACEMENTS[type(target)]
        target.visattn = attention.train(target.training)
        target.options = {"score": score, "distribution": distribution, "scope": scope, **scope_options}
    return model


def patched(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The options of every patch attention in a model, by name."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Patch)}
    return {plain_name(name): module.options for name, module in found.items()}


def restore_attention(model: nn.Module) -> bool:
    """Turn patch attention back into timm's, and say whether there was any."""
    swapped = [module for module in model.modules() if type(module) in ORIGINALS]
    for module in swapped:
        module.__class__ = ORIGINALS[type(module)]  # type: ignore[index]
        del module.visattn, module.options
    return bool(swapped)
