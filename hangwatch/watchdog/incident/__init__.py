"""One incident, from a wait to its verdict: evidence, judgement, report, what is done."""
