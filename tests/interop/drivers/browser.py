"""A page's own `WebSocket` in Chromium, signed in as browsers do it: by a subprotocol."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.e2e.browser import chromium
from tests.interop.drivers.case import cut, run

PLAIN = Path(__file__).with_name("plain.js")
DO = """async ([url, name]) => {
  const { plainCases } = await import("/plain.js");
  const open = () => new WebSocket(url, ["responses", "openai-insecure-api-key.k"]);
  await plainCases(open, () => window.cut())[name]();
}"""


def main() -> None:
    url = sys.argv[1]
    with chromium() as browser:
        page = browser.new_page()
        page.route("**/plain.js", lambda route: route.fulfill(path=PLAIN, content_type="text/javascript"))
        page.expose_function("cut", cut)
        page.goto(f"{url}/")

        def in_the_page(name: str, url: str) -> None:
            page.evaluate(DO, [f"{url.replace('http', 'ws', 1)}/v1/responses", name])

        run({name: partial(in_the_page, name) for name in ("happy", "turns", "cancel", "error", "reconnect", "tools")})


if __name__ == "__main__":
    main()
