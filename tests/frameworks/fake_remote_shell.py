"""A fake of remote shells: ``pdsh ARG...`` here, ``sshd`` on the other hosts.

Its own host runs the command as a remote shell would, with little but what the command
itself exports. Each other host finds it in a directory that all share ($FAKE_SPOOL), and
puts its exit code there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

OF_THE_HOST = {
    "DS_ACCELERATOR": "cpu",
    "GLOO_SOCKET_IFNAME": "eth0",
    "OMP_NUM_THREADS": "1",
}
"""What each host's own /etc/environment would say."""
OF_A_LOGIN = ("HOME", "PATH", "USER", "SHELL")
SPOOL = Path(os.environ["FAKE_SPOOL"])


def pdsh(words: list[str]) -> int:
    """Run a command on the hosts named by -w; the worst of their exit codes."""
    hosts: list[str] = []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-w":
            hosts = words.pop(0).split(",")
        elif option != "-S":
            words.pop(0)
    here, codes = socket.gethostname(), []
    commands = {host: " ".join(words).replace("%n", str(n)) for n, host in enumerate(hosts)}
    own = commands.pop(here, "true")
    for host, command in commands.items():
        leave(f"{host}.command", command)
    codes.append(run_as_login(own))
    codes += [int(found(f"{host}.exit")) for host in commands]
    return max(codes)


def sshd() -> int:
    """Run the one command that is for this host."""
    here = socket.gethostname()
    leave(f"{here}.exit", str(run_as_login(found(f"{here}.command"))))
    return 0


def run_as_login(command: str) -> int:
    """Run a command with no variable of ours but what a login has."""
    login = {name: os.environ[name] for name in OF_A_LOGIN if name in os.environ}
    return subprocess.call(["sh", "-c", command], env={**login, **OF_THE_HOST})  # noqa: S603, S607 (the test's own)


def leave(name: str, text: str) -> None:
    """Put a file into the spool, whole."""
    (SPOOL / f".{name}").write_text(text)
    (SPOOL / f".{name}").rename(SPOOL / name)


def found(name: str) -> str:
    """The text of a file in the spool, once it is there."""
    while not (SPOOL / name).exists():
        time.sleep(0.1)
    return (SPOOL / name).read_text()


if __name__ == "__main__":
    sys.exit(sshd() if sys.argv[1] == "sshd" else pdsh(sys.argv[2:]))
