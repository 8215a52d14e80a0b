"""Starts the ranks of a job as programs of their own: processes.py NUMBER PROGRAM [ARGUMENT...].

For what a fork of a launcher cannot do, such as to be there before torch. Ends as ranks.py does.
"""

import os
import signal
import socket
import subprocess
import sys
import time

GRACE_S = 5.0


def main():
    number, *line = int(sys.argv[1]), *sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(number):
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, *line]
        ranks.append(subprocess.Popen(command, env=os.environ | own))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: [rank.send_signal(number) for rank in ranks])
    failed = 0
    while not failed and any(rank.poll() is None for rank in ranks):
        codes = [rank.returncode for rank in ranks if rank.returncode]
        failed = codes[0] if codes else 0
        time.sleep(0.01)
    failed = failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
    for rank in ranks if failed else ():
        rank.terminate()
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
    sys.exit(failed if failed >= 0 else 128 - failed)


if __name__ == "__main__":
    main()
