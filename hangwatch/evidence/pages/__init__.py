"""The pages of a node's ranks: found, read, and told apart by start and by job."""
