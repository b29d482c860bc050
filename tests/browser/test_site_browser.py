"""The site as a reader uses it, in a real browser, from files."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_store import grid, record

from robustfl.reports import rank_board
from robustfl.reports.frame import frame
from robustfl.reports.site.writing import write_site

pytestmark = pytest.mark.browser
HOSTILE = (
    '<script>document.title="gotcha"</script><img src=x onerror="document.title=\'gotcha\'"> \'" & 🦊 ' + "long" * 50
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of all states, with hostile names in every place that a user can name."""
    records = [*grid(points=3)]
    for attack, status in (("none", "done"), ("sf", "done"), (HOSTILE, "failed"), ("alie", "refused")):
        reason = None if status == "done" else HOSTILE
        records.append(record(defense=HOSTILE, norm=HOSTILE, partition="gamma(gamma=0.0)", sa=0.99, attack=attack,
                              status=status, reason=reason))  # fmt: skip
    folder = tmp_path_factory.mktemp("site")
    write_site(rank_board(frame(records)), records, folder, description=HOSTILE, papers={"defense mean": HOSTILE})
    return folder


@pytest.fixture(autouse=True)
def quiet(browser: Any) -> Iterator[None]:
    """After every test: nothing was said on the console, nothing but files was asked for, no name was executed."""
    browser.get_log("browser")
    browser.get_log("performance")
    yield
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert browser.title != "gotcha"


def opened(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())


