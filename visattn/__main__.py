"""``python -m visattn`` is the ``visattn`` command."""

import sys

from visattn.cli import main

sys.exit(main())
