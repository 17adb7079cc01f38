"""Characters missing from the usual font are drawn with another installed font, or as a question mark."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

USUAL = "DejaVu Sans"  # comes with matplotlib
_said: set[str] = set()
NO_TEXT = ("cm", "STIX", "Last", "DejaVu Sans Display")  # fonts of formulas, and one that is all boxes


def use_fonts(figure: Figure) -> None:
    """Choose fonts that cover all text of a figure; what no font covers becomes "?", and a note is printed."""
    texts = figure.findobj(Text)
    letters = {letter for each in texts for letter in each.get_text()}
    families, missing = fonts_for(letters)
    for each in texts:
        each.set_fontfamily(families)
        each.set_text("".join("?" if letter in missing else letter for letter in each.get_text()))
    if missing:
        _say(missing)


def drawable(names: Iterable[str], otherwise: str) -> list[str]:
    """Replace names that no font covers by ``otherwise`` and their index, and print a note."""
    names = list(names)
    _, missing = fonts_for({letter for name in names for letter in name})
    if missing:
        _say(missing)
    return [f"{otherwise} {number}" if missing & set(name) else name for number, name in enumerate(names)]


def fonts_for(letters: Iterable[str]) -> tuple[list[str], set[str]]:
    """The usual font and any others needed, and the characters that none of them has."""
    families, missing = [USUAL], {letter for letter in letters if letter.isprintable()} - _letters(_usual())
    others = _others() if missing else {}
    while missing and others:
        best = max(others, key=lambda family: len(missing & _letters(others[family])))
        if not missing & _letters(others[best]):
            break
        families.append(best)
        missing -= _letters(others.pop(best))
    return families, missing


def _usual() -> str:
    return font_manager.findfont(USUAL)


@cache
def _others() -> dict[str, str]:
    """Files of the installed upright fonts, by family."""
    found: dict[str, str] = {}
    for font in font_manager.fontManager.ttflist:
        if font.style == "normal" and not font.name.startswith(NO_TEXT):
            found.setdefault(font.name, font.fname)
    return found


@cache
def _letters(file: str) -> frozenset[str]:
    return frozenset(chr(code) for code in font_manager.get_font(file).get_charmap())


def _say(missing: set[str]) -> None:
    """Print a note, once per character."""
    letters = "".join(sorted(missing - _said))
    _said.update(missing)
    if not letters:
        return
    shown = letters if len(letters) <= 20 else f"{letters[:20]} and {len(letters) - 20} more"
    print(f"note: no installed font has the characters {shown}; pictures show ? (install a font)", file=sys.stderr)
