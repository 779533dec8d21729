"""`python -m server` is `tokenwire`."""

import sys

from server.cli import main

sys.exit(main())
