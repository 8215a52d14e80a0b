"""``hangwatch inspect``: where the ranks of any torch job on this node are now."""
