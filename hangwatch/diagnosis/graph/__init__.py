"""The wait-for graph of ranks and where they wait, and its roots."""
