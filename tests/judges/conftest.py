"""A judge is a client that others wrote: what it cannot read, our users cannot either."""

import sys
from pathlib import Path

# The stands and the live cluster of the other tests.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]
