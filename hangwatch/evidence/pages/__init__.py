"""The pages of a node's ranks: found, read, and separated by start and by job."""
