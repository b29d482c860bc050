"""A static site of one board."""
