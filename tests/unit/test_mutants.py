"""Faults that ``python -m tests.mutants`` plants: those written by hand fit the sources, others are drawn from code."""

from __future__ import annotations

from tests.mutants import BY_HAND, ROOT, Mutant, arguments_for, by_hand, changes, draw, rooms_of

SOURCE = b'''
LIMIT = 3


def far(x: "int | None", y=2):
    """Add 1 + 1."""
    if x is None or x < 0:
        raise ValueError(f"{x - 1} < 0")
    z: "a | b" = x[1:] + y * 1e-6
    return -min(z, 0.5)
'''


def test_faults_written_by_hand_stand_in_the_sources_once() -> None:
    sources = {file: (ROOT / file).read_bytes() for file, *_ in BY_HAND}
    found = by_hand(sources, rooms_of([*sources]))
    assert [mutant.name for mutant in found] == [f"H{number:02}" for number in range(1, 21)]
    assert all(mutant.planted(sources[mutant.file]) != sources[mutant.file] for mutant in found)


def test_faults_are_drawn_from_the_bodies_of_functions_and_not_from_messages_types_or_defaults() -> None:
    found = [Mutant("D", "room", "f.py", start, end, new.encode()).lines(SOURCE) for start, end, new in changes(SOURCE)]
    after = {before: {new for old, new in found if old == before} for before, _ in found}
    assert after == {
        "if x is None or x < 0:": {
            "if x is not None or x < 0:", "if x is None and x < 0:", "if x is None or x <= 0:",
            "if x is None or x < 1:",
        },
        'z: "a | b" = x[1:] + y * 1e-6': {
            'z: "a | b" = x[2:] + y * 1e-6', 'z: "a | b" = x[0:] + y * 1e-6', 'z: "a | b" = x[:1] + y * 1e-6',
            'z: "a | b" = x[1:] - y * 1e-6', 'z: "a | b" = x[1:] + y / 1e-6',
        },
        "return -min(z, 0.5)": {"return min(z, 0.5)", "return -max(z, 0.5)", "return -min(z, 1.0)"},
    }  # fmt: skip


def test_a_seed_draws_the_same_faults_room_by_room() -> None:
    sources, rooms = {"a.py": SOURCE, "b.py": SOURCE}, {"a.py": "norms", "b.py": "evasions"}
    drawn = [list(draw(sources, rooms, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 2 * len(changes(SOURCE))
    assert [mutant.room for mutant in drawn[0][:4]] == ["norms", "evasions"] * 2


def test_a_file_all_of_whose_tests_are_chosen_is_named_itself() -> None:
    ids = ["a.py::one", "a.py::two", "b.py::one", "b.py::two"]
    assert arguments_for(["b.py::two", "a.py::one", "a.py::two"], ids) == ["b.py::two", "a.py"]
