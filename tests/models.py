"""timm models for the tests."""

import timm
import torch


def model_and_images(name, number=2, size=None, **kwargs):
    """A small model in eval mode and random images; no weight is left at zero, as some heads and branches start."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **kwargs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.02
    channels, *own = model.pretrained_cfg["input_size"]
    return model, torch.rand(number, channels, *(size or own))
