"""How long a reader waits: sorting and filtering the site's largest table, in a real browser."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from robustfl.records import CellResult, Metrics, digest
from robustfl.reports import rank_board
from robustfl.reports.frame import frame
from robustfl.reports.site.writing import write_site

MEASURE = """
  const done = arguments[0], table = document.querySelector("table.listing"), times = [];
  async function timed(name, act) {
    const start = performance.now();
    act();
    const handled = performance.now() - start;
    document.body.offsetHeight;  // lays the page out
    times.push([name, handled, performance.now() - start]);
    await new Promise(after => requestAnimationFrame(() => setTimeout(after, 0)));
  }
  (async () => {
    for (const button of table.tHead.querySelectorAll("button")) await timed(button.textContent, () => button.click());
    const field = document.querySelector("input[data-column=any]");
    await timed("filter", () => { field.value = "rule-3"; field.dispatchEvent(new Event("input", {bubbles: true})); });
    done(times);
  })();
"""


def records(rows: int) -> list[CellResult]:
    """So many cells, each a row of the table of all results."""
    draw = random.Random(0)
    cells = []
    axes = itertools.product(range(rows // 100), range(10), range(10))
    for defense, norm, attack in axes:
        labels = {"defense": f"rule-{defense}", "norm": f"norm-{norm}", "attack": f"attack-{attack}", "seed": 0}
        sa = draw.random()
        metrics = Metrics(sa=sa, loss=1.0, ra={"pgd": sa / 2}, ra_worst=sa / 2, samples=100)
        cells.append(CellResult(key=digest(labels), scenario="bench", status="done", cell={"cell": labels},
                                labels=labels, metrics=metrics))  # fmt: skip
    return cells


def driver() -> Any:
    """A headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def main() -> None:
    """Print milliseconds per sort: the script's own, and with the layout of the page."""
    browser = driver()
    try:
        for rows in (1000, 2000):
            with tempfile.TemporaryDirectory() as folder:
                made = records(rows)
                write_site(rank_board(frame(made)), made, folder)
                browser.get((Path(folder) / "results.html").as_uri())
                for name, script, whole in browser.execute_async_script(MEASURE):
                    print(f"{rows} rows, {name.strip():18} {script:6.0f} ms, with layout {whole:6.0f} ms")
    finally:
        browser.quit()
