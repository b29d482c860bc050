"""Guerraoui et al., 2024."""
