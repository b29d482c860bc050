"""Boards that come with robustfl, to compare others with; the newest of every tier of the benchmark, and quickstart."""
