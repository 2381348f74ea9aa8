"""The page: one file, nothing from the network, nothing of a stranger's taken as markup, bounded."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_builds import START, fleet, hostile, huge
from msgspec.structs import replace

from spyre_build.builds import BuildAction, BuildRecord, Span
from spyre_build.report.model import make_report
from spyre_build.report.page import MAX_PAGE_BYTES, render
from spyre_build.report.words import clean, clean_block, count, moment, percent, seconds
from spyre_cache.cache import Cache

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps what there is."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        if "href" in found:
            self.links.append(found["href"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as opened:
        yield opened


def page(cache, record):
    return render(make_report(cache, record), cache)


def check(text):
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert [tag for tag, _ in found.tags].count("script") == 1
    # Nothing is fetched, and nothing runs but the one script that the policy names.
    for _, attrs in found.tags:
        assert not {"src", "style", "srcset", "action"} & attrs.keys()
        assert not any(name.startswith("on") for name in attrs)
    assert not re.search(r"https?://", text)
    assert "default-src 'none'" in text
    return found


def test_fleet_page_tells_the_main_facts_in_text(cache):
    found = check(page(cache, fleet(cache)))
    for words in (
        "granite:7", "partial", "1 of 8 fragments could not be compiled; the other 7 are ready.",
        "the C++ compiler refuses what was generated for this operator",
        "aten::add.Scalar at model.py:60 in forward (layers.0.experts.3.mlp)", "torch 2.12.1 → 2.13.0",
        "Hits spared 15.0 s of compiling", "the range of seq was narrowed", "error: no matching function", "rack1-b",
    ):  # fmt: skip
        assert words in found.text


def test_tables_have_headers_with_scopes(cache):
    text = page(cache, fleet(cache))
    assert text.count("<table") == text.count("<thead>")
    assert text.count("<th ") == len(re.findall(r"<th [^>]*scope=\"(?:col|row)\"", text))


def test_same_build_gives_the_same_page(cache):
    record = fleet(cache)
    assert page(cache, record) == page(cache, record)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "</title><img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "{{ 7 * 7 }}",
        "</pre></details><svg/onload=alert(1)>", "a\x00b\x1b[31m", "\u202eevil\u2066", "\ud800", "]]>-->", "x" * 100_000,
    ],
)  # fmt: skip
def test_hostile_words_stay_words(cache, text):
    found = check(page(cache, hostile(text)).encode("utf-8", "replace").decode())
    assert not {"img"} & {tag for tag, _ in found.tags}
    assert "alert(1)" not in [attrs.get("onload") for _, attrs in found.tags]
    assert all(c.isprintable() or c.isspace() for c in found.text)


def test_hostile_log_stays_a_log(cache):
    record = fleet(cache)
    log = cache.blobs.put(b"</pre><script>alert(1)</script>\x1b[31mred\x00\xff" + b"<" * 100_000)
    record = replace(record, actions=tuple(replace(a, log=log) for a in record.actions))
    found = check(page(cache, record))
    assert "<script>alert(1)</script>" in found.text
    assert "bytes left out" in found.text


def test_ten_thousand_actions_give_a_bounded_page(cache):
    record = huge(10_000)
    text = page(cache, record)
    assert len(text.encode()) < MAX_PAGE_BYTES
    found = check(text)
    assert "The first 200 of 10 000" in found.text
    assert "more fragments failed" in found.text


def test_many_compilations_in_a_row_are_told_together(cache):
    found = check(page(cache, huge(10_000)))
    assert "494 shorter compilations in a row" in found.text
    assert "waiting" in found.text


def test_logs_full_of_markup_leave_the_page_bounded(cache):
    actions = []
    for i in range(300):
        log = cache.blobs.put(b"%d" % i + b'"' * 40_000)
        digest = huge(300).actions[i].fragment
        actions.append(
            BuildAction(fragment=digest, target="t", key=f"{i:064x}", outcome="failed", error='"' * 5000, log=log)
        )
    assert len(page(cache, BuildRecord(id="b", started=START, actions=tuple(actions))).encode()) < MAX_PAGE_BYTES


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (BuildRecord(id="b", started=START, status="failed", error="no layer"), "The build failed before there was a plan: no layer"),
        (BuildRecord(id="b", started=START, spans=(Span(name="capture", began=START),)), "is gone in the phase capture"),
        (BuildRecord(id="b", started=START, status="cancelled"), "Cancelled."),
        (BuildRecord(id="b", started=START, status="ok"), "There was nothing to compile."),
        (BuildRecord(id="b", started=1e300, status="ok"), "at a time that no calendar has"),
        (BuildRecord(id="b", started=-1e18, status="ok"), "at a time that no calendar has"),
    ],
)  # fmt: skip
def test_builds_without_a_plan_have_a_page(cache, record, words):
    assert words in check(page(cache, record)).text


def test_running_build_says_how_far_it_is(cache):
    record = fleet(cache, status="running")
    open_ = tuple(replace(a, outcome="planned", ended=0.0) if i > 5 else a for i, a in enumerate(record.actions))
    with cache.lease(record.id):
        found = check(page(cache, replace(record, actions=open_)))
    assert "Still running, with 2 of 8 fragments open." in found.text


def test_left_build_says_how_to_go_on(cache):
    assert "spyre-build watch 20270115-080000-c0ffee" in check(page(cache, fleet(cache, status="running"))).text


def test_page_without_a_cache_has_no_logs(cache):
    assert "<pre" not in render(make_report(cache, fleet(cache)))


def test_words_of_numbers():
    assert [seconds(v) for v in (0, 0.004, 0.35, 9.999, 12.34, 125, 3720, 7300)] == [
        "0 s", "4 ms", "0.35 s", "10.0 s", "12.3 s", "2 min 05 s", "62 min 00 s", "2 h 01 min",
    ]  # fmt: skip
    assert [percent(v) for v in (0, 0.001, 0.25, 1)] == ["0 %", "< 1 %", "25 %", "100 %"]
    assert (count(1, "run"), count(2, "entry", "entries")) == ("1 run", "2 entries")
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert clean("a\nb\x1b\u202e") == "a b\\x1b\\u202e"
    assert clean_block("a\r\n\tb\x00") == "a\n\tb\\x00"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; it is too large to install for one test")
def test_page_renders_in_a_browser_with_its_script_and_without_complaint(cache, tmp_path):
    (tmp_path / "page.html").write_text(page(cache, fleet(cache)), encoding="utf-8")
    words = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0", "--dump-dom",
        (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    # The policy let our style and script through, and had nothing to refuse.
    assert 'class="js"' in done.stdout
    assert '<button type="button">Outcome</button>' in done.stdout
    assert "CONSOLE" not in done.stderr
    assert "Content Security Policy" not in done.stderr
