"""What one node shows of its ranks: pages, processes, stacks, how they ended."""
