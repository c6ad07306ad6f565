"""`python -m osucaffe`, which is the command `osucaffe`."""

import sys

from .cli import main

sys.exit(main())
