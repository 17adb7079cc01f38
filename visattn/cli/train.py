"""``python train.py`` and ``visattn train``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from visattn.cli.streams import make_writable, printed
from visattn.constants import TOO_EARLY
from visattn.files import in_words, say
from visattn.missing import MissingPackage, saying_what_to_install
from visattn_command import reading_flags


def main(argv: Sequence[str] | None = None, prog: str = "train.py") -> int:
    """Train a model and return the exit code.

    0 on success, 1 if a run failed, 2 if it could not be begun as asked, 130 after Ctrl-C, 143 after SIGTERM.
    """
    make_writable()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with saying_what_to_install(), printed(), reading_flags(f"{TOO_EARLY}\n".encode()):
            from visattn.cli.settings_parser import read_settings

            read_settings(argv, prog)  # help and mistakes end here, without torch
            from visattn.cli.training import run
    except (ValueError, OSError, MissingPackage) as error:
        say(f"{prog}: {in_words(error)}", error=True)
        return 1 if isinstance(error, OSError) else 2
    return run(argv, prog)
