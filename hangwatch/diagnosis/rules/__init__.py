"""Rules that name the culprits of a hang: one module for each shape that it can have."""
