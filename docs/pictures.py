"""Draw the README's pictures from the quickstart's board: ``python docs/pictures.py``; the second needs Chromium.

Each holds the board's digest under the name ``Board``, so that a test finds a picture that is older than the board.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import generate
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from robustfl.reports import load_board
from robustfl.reports.figures.layout import picture, titled
from robustfl.reports.figures.summaries import heatmaps
from robustfl.reports.published import sound_board

COLOURS = 192


def heatmap(board: Path) -> bytes:
    """The heatmap of SA as PNG."""
    name, figure = next(titled(heatmaps(load_board(board))))
    assert name.startswith("heatmap sa"), name
    return picture(figure, "png")


def screenshot() -> bytes:
    """The first page of the board's site as PNG. Ends the program where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium here (apt-get install chromium): docs/leaderboard.png is as it was")
    with tempfile.TemporaryDirectory() as folder:
        generate.example(Path(folder))
        page, shot = Path(folder) / "boards" / "quickstart" / "index.html", Path(folder) / "shot.png"
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1260,860",
             f"--screenshot={shot}", page.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        return shot.read_bytes()


def save(png: bytes, name: str, digest: str) -> None:
    """Write a picture with few colours into ``docs``, with the digest of its board."""
    said = PngInfo()
    said.add_text("Board", digest)
    with Image.open(io.BytesIO(png)) as drawn:
        small = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(generate.DOCS / name, pnginfo=said, optimize=True)


def main() -> None:
    """Draw both."""
    (board,) = generate.boards("quickstart")
    digest = sound_board(board).digest
    save(heatmap(board), "quickstart.png", digest)
    save(screenshot(), "leaderboard.png", digest)


if __name__ == "__main__":
    main()
