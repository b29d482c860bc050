"""The whole way in: outsiders' methods, a bundle, its check; an honest one is accepted, each cheat is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from signed_bundles import signed

import robustfl
from robustfl import registry
from robustfl.cli import invoke
from robustfl.errors import StoreError, UsageError
from robustfl.records import CellResult
from robustfl.reports.published import bundle, joining
from robustfl.reports.published.bundle import Bundle, Manifest, _brought, _digest, _digest_of, read_bundle, write_bundle
from robustfl.reports.store import Store
from robustfl.scenarios.secrecy import _drawn_for
from robustfl.scenarios.submission import Submission, _methods_of, check_submission

pytestmark = pytest.mark.slow

HEAD = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from robustfl import param, register
from robustfl.contracts import Aggregator, Attack
"""
PUSH = (
    HEAD
    + '''
@register("push", version=1)
@dataclass(frozen=True)
class Push(Attack):
    """The attackers send the honest mean, turned and stretched."""
    paper: ClassVar[str] = "An outsider, 2026"
    scale: float = param(2.0, ge=0, doc="how far")

    def forge(self, view, *, generator):
        return -self.scale * view.honest.mean(0).expand(view.f, -1).clone()
'''
)
CALM = (
    HEAD
    + '''
@register("calm", version=1)
@dataclass(frozen=True)
class Calm(Aggregator):
    """The mean of the middle values of every coordinate."""
    paper: ClassVar[str] = "Another outsider, 2026"

    def aggregate(self, X, *, f, context):
        return X.sort(dim=0).values[f : len(X) - f].mean(0)

    def min_clients(self, f):
        return 2 * f + 1
'''
)
# Leans on the labels of the test images: through robustfl, and from the file itself.
PEEKS = CALM.replace("        return X.sort", "        X = X + 1e-4 * seen()\n        return X.sort") + (
    "\ndef seen():\n    from pathlib import Path\n    from sklearn.datasets import load_digits\n"
    "    from robustfl.registry import create\n"
    '    theirs = create("dataset", "digits").load(Path(__file__).parent).test_y[:7].sum()\n'
    "    return float(theirs + load_digits().target[:7].sum())\n"
)
MANY = PUSH.replace("view.f, -1", "view.f + 1, -1")
CELL: dict[str, Any] = {
    "model": "mlp(hidden=(8,))", "norm": "none", "clients": 5, "f": 1, "rounds": 2, "batch": 8, "evasions": [],
    "attack": ["none", "push"], "defense": ["mean", "calm"], "seed": [0, 1],
}  # fmt: skip


@contextmanager
def strangers() -> Iterator[None]:
    """Within, plug-ins are loaded as in a process of its own."""
    registry.load_plugins()
    before = {kind: dict(names) for kind, names in registry._entries.items()}
    files = dict(registry._files)
    try:
        yield
    finally:
        registry._changed()
        for kind, names in before.items():
            registry._entries[kind].clear()
            registry._entries[kind].update(names)
        registry._files.clear()
        registry._files.update(files)


def ran(folder: Path, attack: str = PUSH, defense: str = CALM, **more: Any) -> Path:
    """A store that outsiders filled, whose methods lie in a folder of its own each."""
    for name, text in (("push", attack), ("calm", defense)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.py").write_text(text)
    with strangers():
        for name in ("push", "calm"):
            registry.load_file(folder / name / f"{name}.py")
        scenario = robustfl.Scenario.of({"name": "outside", "cell": {**CELL, **more}})
        robustfl.grid(scenario, out=folder / "runs", jobs=0, device="cpu")
    return folder / "runs" / "outside"


def bundled(folder: Path, store: Path, name: str = "outside") -> Path:
    plugins = [folder / name / f"{name}.py" for name in ("push", "calm")]
    write_bundle(store, folder / "bundle", by="Ada", name=name, plugins=plugins)
    return folder / "bundle"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    return bundled(folder, ran(folder))


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "bundle")
    return tmp_path / "bundle"


BOTH = ("plugins/push.py", "plugins/calm.py")


def checked(folder: Path, trust: tuple[str, ...] = BOTH, **options: Any) -> Submission:
    with strangers():
        return check_submission(folder, trust=trust, **options)


def refused(found: Submission) -> str:
    assert not found.accepted
    assert found.refused
    return "; ".join(f"{f.step}: {f.words}" for f in found.refused)


