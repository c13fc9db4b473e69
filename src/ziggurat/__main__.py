"""``python -m ziggurat`` is ``ziggurat``."""

import sys

from ziggurat.cli import main

sys.exit(main())
