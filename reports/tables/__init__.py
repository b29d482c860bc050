"""The tables of a board in every readable form."""
