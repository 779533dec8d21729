"""The page's own folder, as it is served."""

from __future__ import annotations

from server.gateway.page import Page, security_headers


def test_a_missing_folder_is_an_empty_page(tmp_path):
    """A server without the page's files serves the rest."""
    assert Page(tmp_path / "none").get("/") is None


def test_the_real_page_is_found():
    """The repository's page is served at /."""
    page = Page().get("/")
    assert page is not None
    assert b"<html" in page.body


def test_a_file_is_read_once(tmp_path):
    """The same version is the same object."""
    (tmp_path / "index.html").write_text("x")
    page = Page(tmp_path)
    assert page.get("/") is page.get("/index.html")


def test_policy_names_only_plain_hosts():
    """A Host header cannot add to the policy."""
    assert "ws://a.example:80 wss://a.example:80;" in security_headers("a.example:80")["Content-Security-Policy"]
    for host in ("x; script-src *", "[::1]:8000", "", None):
        assert "connect-src 'self';" in security_headers(host)["Content-Security-Policy"]