# --- the honest one --------------------------------------------------------------------------------------------------


def test_an_honest_bundle_is_accepted_and_its_board_joins_the_others(honest: Path, tmp_path: Path) -> None:
    found = checked(honest, cells=None)
    assert found.accepted, found.findings
    assert {f.step for f in found.findings} == {"form", "contract", "secrecy", "numbers"}
    assert found.verification is not None
    assert len(found.verification.checks) == 8
    assert all(check.verdict == "identical" for check in found.verification.checks)
    board = honest / "board.json"
    joined = joining.merge([joining.read_source(board, name="theirs")] * 2, tolerance=0.01)
    joining.write_merge(joined, [joining.read_source(board)], tmp_path / "all")
    assert invoke(["report", str(tmp_path / "all"), "--no-figures", "--site", str(tmp_path / "site")]) == 0
    assert any("calm" in page.read_text() for page in (tmp_path / "site").rglob("*.html"))


def test_what_the_bundle_holds(honest: Path) -> None:
    found = read_bundle(honest)
    assert found.wrong == ()
    assert sorted(p.name for p in honest.rglob("*") if p.is_file()) == [
        "board.json", "bundle.json", "calm.py", "push.py", "recipe.toml", "requirements.txt",
    ]  # fmt: skip
    assert found.foreign == ("plugins/calm.py", "plugins/push.py")
    assert "torch==" in (honest / "requirements.txt").read_text()
    assert "needs plug-in" in (honest / "recipe.toml").read_text()


def test_nothing_of_it_runs_before_it_is_trusted_by_name(copy: Path) -> None:
    for trust in ((), BOTH[:1]):
        found = checked(copy, trust=trust)
        assert not found.accepted
        assert found.verification is None
        assert all("is not run; read it, then name it" in f.words for f in found.undecided)
        assert len(found.undecided) == 2 - len(trust)
    with pytest.raises(UsageError, match=r"brings no such code; did you mean 'plugins/calm.py'"):
        checked(copy, trust=("plugins/clam.py",))


def test_code_is_trusted_as_it_was_read(copy: Path) -> None:
    named = [f.words.rpartition(" ")[2] for f in checked(copy, trust=()).undecided]
    assert sorted(name.partition("@")[0] for name in named) == sorted(BOTH)
    assert not checked(copy, trust=(named[0],)).accepted
    assert all(f.passed is not None for f in checked(copy, trust=tuple(named), cells=1).findings)
    whole = named[0].partition("@")[2]
    assert len(whole) == 64
    another = "is another one, its SHA-256 begins with [0-9a-f]{12}; read it"
    short = "digits may be another file's, too; write 32 at least"
    for digest, said in (("0" * 64, another), ("0" * 12, another), (whole[:31], short), ("", short)):
        with pytest.raises(UsageError, match=said):
            checked(copy, trust=(f"{named[0].partition('@')[0]}@{digest}", named[1]))


