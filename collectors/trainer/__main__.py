"""``python -m collectors.trainer``: one rank of a run, started by torchrun."""

from __future__ import annotations

import sys

from collectors.trainer.loop import main

sys.exit(main())
