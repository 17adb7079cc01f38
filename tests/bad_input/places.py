"""Wrong questions about places."""

import torch
from torch import nn

import visattn
from tests.bad_input.case import Call, Command
from visattn.models import blocks_for

CASES = [
    Command("places", "the following arguments are required: MODEL"),
    Command("places ''", "network is empty"),
    Command("places resnte18", "unknown model 'resnte18': did you mean"),
    Command("places resnet18_cbm", "unknown attention 'cbm' in 'resnet18_cbm': did you mean 'cbam'"),
    Command("places resnet18.a9_in1k", "unknown weights 'a9_in1k' of 'resnet18': did you mean"),
    Command("places ram", "ram has no feature map that a block could be put behind"),
    Command("places test_resnet --image-size 0", "image_size must be at least 1, got 0"),
    Command("places test_resnet --image-size wide", "argument --image-size: invalid int value: 'wide'"),
    Command("places test_resnet --image-size 99999999", "image_size must be at most 16384, got 99999999"),
    Command("places test_vit --image-size 3", "the network could not be run"),
    Command("places test_vit --image-size 33", "patch size (16).): images of 3 x 33 x 33 do not fit it"),
    Command("blocks --for test_vit --image-size 33", "patch size (16).): images of 3 x 33 x 33 do not fit it"),
    Command("places test_resnet test_vit", "unrecognized arguments: test_vit"),
    Command("places resnet50_cbam_se", "'resnet50_cbam_se' names two attentions, 'cbam' and 'se': see visattn.attach"),
    Command("places resnet50_halo_halo", "'resnet50_halo_halo' names two attentions, 'halo' and 'halo'"),
    Command("blocks --for resnte18", "unknown model 'resnte18': did you mean"),
    Command("blocks --for=", "--for is empty"),
    Command("blocks --for ram", "ram has no feature map that a block could be put behind"),
    Command("blocks --for test_resnet_se", "test_resnet_se has blocks already"),
    Command("blocks --for resnet18_halo", "resnet18_halo has blocks already"),
    Command("blocks cbm --for test_resnet", "no block matches 'cbm' in any family: did you mean 'cbam'"),
    Command("blocks --family chanel --for test_resnet", "unknown block family 'chanel': did you mean 'channel'"),
    Command("blocks --image-size 64", "--image-size means nothing without --for"),
    Call("places: no network", lambda: visattn.places(3), "a network or of a name, got int", TypeError),
    Call("places: no size", lambda: visattn.places("test_resnet", image_size=1.5), "whole number", TypeError),
    Call("places: too deep", lambda: visattn.places(nn.Conv2d(3, 4, 9), image_size=4), "could not be run"),
    Call(
        "places: images of a size that the network does not state",
        lambda: visattn.places(nn.Sequential(nn.Flatten(), nn.Linear(48, 4))),
        "images of 3 x 224 x 224 do not fit it",
    ),
    Call("blocks_for: no name", lambda: blocks_for("test_resnet", 3), "pattern is a name or a glob", TypeError),
    Call("blocks_for: no map", lambda: blocks_for(nn.Flatten(), image_size=8), "no feature map that a block could"),
    Call(
        "register_block: attends",
        lambda: visattn.register_block("x", family="self", paper="x", attends=torch.zeros(2)),
        "attends to something, in words",
    ),
    Call(
        "register_block: used in",
        lambda: visattn.register_block("x", family="self", paper="x", used_in=5),
        "is used in some network, in words",
    ),
]
