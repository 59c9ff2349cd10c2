from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from worker_agent.tools.builtin import web_fetch
from worker_agent.tools.builtin.web_fetch import WebFetch

from .support import call, context, refused

PAGE = b"""<html><head><title>Ti&amp;tle</title><style>p {}</style></head><body><script>evil()</script>
<h1>Head</h1><p>some <b>bold</b> <a href="/z">link</a></p></body></html>"""


class Handler(BaseHTTPRequestHandler):
    released = threading.Event()

    def do_GET(self) -> None:
        page: Callable[[], None] = getattr(self, f"page_{self.path.strip('/')}", self.missing)
        page()

    def answer(self, body: bytes, kind: str = "text/html; charset=utf-8", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def missing(self) -> None:
        self.answer(b"<p>no such page</p>", status=404)

    def page_html(self) -> None:
        self.answer(PAGE)

    def page_host(self) -> None:
        self.answer(self.headers["Host"].encode(), "text/plain")

    def page_json(self) -> None:
        self.answer('{"ü": 1}'.encode("latin-1"), "application/json; charset=latin-1")

    def page_binary(self) -> None:
        self.answer(b"\x00\x01", "application/octet-stream")

    def page_here(self) -> None:
        self.answer(b"", status=302, Location="/html")

    def page_there(self) -> None:
        self.answer(b"", status=302, Location="http://example.invalid/x")

    def page_file(self) -> None:
        self.answer(b"", status=302, Location="file:///etc/passwd")

    def page_circle(self) -> None:
        self.answer(b"", status=302, Location="/circle")

    def page_big(self) -> None:
        self.answer(b"x" * 100_000, "text/plain")

    def page_deep(self) -> None:
        self.answer(b"<div>" * 20_000 + b"deep text")

    def page_slow(self) -> None:
        self.answer(b"begin", "text/plain")
        self.released.wait(10)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        Handler.released.set()
        server.shutdown()


def fetch(url: str, tmp_path: Path, **settings: object) -> str:
    return call(WebFetch(), context(tmp_path, web_private=True, **settings), url=url)


def test_html_comes_as_markdown_without_scripts(server: str, tmp_path: Path) -> None:
    answer = fetch(f"{server}/html#part", tmp_path)
    assert answer.startswith(f"{server}/html answered with status 200.")
    assert answer.endswith("# Ti&tle\n\n# Head\n\nsome **bold** [link](/z)")


def test_other_text_comes_as_it_is_and_the_host_is_named_as_asked(server: str, tmp_path: Path) -> None:
    assert fetch(f"{server}/json", tmp_path).endswith('{"ü": 1}')
    assert fetch(f"{server}/host", tmp_path).endswith(server.removeprefix("http://"))


def test_an_error_status_is_part_of_the_answer(server: str, tmp_path: Path) -> None:
    answer = fetch(f"{server}/nothing", tmp_path)
    assert "status 404" in answer and "no such page" in answer


def test_redirects_on_the_same_host_are_followed_and_others_told(server: str, tmp_path: Path) -> None:
    fetcher, ctx = WebFetch(), context(tmp_path, web_private=True)
    assert "# Head" in fetch(f"{server}/here", tmp_path)
    assert "redirects to another host: http://example.invalid/x" in refused(fetcher, ctx, url=f"{server}/there")
    assert "Only http" in refused(fetcher, ctx, url=f"{server}/file")
    assert "More than 5 redirects" in refused(fetcher, ctx, url=f"{server}/circle")


def test_size_and_time_are_bounded(server: str, tmp_path: Path) -> None:
    assert fetch(f"{server}/big", tmp_path, web_bytes=1000).endswith("[Only the first 1,000 bytes were read.]")
    slow = context(tmp_path, web_timeout=0.3, web_private=True)
    assert "within 0 s" in refused(WebFetch(), slow, url=f"{server}/slow")


def test_a_hostile_depth_of_elements_is_survived(server: str, tmp_path: Path) -> None:
    assert "deep text" in fetch(f"{server}/deep", tmp_path)


def test_what_is_no_text_is_refused_in_words(server: str, tmp_path: Path) -> None:
    words = refused(WebFetch(), context(tmp_path, web_private=True), url=f"{server}/binary")
    assert "application/octet-stream" in words


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost:80/", "http://[::1]/", "http://10.1.2.3/",
        "http://169.254.169.254/latest", "http://0/", "http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://[::ffff:127.0.0.1]/",
        "http://[fe80::1]/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://router/", "http://db.internal/",
        "http://a.localhost/", "http://100.64.0.1/", "http://224.0.0.1/", "http://LOCALHOST./",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(tmp_path: Path, url: str) -> None:
    assert "local or private" in refused(WebFetch(), context(tmp_path), url=url)


def test_a_public_name_with_a_private_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def resolve(self: object, host: str, port: int, **more: object) -> list[object]:
        return [(2, 1, 6, "", ("93.184.216.34", port)), (2, 1, 6, "", ("192.168.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    assert "local or private" in refused(WebFetch(), context(tmp_path), url="http://rebound.example.org/")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "Only http"), ("ftp://example.org/", "Only http"), ("example.org", "Only http"),
        ("http://", "Only http"), ("http://user:pw@example.org/", "password"), ("http://[::1/", "valid"),
        ("https://example.org/" + "x" * 2000, "longer"), ("http://no.such.name.invalid/", "cannot be resolved"),
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_fetched_are_refused_in_words(tmp_path: Path, url: str, words: str) -> None:
    assert words in refused(WebFetch(), context(tmp_path), url=url)


def test_the_environment_of_the_agent_names_the_proxy() -> None:
    import httpx2

    def proxy(url: str, **environment: str) -> str | None:
        return web_fetch._proxy(httpx2.URL(url), environment)

    assert proxy("https://a.org/", HTTPS_PROXY="http://p:1") == "http://p:1"
    assert proxy("http://a.org/", HTTPS_PROXY="http://p:1") is None
    assert proxy("http://a.org/", all_proxy="http://p:1", no_proxy="b.org,.a.org") is None
    assert proxy("http://ba.org/", all_proxy="http://p:1", NO_PROXY="a.org") == "http://p:1"
    assert proxy("http://a.org/", all_proxy="http://p:1", NO_PROXY="*") is None


def test_the_next_address_is_tried_where_the_first_cannot_be_reached(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has three addresses; nobody listens at the first two of them."""
    import asyncio

    async def resolve(self: object, host: str, port: int, **more: object) -> list[object]:
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.3", "127.0.0.1")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    port = server.rpartition(":")[2]
    assert fetch(f"http://name.test:{port}/host", tmp_path).endswith(f"name.test:{port}")
    words = refused(WebFetch(), context(tmp_path, web_private=True), url="http://name.test:1/host")
    assert words.startswith("name.test could not be read: ")
