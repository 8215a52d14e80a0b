"""The daemon of one node: reads pages, gathers evidence, reports."""
