"""One incident, from a wait to its verdict: evidence, judgement, report, abort."""
