"""`python -m bertfam COMMAND` is `bertfam COMMAND`."""

import sys

from bertfam.cli import start

sys.exit(start())
