"""A process whose pynvml loads the fake library: reads GPUs for a test.

Each line of standard input is a list of its ranks, as JSON; for each it prints the GPUs, which
of them is crowded, and what a watchdog that takes over would be given.
"""

from __future__ import annotations

import json
import sys

from hangwatch.evidence.gpu.device import Pace
from hangwatch.evidence.gpu.reader import Gpus, LocalRank, SavedErrors
from hangwatch.model.codec import decode, plain


def main() -> None:
    start = json.loads(sys.argv[1])
    gpus = Gpus(start["off"], Pace(read_s=0.05, silent_s=start["silent_s"]))
    gpus.restore(decode(dict[str, SavedErrors], start["earlier"]))
    for line in sys.stdin:
        ranks = [LocalRank(**rank) for rank in json.loads(line)]
        gpus.watch(ranks, active=bool(ranks))
        crowded = gpus.crowded()
        node = gpus.node()
        answer = {
            "node": plain(node),
            "crowded": crowded.uuid if crowded else None,
            "export": plain(gpus.export()),
            "pynvml": "pynvml" in sys.modules,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
