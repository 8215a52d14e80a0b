"""Records the calls of this rank: wrappers, groups, and either recorder."""