def find(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def column(browser: Any, heading: str) -> list[str]:
    """The shown texts of one column of the first table."""
    script = """
      const table = document.querySelector("table.listing");
      const heads = Array.from(table.tHead.rows[0].cells, c => c.textContent.trim());
      const i = heads.indexOf(arguments[0]);
      return Array.from(table.tBodies[0].rows).filter(r => !r.hidden).map(r => r.cells[i].textContent.trim());
    """
    shown: list[str] = browser.execute_script(script, heading)
    return shown


def press_heading(browser: Any, heading: str) -> None:
    next(b for b in find(browser, "thead button") if b.text.strip().startswith(heading)).click()


def choose(browser: Any, label: str, value: str) -> None:
    """Choose an option as a keyboard does; the driver's own way of clicking options tells pages less than a hand."""
    from selenium.webdriver.common.keys import Keys

    script = """
      const named = e => e.parentNode.firstChild.textContent.trim() === arguments[0];
      return Array.from(document.querySelectorAll("label > select")).find(named);
    """
    found = browser.execute_script(script, label)
    values = [o.get_attribute("value") for o in found.find_elements("tag name", "option")]
    found.send_keys(Keys.ARROW_DOWN * values.index(value))


def saved(downloads: Path, name: str) -> str:
    """The text of a download, waited for: a browser makes the file before it has written it."""
    for _ in range(400):
        if (downloads / name).is_file() and (text := (downloads / name).read_text(encoding="utf-8")):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{name} was not downloaded; there is {sorted(p.name for p in downloads.iterdir())}")


def test_a_heading_sorts_best_first_then_worst_first_and_what_has_no_number_stays_last(
    browser: Any, tmp_path: Path
) -> None:
    records = [record(defense=f"rule-{v:g}", sa=v) for v in (0.5, 1.0, 0.05)]
    records += [record(defense="a", status="refused", reason="no"), record(defense="b", status="diverged", round=2)]
    write_site(rank_board(frame(records)), records, tmp_path)
    opened(browser, tmp_path / "index.html")
    press_heading(browser, "SA, attacked")
    assert find(browser, "th[aria-sort]")[0].get_attribute("aria-sort") == "descending"
    assert [t[:7] for t in column(browser, "SA, attacked")] == ["100.0", "50.0", "5.0", "diverge", "refused"]
    press_heading(browser, "SA, attacked")
    assert find(browser, "th[aria-sort]")[0].get_attribute("aria-sort") == "ascending"
    assert [t[:7] for t in column(browser, "SA, attacked")] == ["diverge", "5.0", "50.0", "100.0", "refused"]


def test_numbers_in_names_sort_as_numbers(browser: Any, tmp_path: Path) -> None:
    records = [record(defense=d) for d in ("rule-10", "rule-9", "mean")]
    write_site(rank_board(frame(records)), records, tmp_path)
    opened(browser, tmp_path / "index.html")
    press_heading(browser, "defense")
    assert column(browser, "defense") == ["mean", "rule-9", "rule-10"]


def test_filters_combine_and_reset(browser: Any, site: Path) -> None:
    opened(browser, site / "results.html")
    total = len(column(browser, "defense"))
    choose(browser, "defense", "nnm+median")
    choose(browser, "attack", "sf")
    assert set(column(browser, "defense")) == {"nnm+median"}
    assert set(column(browser, "attack")) == {"sf"}
    assert find(browser, ".count")[0].text == f"{len(column(browser, 'attack'))} of {total} rows"
    find(browser, "[data-reset]")[0].click()
    assert len(column(browser, "defense")) == total


def test_the_first_page_opens_on_overall_and_shows_one_task_at_a_time(browser: Any, site: Path) -> None:
    opened(browser, site / "index.html")
    assert set(column(browser, "task")) == {"overall"}
    assert len(column(browser, "#")) == 16
    choose(browser, "task", "γ = 0.5")
    assert set(column(browser, "task")) == {"γ = 0.5"}
    find(browser, "[data-reset]")[0].click()
    assert set(column(browser, "task")) == {"overall"}


def test_filters_are_in_the_address_and_an_address_sets_them(browser: Any, site: Path) -> None:
    opened(browser, site / "index.html")
    choose(browser, "task", "γ = 0")
    choose(browser, "norm", "fbn")
    find(browser, "input[data-column='any']")[0].send_keys("nnm+")
    address = browser.current_url
    assert address.endswith("index.html#norm=fbn&task=%CE%B3+%3D+0&any=nnm%2B")
    shown = column(browser, "defense")
    assert shown == ["nnm+trimmed-mean", "nnm+median"]
    browser.get("about:blank")
    browser.get(address)
    assert column(browser, "defense") == shown
    assert find(browser, ".count")[0].text == "2 of 16 rows"
    find(browser, "[data-reset]")[0].click()
    assert browser.current_url.endswith("index.html")
    browser.get(f"{(site / 'index.html').as_uri()}#defense=nobody&task=none")  # what there is not is not chosen
    assert set(column(browser, "task")) == {"overall"}


def test_rows_with_fewer_seeds_can_be_hidden(browser: Any, site: Path) -> None:
    opened(browser, site / "results.html")
    find(browser, "[data-seeds]")[0].send_keys("2")
    assert set(column(browser, "seeds")) == {"2"}


def test_free_text_finds_reasons(browser: Any, site: Path) -> None:
    opened(browser, site / "results.html")
    find(browser, "input[data-column='any']")[0].send_keys("ONERROR")
    assert set(column(browser, "defense")) == {HOSTILE}


def test_a_hostile_name_is_text_can_be_chosen_and_opened(browser: Any, site: Path) -> None:
    opened(browser, site / "index.html")
    choose(browser, "defense", HOSTILE)
    assert set(column(browser, "defense")) == {HOSTILE}
    next(a for a in find(browser, "tbody a.name") if a.is_displayed()).click()
    assert find(browser, "h1")[0].text.startswith("<script>document.title=")
    assert find(browser, "main img:not(.drawn), main script") == []


def test_a_contestant_shows_curves_bars_breakdown_certificate_and_recipe(browser: Any, site: Path) -> None:
    opened(browser, site / "index.html")
    next(a for a in find(browser, "tbody a.name") if a.text == "mean").click()
    headings = [h.text for h in find(browser, "h2")]
    assert headings[:7] == ["Ranks", "Accuracy under each attack", "Training", "Breakdown", "Certificate",
                            "Run it again", "Papers"]  # fmt: skip
    drawn = find(browser, "img.drawn")
    assert drawn
    assert all(picture.get_attribute("alt") for picture in drawn)
    assert find(browser, ".bars .bar[style]")
    assert find(browser, "#command")[0].text.startswith("robustfl grid mean-")


def test_on_a_phone_every_page_stays_within_its_width_and_rows_are_whole_pixels_high(browser: Any, site: Path) -> None:
    """A sticky cell would lose its line in a row of another height."""
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    rows = "[...document.querySelectorAll('.listing tbody tr')].map(r => r.getBoundingClientRect().height)"
    try:
        for page in sorted(site.glob("*.html")) + sorted((site / "contestants").glob("*.html"))[:2]:
            opened(browser, page)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, page.name
            if page.name in ("index.html", "results.html"):
                heights = browser.execute_script(f"return {rows}")
                assert heights
                assert [h for h in heights if abs(h - round(h)) > 0.01] == [], page
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_shown_rows_are_saved_as_csv_that_no_spreadsheet_takes_for_formulas(
    browser: Any, downloads: Path, tmp_path: Path
) -> None:
    records = [record(defense=d) for d in ('=HYPERLINK("x")', "mean, weighted")]
    write_site(rank_board(frame(records)), records, tmp_path)
    opened(browser, tmp_path / "results.html")
    find(browser, "[data-csv]")[0].click()
    lines = list(csv.reader(saved(downloads, "all-results.csv").splitlines()))
    assert lines[0][:2] == ["defense", "norm"]
    assert {line[0] for line in lines[1:]} == {'\'=HYPERLINK("x")', "mean, weighted"}


def test_the_whole_board_can_be_downloaded(browser: Any, downloads: Path, site: Path) -> None:
    opened(browser, site / "index.html")
    find(browser, ".downloads a[href$='.csv']")[0].click()
    assert saved(downloads, "leaderboard.csv") == (site / "leaderboard.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["json", "tex"])
def test_other_forms_of_the_board_open_or_are_saved(browser: Any, site: Path, suffix: str) -> None:
    """A page from a file may not save another file that the browser can show; from a server it may."""
    opened(browser, site / "index.html")
    link = find(browser, f".downloads a[href$='.{suffix}']")[0]
    assert link.get_attribute("download") is not None
    link.click()
    assert browser.current_url == (site / f"leaderboard.{suffix}").as_uri()
    assert find(browser, "pre")[0].get_attribute("textContent") == (site / f"leaderboard.{suffix}").read_text(
        encoding="utf-8"
    )


def test_the_scenario_of_a_contestant_can_be_saved(browser: Any, downloads: Path, site: Path) -> None:
    page = next((site / "contestants").glob("median-fbn-*.html"))
    opened(browser, page)
    button = find(browser, "[data-save]")[0]
    browser.execute_script("arguments[0].scrollIntoView()", button)
    button.click()
    assert saved(downloads, f"{page.stem}.toml") == browser.execute_script(
        "return document.getElementById('toml').textContent"
    )


def test_everything_works_with_the_keyboard_alone(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, site / "index.html")

    def tab() -> Any:
        browser.switch_to.active_element.send_keys(Keys.TAB)
        return browser.switch_to.active_element

    first = tab()
    assert first.text == "Skip to the content"
    seen = [first]
    while not (seen[-1].tag_name == "button" and seen[-1].text.startswith("SA, attacked")):
        assert len(seen) < 60
        seen.append(tab())
    assert {"select", "input", "button", "a"} <= {e.tag_name for e in seen}
    width = "return parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    assert browser.execute_script(width) >= 2  # the focus is seen
    seen[-1].send_keys(Keys.ENTER)
    assert find(browser, "th[aria-sort]")[0].text.startswith("SA, attacked")
    while not (seen[-1].tag_name == "a" and seen[-1].get_attribute("class") == "name"):
        assert len(seen) < 90
        seen.append(tab())
    seen[-1].send_keys(Keys.ENTER)
    assert "/contestants/" in browser.current_url


def test_dark_follows_the_system_and_the_button_overrides_it(browser: Any, site: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    colours = {}
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        opened(browser, site / "index.html")
        colours[scheme] = browser.execute_script(ground)
    assert colours["light"] == "rgb(255, 255, 255)" != colours["dark"]
    find(browser, "#theme")[0].click()
    assert browser.execute_script(ground) == colours["light"]
    opened(browser, site / "about.html")
    assert browser.execute_script(ground) == colours["light"]  # remembered
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_print_leaves_out_what_cannot_be_pressed(browser: Any, site: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    opened(browser, site / "index.html")
    assert not any(e.is_displayed() for e in find(browser, "nav, .tools, #theme"))
    assert find(browser, "table.listing")[0].is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_text_keeps_its_contrast_in_light_and_dark(browser: Any, site: Path) -> None:
    script = """
      const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
      function rgb(colour) {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return Array.from(canvas.getImageData(0, 0, 1, 1).data);
      }
      function light(c) {
        const l = c.slice(0, 3).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * l[0] + .7152 * l[1] + .0722 * l[2];
      }
      function ground(e) {
        for (; e; e = e.parentElement) {
          const c = rgb(getComputedStyle(e).backgroundColor);
          if (c[3] === 255) return c;
        }
        return [255, 255, 255, 255];
      }
      let worst = [99, ""];
      for (const e of document.querySelectorAll("body *")) {
        if (!Array.from(e.childNodes).some(n => n.nodeType === 3 && n.textContent.trim())) continue;
        if (!e.getClientRects().length) continue;
        const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < worst[0]) worst = [ratio, e.className + " " + e.textContent.slice(0, 30)];
      }
      return worst;
    """
    try:
        for scheme in ("light", "dark"):
            browser.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            )
            for page in ("index", "results", "heatmaps", "statistics"):
                opened(browser, site / f"{page}.html")
                ratio, where = browser.execute_script(script)
                assert ratio >= 4.5, f"{scheme} {page}: {where}"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
