"""A job that is well and does not end by itself."""

from __future__ import annotations

from harness import PROGRAMS, watch


def test_a_healthy_job_that_is_ended_from_outside_is_not_called_failed() -> None:
    result = watch(PROGRAMS / "endless.py", nproc=2, until_printed="training")
    assert result.reports == []
    assert "hangwatch: FAILED" not in result.stderr
