"""A job that is well and does not end by itself."""

from __future__ import annotations

import pytest
from harness import PROGRAMS, watch


@pytest.mark.timeout(240)
def test_a_healthy_job_that_is_ended_from_outside_is_not_called_failed() -> None:
    result = watch(PROGRAMS / "endless.py", until_printed="training")
    assert result.reports == []
    assert "hangwatch: FAILED" not in result.stderr
