"""The evidence of one node's ranks: pages, processes, stacks, exits, Flight Recorders, GPUs."""
