"""Write the zoo of blocks: docs/zoo.md, docs/zoo.html and docs/zoo_tree.png, from the registry and the docstrings.

Run: python -m tests.zoo    (half a minute)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.zoo import page, tree

DOCS = Path(__file__).parent.parent.parent / "docs"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    rows = page.rows()
    (DOCS / "zoo.md").write_text(page.markdown(rows))
    (DOCS / "zoo.html").write_text(page.html(rows))
    tree.draw(DOCS / "zoo_tree.png")
