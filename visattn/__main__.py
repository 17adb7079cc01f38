"""``python -m visattn`` is the ``visattn`` command."""

import sys

from visattn_command import main

sys.exit(main())
