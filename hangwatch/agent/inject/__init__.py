"""How the agent comes into a process, and what it does there from first to last."""
