"""What the user's source says: loops, conditions, handlers."""
