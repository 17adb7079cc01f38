"""``python -m visattn`` is the ``visattn`` command."""

import os
import sys
from contextlib import suppress

with suppress(OSError):  # a folder that is gone: the command says so
    here = os.getcwd()
    if sys.path[:1] in ([""], [here]):  # whatever lies in the current folder is not to be imported
        del sys.path[0]
        if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == here:  # a clone: only what is nowhere else
            sys.path.append(here)

from visattn_command import main

sys.exit(main())
