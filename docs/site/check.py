"""Opens every page of the site in headless Chromium, without a network: python docs/site/check.py SITE [--screenshots FOLDER]

A page fails that has an error on its console, a picture that does not load, a link or an anchor that leads nowhere, or text wider than a
phone's screen. Then a search must find a page. Needs Debian's packages chromium and chromium-driver, or a Chromium of your own in PATH.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

DESKTOP, PHONE = (1280, 900), (390, 844)
SHOTS = (
    "index.html",
    "tutorials/first_layer.html",
    "tutorials/first_kernel.html",
    "howto/layer.html",
    "reference/support.html",
    "reference/configurations.html",
    "reference/api/megamoe_dsl.html",
    "explanation/one_launch.html",
    "explanation/epilogues.html",
    "lab/performance.html",
)
BROKEN_PICTURES = "return [...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)"
OVERFLOW = """
const wide = document.documentElement.scrollWidth;
if (wide <= innerWidth) return [];
return [`${wide} > ${innerWidth}`, ...[...document.querySelectorAll(".md-content *")]
  .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest("pre, .md-typeset__scrollwrap, table"))
  .slice(0, 3).map(one => one.outerHTML.slice(0, 120))]
"""


class Anchors(HTMLParser):
    """Where a page's links lead, and what can be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = {""}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(str(values["id"]))
        if tag == "a" and values.get("href"):
            self.links.add(str(values["href"]))


@cache
def anchors(page: Path) -> Anchors:
    parsed = Anchors()
    parsed.feed(page.read_text(encoding="utf-8"))
    return parsed


def broken_links(page: Path) -> list[str]:
    found = []
    for link in sorted(anchors(page).links):
        name, _, anchor = link.partition("#")
        if "://" in link or link.startswith(("mailto:", "javascript:")):
            continue
        file = (page.parent / unquote(name)).resolve() if name else page
        file = file / "index.html" if file.is_dir() else file
        if not file.is_file() or (file.suffix == ".html" and unquote(anchor) not in anchors(file).ids):
            found.append(f"link leads nowhere: {link}")
    return found


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = next(path for name in ("chromium", "google-chrome") if (path := shutil.which(name)))
    for one in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "disable-background-networking", "no-first-run"):
        options.add_argument(f"--{one}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")  # what a page fetches from the network is an error on its console
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def resize(driver: webdriver.Chrome, size: tuple[int, int]) -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def open_page(driver: webdriver.Chrome, page: Path) -> list[str]:
    """What is wrong with a page."""
    resize(driver, DESKTOP)
    driver.get(page.as_uri())
    pictures = driver.execute_script(BROKEN_PICTURES)
    resize(driver, PHONE)
    wide = driver.execute_script(OVERFLOW)
    console = [one["message"] for one in driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
    return [
        *(f"console: {one}" for one in console),
        *(f"picture does not load: {one}" for one in pictures),
        *(f"wider than a phone: {one}" for one in wide),
        *broken_links(page),
    ]


def search(driver: webdriver.Chrome, page: Path, words: str, expected: str) -> list[str]:
    """Types into the search field and waits for a result."""
    resize(driver, DESKTOP)
    driver.get(page.as_uri())
    driver.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(words)
    links = "return [...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"
    try:
        WebDriverWait(driver, 20).until(lambda one: any(expected in href for href in one.execute_script(links)))
    except Exception:
        return [f"search for {words!r} does not find {expected}: {driver.execute_script(links)}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of ten pages, wide and narrow")
    args = parser.parse_args()
    site = args.site.resolve()
    pages = sorted(site.rglob("*.html"))
    driver = browser()
    try:
        wrong = {page: found for page in pages if page.name != "404.html" and (found := open_page(driver, page))}
        wrong |= {site / name: ["page is missing"] for name in SHOTS if not (site / name).is_file()}
        wrong |= {site / "search": found} if (found := search(driver, site / "index.html", "simulator", "simulator.html")) else {}
        for name in SHOTS if args.screenshots else ():
            args.screenshots.mkdir(parents=True, exist_ok=True)
            for size, suffix in ((DESKTOP, ""), (PHONE, "-phone")):
                resize(driver, size)
                driver.get((site / name).as_uri())
                driver.save_screenshot(args.screenshots / f"{name.replace('/', '-').removesuffix('.html')}{suffix}.png")
    finally:
        driver.quit()
    for page, found in wrong.items():
        print(page.relative_to(site), *found, sep="\n  ")
    print(f"{len(pages)} pages opened, {len(wrong)} with errors")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
