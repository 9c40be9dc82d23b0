"""`python -m bertfam COMMAND` is `bertfam COMMAND`."""

import sys

from bertfam.cli import main

sys.exit(main())
