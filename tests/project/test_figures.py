"""Every figure of the pages that make claims is one of the records.

The pages of the suite and of the published programs are what their commands make of the records now. So is a
table between ``<!-- table: tools/NAME.py -->`` and ``<!-- end of the table -->``. A figure anywhere else
stands in a paragraph that links to a page with that figure, or is said to be the paper's.
"""

import importlib.util
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from alrao_lab.cli.app import cli
from alrao_lab.provenance import unclean
from alrao_lab.recipes import harness
from alrao_lab.records import read_rows

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "comparison.md", ROOT / "docs" / "faq.md"]
GENERATED = ROOT / "tools" / "evidence.py"
TABLE = re.compile(r"^<!-- table: (\S+\.py)[^\n]*-->\n(.*?)^<!-- end of the table -->$", re.M | re.S)
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:\s?%|\s+times\b|\s+points\b|\s±)"
FIGURE = re.compile(
    rf"(?<![\w.,:@/+−-])(?:({NUMBER})\s+(?:to|and|…)\s+)?({NUMBER})(?={UNIT})|(?<!\S)([+−]\d+\.\d+)"
)
PAPERS = re.compile(
    r"\b(?:in|of) the paper\b(?!'s)|\bpaper's (?:own|Table|Figure|appendix)|\bpaper (?:found|has)"
)
USUAL = {"95 %"}
"""Figures that nobody measures: the level of an interval."""


def plain(text):
    """The text without code, comments and the addresses of links."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "", text))


def numbers(text):
    """All numbers of a text, without their signs."""
    return [
        float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text) if each[-1] != ","
    ]


def figures(paragraph):
    """The figures of a paragraph, as they are written."""
    text = plain(paragraph)
    for usual in USUAL:
        text = text.replace(usual, "")
    return [each for found in FIGURE.findall(text) for each in found if each]


def is_in(figure, known):
    """Whether one of the known numbers is the figure, at its number of digits."""
    digits = len(figure.partition(".")[2])
    value = abs(float(figure.replace(",", "").replace("−", "-")))
    return any(round(each, digits) == value for each in known)


def sources(page, paragraph):
    """The text of the local pages that a paragraph links to."""
    links = re.findall(r"\]\(([^)#\s]+)", paragraph)
    return [(page.parent / link).read_text("utf-8") for link in links if (page.parent / link).is_file()]


def unfounded(page, text):
    """The figures outside of generated tables that no linked page has."""
    found = []
    for paragraph in re.split(r"\n\s*\n", TABLE.sub("", text)):
        known = [each for source in sources(page, paragraph) for each in numbers(source)]
        if not PAPERS.search(plain(paragraph)):
            found += [each for each in figures(paragraph) if not is_in(each, known)]
    return found


def as_made(page, text):
    """The page with each of its tables as its script makes it now."""
    for script in dict.fromkeys(script for script, _ in TABLE.findall(text)):
        spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        text = module.pages()[page] if hasattr(module, "pages") else module.renewed(text)
    return text


by_hand = pytest.mark.skipif(not GENERATED.exists(), reason="its tables are not made from the records yet")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@by_hand
def test_its_tables_are_what_the_records_say(page):
    text = page.read_text("utf-8")
    assert as_made(page, text) == text, "run: make pages"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@by_hand
def test_every_other_figure_is_on_the_page_that_it_names(page):
    assert unfounded(page, page.read_text("utf-8")) == []


@by_hand
def test_the_readme_has_a_table_of_the_suite():
    assert "tools/evidence.py" in {script for script, _ in TABLE.findall(PAGES[0].read_text("utf-8"))}


@pytest.mark.parametrize("command", ["suite", "recipes"])
def test_the_page_of_a_command_is_what_the_records_say(command, tmp_path, monkeypatch):
    """It is made without the data of the workloads and without the programs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("ALRAO_DATA", raising=False)
    made = tmp_path / "page.md"
    done = CliRunner().invoke(cli, [command, "--no-run", "--markdown", str(made)])
    assert done.exit_code == 0, done.output
    page = ROOT / "docs" / f"{command}.md"
    assert made.read_text("utf-8") == page.read_text("utf-8"), "run: make pages"


def test_every_record_of_these_pages_is_of_a_clean_commit():
    workloads = sorted((ROOT / "results").glob("workload-*.jsonl.xz"))
    rows = [row["config"] for file in workloads for row in read_rows(file).values()]
    rows += harness.read(ROOT / "results" / "recipes.jsonl")
    assert len(rows) > 500
    assert not [why for row in rows if (why := unclean(row.get("commit"), row.get("modified")))]


# The test's own eyes.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 4.7 % lower (95 % interval: 5.3 to 4.0 % lower).", ["4.7", "5.3", "4.0"]),
        ("A step takes 6 to 9 times as long, with 1,000 classes.", ["6", "9"]),
        ("| Prodigy | +7.2 | −14.2 | 0.5 ± 0.1 |", ["+7.2", "−14.2", "0.5"]),
        ("At worst 1,266 % above it, by 3 points.", ["1,266", "3"]),
        ("Adam at 0.001 with torch 2.6, `a=4 %`, 30 epochs, 2019, arXiv 2505.24005.", []),
        ("```sh\npython x.py  # 12 %\n```", []),
        ("[a](b-4.html) <!-- 12 % -->", []),
    ],
)
def test_what_counts_as_a_figure(text, found):
    assert figures(text) == found


def test_a_figure_must_be_on_a_page_that_its_paragraph_links_to(tmp_path):
    (tmp_path / "suite.md").write_text("| Auto | +7.23 | 1,266 |\n")
    page = tmp_path / "page.md"
    right = "It is 7.2 % above, 1,266 % at worst ([suite](suite.md))."
    assert unfounded(page, right) == []
    assert unfounded(page, right.replace("7.2", "7.3")) == ["7.3"]
    assert unfounded(page, right.replace("(suite.md)", "(other.md)")) == ["7.2", "1,266"]
    assert unfounded(page, f"{right}\n\nIt is 7.2 % above.") == ["7.2"], "this paragraph names no page"
    assert unfounded(page, "It is 40 % above in the paper.") == []
    assert unfounded(page, "The paper's method is 40 % above.") == ["40"], "which we measure"
    table = "<!-- table: tools/evidence.py -->\n| Auto | +9.9 |\n<!-- end of the table -->"
    assert unfounded(page, table) == [], "tables are compared whole"
    assert TABLE.findall(table) == [("tools/evidence.py", "| Auto | +9.9 |\n")]


def test_a_table_is_compared_with_what_its_script_makes(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "one.py").write_text(
        "def renewed(page):\n    return page.replace('+1.0', '+2.0')\n"
    )
    text = "<!-- table: tools/one.py -->\n| +1.0 |\n<!-- end of the table -->"
    assert as_made(tmp_path / "page.md", text) == text.replace("+1.0", "+2.0")
