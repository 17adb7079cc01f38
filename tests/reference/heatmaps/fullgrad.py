"""FullGrad+ of a small ViT without class token, from its definition.

Every number that is added as a constant is perturbed place by place, and so is every input of a block, in the network
whose constants are frozen (:mod:`tests.reference.heatmaps.balanced`). What has no place (the norm and the head behind
the pooling) is left out.
"""

import numpy as np

from tests.reference.heatmaps.balanced import Frozen, attention, gelu, layer_norm


def vit(frozen, image, p, depth, heads, moved):
    """The first logit; ``moved(name, x)`` may change x, which is what the block input or sum of that name is."""
    side = p["patch_embed.proj.weight"].shape[-1]
    channels, rows, columns = image.shape[0], image.shape[1] // side, image.shape[2] // side
    patches = image.reshape(channels, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    weight = p["patch_embed.proj.weight"].reshape(p["patch_embed.proj.weight"].shape[0], -1)

    def linear(name, x):
        return moved(f"{name}.bias", x @ p[f"{name}.weight"].T + p[f"{name}.bias"])

    def norm(name, x):
        y = layer_norm(frozen, x, p[f"{name}.weight"], p[f"{name}.bias"], 1e-6)
        return moved(f"{name}.bias", y)

    x = moved("patch_embed.proj.bias", patches @ weight.T + p["patch_embed.proj.bias"])
    x = moved("pos_embed", x + p["pos_embed"][0])
    for number in range(depth):
        block = f"blocks.{number}"
        x = moved(block, x)
        y = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", x)).reshape(len(x), 3, heads, -1)
        y = np.concatenate([attention(frozen, *y[:, :, head].transpose(1, 0, 2)) for head in range(heads)], -1)
        x = x + linear(f"{block}.attn.proj", y)
        y = gelu(frozen, linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", x)))
        x = x + linear(f"{block}.mlp.fc2", y)
    pooled = layer_norm(frozen, x.mean(0), p["fc_norm.weight"], p["fc_norm.bias"], 1e-6)
    return (pooled @ p["head.weight"].T + p["head.bias"])[0]


def fullgrad(image, p, depth, heads, step=1e-3):
    """One number per patch."""
    frozen, inputs = Frozen(), {}
    vit(frozen, image, p, depth, heads, lambda name, x: inputs.setdefault(name, x))
    frozen.filling = False

    def run(name, offset):
        frozen.position = 0
        return vit(frozen, image, p, depth, heads, lambda each, x: x + offset if each == name else x)

    total = 0
    for name, x in inputs.items():
        is_block = name.startswith("blocks") and name.count(".") == 1
        counted = x if is_block else np.broadcast_to(np.squeeze(p[name]), x.shape)
        for index in np.ndindex(x.shape):
            offset = np.zeros_like(x)
            offset[index] = step
            slope = (run(name, offset) - run(name, -offset)) / (2 * step)
            offset[index] = counted[index] * slope
            total = total + offset.sum(-1)
    return total
