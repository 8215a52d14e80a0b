"""Programs on NCCL, healthy and not: hangwatch says of each what its header says."""

from __future__ import annotations

import pytest
import shared_gpu
from expectations import Expectation, expectations, mistakes
from recordings import ON_GPU, record

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", [pytest.param(one, id=str(one)) for one in expectations(ON_GPU)])
def test_the_verdict_on_a_program_is_what_its_header_says(
    case: Expectation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shared_gpu.needed().items():
        monkeypatch.setenv(name, value)
    result, _ = record(case, forked=False)
    if case.healthy:
        assert result.exit_code == 0
        assert {verdict["state"] for verdict in result.verdicts} <= {"slow"}
    else:
        assert mistakes(case, result) == []
