"""Figures of records and boards, one kind a module."""
