"""Numbers of heads and of channels that fit each other."""

from __future__ import annotations

from visattn.core.arguments import positive

LARGEST_KERNEL = 255  # pixels a side; published ones have up to 101


def fitting_heads(
    owner: str, channels: int, heads: int | None, *, most: int = 8, parts: int = 1, groups: int = 1
) -> int:
    """The number of heads: as given, or the largest up to ``most`` that divides the channels.

    No head has channels of one group and a part of another: the groups are a multiple of the heads, or the reverse.

    Args:
        owner: the block, for the message.
        channels: of all heads.
        heads: what the user asked for, if anything.
        most: so many at most if nothing was asked for.
        parts: the channels of a head are divided again, into this many equal parts.
        groups: of the projections to heads.

    >>> fitting_heads("sasa", 64, None), fitting_heads("sasa", 100, None, parts=2)
    (8, 5)
    >>> fitting_heads("halo", 96, None, groups=3)
    6
    """

    def fit(number: int) -> bool:
        return groups % number == 0 or number % groups == 0

    if heads is None:
        if channels % parts:
            raise ValueError(f"{owner} needs a multiple of {parts} channels, got {channels}")
        heads = next(number for number in range(most, 0, -1) if channels % (number * parts) == 0 and fit(number))
    if heads < 1 or channels % (heads * parts):
        rest = f" into heads of a multiple of {parts}" if parts > 1 else ""
        raise ValueError(f"{owner}: {heads} heads do not divide {channels} channels{rest}")
    if not fit(heads):
        raise ValueError(f"{owner}: {heads} heads and {groups} groups: one must be a multiple of the other")
    return heads


def output_width(owner: str, channels: int, out_channels: int | None, stride: int, groups: int = 1) -> int:
    """Channels that come out of a block in the place of a convolution; as many as go in unless given."""
    width = channels if out_channels is None else out_channels
    positive(owner, out_channels=width, stride=stride)
    for number in (channels, width):
        if groups < 1 or number % groups:
            raise ValueError(f"{owner}: {groups} groups do not divide {number} channels")
    return width


def odd(owner: str, *, most: int = LARGEST_KERNEL, **sizes: int) -> None:
    """Raise if the length of a kernel, or the side of a window, is too large or not odd: it would have no centre."""
    for name, size in sizes.items():
        if size < 1 or size % 2 == 0:
            raise ValueError(f"{owner} needs an odd {name}, got {size}")
        if size > most:
            raise ValueError(f"{owner} needs {name} to be at most {most}, got {size}")
