"""Mistakes that do not hang a job but cost it dear: what ranks did in, notes for people out.

Pure: no clock, no files. What it is given was gathered by the agent (agent/practice.py),
and only what is certain is told.
"""

from hangwatch.costly.facts import RankFacts, parse_facts
from hangwatch.costly.findings import Finding, find_costs
from hangwatch.costly.wording import note_of

__all__ = ["Finding", "RankFacts", "find_costs", "note_of", "parse_facts"]
