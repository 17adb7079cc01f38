"""Class activation maps of any backbone: the grad-cam package's family behind one adapter.

The package wants a layer whose output is (B, C, H, W). Here it is given a probe: an identity that sits behind the
chosen module for the length of a call and sees its output as a map, whatever the arrangement (NCHW, NHWC, tokens with a
prefix). Gradients are taken to the probe only, so that parameters keep their ``.grad``.

==============  =====================================================================================
``gradcam``     Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391
``gradcam++``   Chattopadhyay et al. 2018, https://arxiv.org/abs/1710.11063
``hirescam``    Draelos & Carin 2020, https://arxiv.org/abs/2011.08891
``xgradcam``    Fu et al. 2020, https://arxiv.org/abs/2008.02312
``layercam``    Jiang et al. 2021, https://doi.org/10.1109/TIP.2021.3089943
``eigencam``    Muhammad & Yeasin 2020, https://arxiv.org/abs/2008.00299
``scorecam``    Wang et al. 2020, https://arxiv.org/abs/1910.01279: a forward pass per channel
``ablationcam`` Desai & Ramaswamy 2020, https://doi.org/10.1109/WACV45572.2020.9093360: a forward pass per channel
==============  =====================================================================================
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn

from visattn.heatmaps.memory import remembered
from visattn.heatmaps.request import Request, Result, classifier_output
from visattn.heatmaps.scaling import to_heatmap
from visattn.models.attach import choose, survey_places
from visattn.models.layout import Place
from visattn.models.survey import evaluating
from visattn.models.wrapping import replace_slot

FINE = 7  # rows and columns that a map should have

# The package's class for each method.
PACKAGE = {
    "gradcam": "GradCAM",
    "gradcam++": "GradCAMPlusPlus",
    "hirescam": "HiResCAM",
    "xgradcam": "XGradCAM",
    "layercam": "LayerCAM",
    "eigencam": "EigenCAM",
    "scorecam": "ScoreCAM",
    "ablationcam": "AblationCAM",
}


def look_at(model: nn.Module, example: Tensor) -> Place:
    """The deepest feature map that still has some resolution and a say in the output.

    Args:
        model: any network.
        example: a batch of images of the size it will be given.

    >>> import timm
    >>> look_at(timm.create_model("resnet18"), torch.rand(1, 3, 64, 64)).name
    'layer2'
    """
    return remembered(model, example, "place", lambda: _look_at(model, example))


def _look_at(model: nn.Module, example: Tensor) -> Place:
    with evaluating(model):
        places = choose(model, survey_places(model, example), "stages")
    fine = [place for place in places if min(place.size) >= FINE]
    return fine[-1] if fine else max(places, key=lambda place: min(place.size))


def place_at(model: nn.Module, example: Tensor, layer: str) -> Place:
    """The feature map behind a module of this name."""
    with evaluating(model):
        (place, *others) = choose(model, survey_places(model, example), layer)
    if others:
        raise ValueError(f"{layer!r} are {1 + len(others)} feature maps: name one")
    return place


class Probed(nn.Module):
    """A model with a probe behind one of its modules."""

    def __init__(self, model: nn.Module, place: Place) -> None:
        super().__init__()
        self.model = model
        self.place = place
        self.probe: nn.Module = nn.Identity()
        self.map: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        layout, size = self.place.layout, (images.shape[-2], images.shape[-1])

        def through(output: Tensor) -> Tensor:
            self.map = self.probe(layout.to_map(output, layout.size(output.shape, size)))
            return layout.from_map(self.map, output)

        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            return replace_slot(output, self.place.index, through)

        handle = self.model.get_submodule(self.place.name).register_forward_hook(hook)
        try:
            return classifier_output(self.model(images))
        finally:
            handle.remove()


def cam(request: Request, method: str, *, layer: str | None = None) -> Result:
    """A class activation map.

    Args:
        request: model and images.
        method: one of :data:`PACKAGE`.
        layer: name of the module behind which to look; the deepest map of at least 7x7 unless given.
    """
    model, images = request.model, request.images
    place = look_at(model, images) if layer is None else place_at(model, images, layer)
    return Result(_maps(request, place, method), (place.name,))


def grad_cam(model: nn.Module, images: Tensor, place: Place, target: Tensor | None = None) -> Tensor:
    """Grad-CAM of a batch at a place that is known, (B, H, W) in [0, 1] at the resolution of the images."""
    with evaluating(model):
        maps = _maps(Request(model, images, target), place, "gradcam")
    return to_heatmap(maps, (images.shape[-2], images.shape[-1]))


def _maps(request: Request, place: Place, method: str) -> Tensor:
    """(B, height, width) at the resolution of the place."""
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    probed = Probed(request.model, place)
    with torch.enable_grad():
        request.run(model=probed, images=request.images.detach().requires_grad_())
        activation = probed.map
        assert activation is not None
        (gradient,) = torch.autograd.grad(request.score(), activation)
    assert request.target is not None
    options = {"ablation_layer": _zeroing()} if method == "ablationcam" else {}
    package = getattr(pytorch_grad_cam, PACKAGE[method])(probed, [probed.probe], **options)
    # On reduced precision the package's NumPy would fail; its progress bars would fill the screen.
    arrays = [x.detach().float().cpu().numpy() for x in (activation, gradient)]
    targets = [ClassifierOutputTarget(int(index)) for index in request.target]
    with redirect_stderr(io.StringIO()), torch.no_grad():
        maps = package.get_cam_image(request.images, probed.probe, targets, *arrays, False)
    package.activations_and_grads.release()
    return torch.as_tensor(maps).clamp(min=0)


def _zeroing() -> nn.Module:
    """Ablation as in its paper: a channel becomes zero. (The package subtracts ten million from signed channels.)"""
    from pytorch_grad_cam.ablation_layer import AblationLayer

    class Zeroing(AblationLayer):
        def __call__(self, x: Tensor) -> Tensor:
            output = self.activations.to(x)
            output[torch.arange(len(output)), torch.as_tensor(self.indices[: len(output)]).long()] = 0
            return output

    return Zeroing()
