"""The job as a whole from the evidence of several nodes."""

from __future__ import annotations

from dataclasses import replace

from snapshots import rank

from hangwatch.watchdog.incident.evidence import Collected, whole_job
from hangwatch.watchdog.peers.connection import Missing
from hangwatch.watchdog.peers.messages import Gathered, Local, Node

HERE = Collected(1, 6, (rank(0), rank(1)), {"a.py": "here"})
THERE = Local((rank(2, node="n1"),), {"a.py": "there", "b.py": "b"}, ("something",))


def test_what_all_nodes_know_comes_together_and_the_rest_is_said_to_be_unseen() -> None:
    job = whole_job(HERE, Gathered(owner=True, round=1, others=(THERE,)), Missing(), "why not")
    assert [one.rank for one in job.ranks] == [0, 1, 2]
    assert (job.restart, job.world_size, job.lost_nodes, job.cut_off) == (1, 6, (), False)
    assert job.sources == {"a.py": "here", "b.py": "b"}
    assert job.unseen == ("something", "ranks 3-5: why not")


def test_ranks_of_a_lost_node_are_there_by_name_unless_more_is_known_of_them() -> None:
    lost = Node("n2:run", "n2", (2, 4, 5, 99), "192.0.2.1")
    missing = Missing((lost,), cut_off=True, notes=("n2 is away",))
    job = whole_job(HERE, Gathered(owner=True, round=1, others=(THERE,)), missing, "why not")
    assert [(one.rank, one.node, one.process.alive) for one in job.ranks[2:]] == [
        (2, "n1", True),
        (4, "n2", False),
        (5, "n2", False),
    ]
    assert (job.lost_nodes, job.cut_off) == (("n2",), True)
    assert job.unseen == ("something", "n2 is away", "rank 3: why not")


def test_a_world_that_is_damage_is_not_counted_through() -> None:
    job = whole_job(replace(HERE, world_size=1 << 60), None, Missing(), "why not")
    assert len(job.ranks) == 2


def test_of_a_rank_that_two_nodes_tell_of_what_is_seen_here_counts() -> None:
    stale = Local((rank(1, node="n1"),), {}, ())
    job = whole_job(HERE, Gathered(owner=True, round=1, others=(stale,)), Missing(), "why not")
    assert [one.node for one in job.ranks] == ["n0", "n0"]
