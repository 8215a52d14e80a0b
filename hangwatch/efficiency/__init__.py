"""Mistakes that do not hang a job but cost it dear: what ranks did in, notes for people out.

Pure: no clock, no files. What it is given was gathered by the agent (agent/practice/practice.py),
and only what is certain is told.
"""

from hangwatch.efficiency.facts import RankFacts, parse_facts
from hangwatch.efficiency.findings import Finding, find_costs
from hangwatch.efficiency.wording import note_of

__all__ = ["Finding", "RankFacts", "find_costs", "note_of", "parse_facts"]
