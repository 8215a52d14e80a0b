"""Two ranks, as far as their pages go: one waits, the other is elsewhere and raises in the end.

Arguments: whatever secrets there are; those of the child and of the exception come by files.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from acting_rank import Rank

run_dir = Path(os.environ["HANGWATCH_DIR"])
with Rank(run_dir, 0) as first, Rank(run_dir, 1) as second:
    for rank in (first, second):
        rank.do("work 3")
        rank.do(f"child {Path('child').read_text()}")
    first.do("begin")
    while not Path("end").exists():
        time.sleep(0.05)
    second.send(f"raises {Path('raised').read_text()}")
    second.process.wait()
sys.exit(3)
