"""Who left the common program: one module for each shape that a hang can have."""