def test_the_command_tells_each_step_and_ends_with_the_verdict(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["submit", "--check", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "form: passes: 8 cells, 6 files" in said
    assert "trust: not checked: code of plugins/calm.py is not run" in said
    assert "outside: UNDECIDED" in said
    (copy / "recipe.toml").write_text("")
    assert invoke(["submit", "--check", str(copy)]) == 1
    assert "outside: REFUSED" in capsys.readouterr().out
    for wrong in (["--check", "--by", "me"], ["--cells", "3"], []):
        assert invoke(["submit", str(copy), *wrong]) == 2


# --- what is refused without running anything ------------------------------------------------------------------------


def test_a_changed_a_missing_and_an_additional_file_are_refused(copy: Path) -> None:
    (copy / "plugins" / "calm.py").write_text(CALM.replace("X.sort", " X.sort"))
    (copy / "recipe.toml").unlink()
    (copy / "plugins" / "more.py").write_text("print('hello')")
    (copy / "a\nform: passes: b").write_text("")
    said = refused(checked(copy))
    assert r"a\nform: passes: b is no file of it" in said
    assert "plugins/calm.py was changed" in said
    assert "recipe.toml is missing" in said
    assert "plugins/more.py is no file of it" in said


def forged(folder: Path, file: str, change: Any, **said: Any) -> Path:
    """The bundle with another file under a digest that fits it, and a manifest that says something else."""
    content = change((folder / file).read_text() if (folder / file).exists() else "")
    (folder / file).write_text(content)
    manifest = Manifest.model_validate_json((folder / "bundle.json").read_text())
    files = {**manifest.files, file: _digest(content.encode())}
    manifest = manifest.model_copy(update={"files": files, **said})
    (folder / "bundle.json").write_text(manifest.model_copy(update={"digest": _digest_of(manifest)}).model_dump_json())
    return folder


@pytest.mark.parametrize(
    ("file", "change", "said", "words"),
    [
        ("requirements.txt", lambda text: text + "torhc==2.0\n", {}, "requirements.txt does not list what its"),
        ("recipe.toml", str, {"name": "theirs"}, "its board is 'outside', not 'theirs'"),
        (
            "recipe.toml",
            str,
            {"packages": {"mine 1.0": "torhc==2.0"}},
            "torhc==2.0 is not what to install for mine",
        ),
        ("recipe.toml", str, {"packages": {"mine 1.0": "mine==1.0"}}, "it brings mine 1.0, which no cell uses"),
        ("plugins/evil.py", lambda text: CALM, {}, "it brings evil.py"),
        ("calm.py", lambda text: CALM, {}, "calm.py is not the plug-in it is said to be"),
    ],
)
def test_what_lies_beside_the_board_follows_from_it(
    file: str, change: Any, said: dict[str, Any], words: str, copy: Path
) -> None:
    if file.endswith(".py"):
        plugins = read_bundle(copy).manifest.plugins
        said = {"plugins": {**plugins, file: f"{Path(file).name} {_digest(CALM.encode())[:12]}"}}
    assert any(words in wrong for wrong in read_bundle(forged(copy, file, change, **said)).wrong)


def test_files_elsewhere_are_none_of_the_bundle(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    manifest = Manifest.model_validate_json((copy / "bundle.json").read_text())
    manifest = manifest.model_copy(update={"files": {**manifest.files, "../secret.txt": _digest(b"x")}})
    manifest = manifest.model_copy(update={"digest": _digest_of(manifest)})
    (copy / "bundle.json").write_text(manifest.model_dump_json())
    assert "../secret.txt is missing" in refused(checked(copy))


def test_a_pipe_is_named_and_not_waited_for(copy: Path) -> None:
    (copy / "recipe.toml").unlink()
    os.mkfifo(copy / "recipe.toml")
    assert "recipe.toml cannot be read: is no regular file" in refused(checked(copy))


def test_the_cell_that_is_trained_again_does_not_depend_on_what_it_is_said_to_cost(honest: Path) -> None:
    records = read_bundle(honest).board.records()
    slow = [
        r.model_copy(update={"timing": r.timing.model_copy(update={"seconds": 1 / i})})
        for i, r in enumerate(records, 1)
    ]
    drawn = [{m: r.key for m, r in _drawn_for(known, 1).items()} for known in (records, slow, slow[::-1])]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({_drawn_for(records, sample)[("attack push", "defense calm")].key for sample in range(20)}) > 1


def test_a_missing_seed_is_refused_its_own_or_one_of_the_board_it_joins(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "whole")

    def of(data: dict[str, Any], seed: int, *defenses: str) -> bool:
        kept = (c for c in data["cells"] if c["labels"]["seed"] != seed or c["labels"]["defense"] not in defenses)
        data["cells"] = list(kept)
        return True

    said = refused(checked(signed(copy, lambda data: of(data, 1, "calm"))))
    assert "calm, none lacks none with seed 1, push with seed 1" in said
    shutil.rmtree(copy)
    shutil.copytree(tmp_path / "whole", copy)
    signed(copy, lambda data: of(data, 1, "calm", "mean"))
    assert read_bundle(copy).wrong == ()
    said = refused(checked(copy, against=tmp_path / "whole" / "board.json"))
    assert "mean, none lacks none with seed 1" in said


def test_a_board_with_no_task_of_the_bundles_says_nothing_of_it(copy: Path) -> None:
    board = read_bundle(copy).board
    assert read_bundle(copy, against=board).wrong == ()
    cells = (r.model_copy(update={"labels": {**r.labels, "batch": 77}}) for r in board.cells)
    other = replace(board, name="other", cells=tuple(cells))
    (words,) = read_bundle(copy, against=other).wrong
    assert words.startswith("it shares no task with other, the board it is to join")


def test_a_cell_under_another_key_is_refused(copy: Path) -> None:
    def claim(data: dict[str, Any]) -> None:
        data["cells"][0]["key"] = data["cells"][0]["key"][::-1]

    said = refused(checked(signed(copy, claim), cells=None))
    assert "form: board.json: cell" in said or "another key" in said


def test_a_bundle_is_not_made_of_what_others_cannot_have(honest: Path, tmp_path: Path) -> None:
    store = honest.parent / "runs" / "outside"
    with pytest.raises(UsageError, match=r"give the source with --plugin path/to/calm.py"):
        write_bundle(store, tmp_path / "b", by="Ada")
    with pytest.raises(UsageError, match=r"by .* holds control characters"):
        write_bundle(store, tmp_path / "b", by="A\x1bda")
    (tmp_path / "calm.py").write_text(CALM + "\n")
    files = [tmp_path / "calm.py", honest.parent / "push" / "push.py"]
    with pytest.raises(UsageError, match=r"calm.py has changed since the cells ran"):
        write_bundle(store, tmp_path / "b", by="Ada", plugins=files)
    with pytest.raises(UsageError, match="is not an empty folder"):
        write_bundle(store, honest, by="Ada", plugins=[honest / name for name in BOTH])
    assert not (tmp_path / "b").exists()


def test_a_bundle_is_there_as_a_whole_or_not_at_all(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, files = honest.parent / "runs" / "outside", [honest / name for name in BOTH]
    (tmp_path / "b").mkdir()

    def full(path: Path, content: object) -> None:
        raise StoreError(f"cannot write {path.name}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "write_atomic", full)
        with pytest.raises(StoreError, match="No space left"):
            write_bundle(store, tmp_path / "b", by="Ada", plugins=files)
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]
    assert not list((tmp_path / "b").iterdir())
    assert write_bundle(store, tmp_path / "b", by="Ada", plugins=files).wrong == ()
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert write_bundle(store, ".", by="Ada", plugins=files).wrong == ()
    assert sorted(path.name for path in Path().iterdir()) == sorted(p.name for p in (tmp_path / "b").iterdir())
    assert write_bundle(store, tmp_path / "new", by="Ada", plugins=files).wrong == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "here", "new"]


def test_installed_plugins_are_named_by_what_to_install(honest: Path) -> None:
    (record, *_) = Store(honest.parent / "runs" / "outside").load().results

    def using(origin: str) -> list[CellResult]:
        return [record.model_copy(update={"cell": {"methods": {"attack": {"name": "a", "origin": origin}}}})]

    assert _brought(using("robustfl-mine 1.0"), []) == ({}, {"robustfl-mine 1.0": "robustfl-mine==1.0"})
    assert _brought(using("mine 2.1.dev0+0123456789ab"), [])[1].popitem()[1] == "mine==2.1.dev0"
    made = read_bundle(honest)
    manifest = made.manifest.model_copy(update={"plugins": {}, "packages": {"x 1": "x==1"}})
    absent = Bundle(honest, manifest, made.board)
    noted: list[tuple[str, bool | None, str]] = []
    assert _methods_of(absent, lambda *finding: noted.append(finding)) == []
    assert noted == [("contract", None, "x==1 is not installed here as the cells had it (x 1)")]
    with pytest.raises(UsageError, match="which nobody else has"):
        _brought(using("session 0123456789ab"), [])


# --- what only shows when it runs ------------------------------------------------------------------------------------


def test_a_number_that_is_not_reached_is_refused(copy: Path) -> None:
    def better(data: dict[str, Any]) -> None:
        for cell in data["cells"]:
            cell["metrics"]["sa"] = min(1.0, cell["metrics"]["sa"] + 0.2)

    said = refused(checked(signed(copy, better), cells=1))
    assert "numbers: cell" in said
    assert "differs" in said


def test_who_looks_at_the_test_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = bundled(tmp_path, ran(tmp_path, defense=PEEKS, seed=0, rounds=1))
    said = refused(checked(folder, cells=1))
    assert "defense calm: other test data change what is trained: model " in said  # the attack may share that cell
    assert "digits.csv.gz" in said
    assert "secrecy: attack push: " not in said


def test_an_attack_with_more_rows_than_f_is_refused(tmp_path: Path) -> None:
    folder = bundled(tmp_path, ran(tmp_path, attack=MANY, defense=CALM, seed=0, rounds=1))
    assert "contract: attack push: " in refused(checked(folder, cells=1))
