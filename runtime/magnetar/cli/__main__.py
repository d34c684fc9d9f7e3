"""`python -m magnetar.cli`: the `magnetar` command where its script is not on the path."""

import sys

from magnetar.cli.main import main

sys.exit(main())
