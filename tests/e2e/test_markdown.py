"""Answers as Markdown: how they look when they are whole, how they grow, and that nothing in them can act."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]

EVERYTHING = r"""# Heading

A *soft* and a **strong** word, `inline <b>code</b>`, ~~gone~~, x<sub>2</sub> and a [link](https://example.com/a_b?c=1).
A second line.

3. one
4. two
   - nested

- [x] done
- [ ] open

> quoted

| name | size |
|:-----|-----:|
| tea  |  250 |

```python
def double(number):
    return number * 2  # <b>twice</b>
```

The area is $\pi r_1^2 * x_2$, and \(a_1 * b_2\):

$$
\sum_{i=1}^n x_i * y_i
$$

Costs $5 and $6, see [note].

[note]: https://example.com/note
"""

HOSTILE = (
    '<img src=x onerror="window.hit=1"> <script>window.hit=1</script> [x](javascript:window.hit=1) '
    "![secret](http://192.0.2.1/i.png?q=secret) <svg onload=window.hit=1> <a href='javascript:window.hit=1'>x</a> "
    "[y](data:text/html,<script>window.hit=1</script>) <br onclick=window.hit=1> ![z](javascript:window.hit=1)\n\n"
    '<div onmouseover="window.hit=1"><style>body{display:none}</style>\n\n'
    "<iframe src=http://192.0.2.1/></iframe>\n\n```html onload=window.hit=1\n<script>window.hit=1</script>\n```\n\n"
    "| a |\n|---|\n| <img src=http://192.0.2.1/t.png> |\n\n<form action=http://192.0.2.1/><input name=q></form>"
)


@pytest.fixture
def chat(fast_server: ServerProcess, open_page: Open) -> ChatPage:
    return open_page(fast_server.url)


def test_everything_that_models_write(chat: ChatPage, context: BrowserContext):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.ask(EVERYTHING)
    body = chat.answer
    expect(body.locator("h1")).to_have_text("Heading")
    expect(body.locator("strong")).to_have_text("strong")
    expect(body.locator("sub")).to_have_text("2")
    expect(body.locator("ol")).to_have_attribute("start", "3")
    expect(body.locator("ol li ul li")).to_have_text("nested")
    expect(body.get_by_text("☑ done")).to_be_visible()
    expect(body.locator("blockquote")).to_contain_text("quoted")
    expect(body.locator("td").last).to_have_text("250")
    expect(body.locator("td").last).to_have_css("text-align", "end")
    expect(body.locator("p > code")).to_have_text("inline <b>code</b>")
    link = body.get_by_role("link", name="link", exact=True)
    expect(link).to_have_attribute("href", "https://example.com/a_b?c=1")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(link).to_have_attribute("target", "_blank")
    # Maths is as it was written, and prices are no maths.
    assert [maths.strip() for maths in body.locator(".maths").all_text_contents()] == [
        r"$\pi r_1^2 * x_2$",
        r"\(a_1 * b_2\)",
        "$$\n\\sum_{i=1}^n x_i * y_i\n$$",
    ]
    expect(body).to_contain_text("Costs $5 and $6")
    # A reference that stood before its definition.
    expect(body.get_by_role("link", name="note")).to_have_attribute("href", "https://example.com/note")
    # Code has colours, and copies as it was written; so does the answer.
    expect(body.locator("pre .hljs-keyword").first).to_have_text("def")
    body.get_by_role("button", name="Copy").click()
    expect(body.get_by_role("button", name="Copied")).to_be_visible()
    code = "def double(number):\n    return number * 2  # <b>twice</b>"
    assert chat.page.evaluate("navigator.clipboard.readText()") == code
    assert chat.copied() == EVERYTHING
    expect(chat.questions.last).to_have_text(EVERYTHING)  # what the user writes stays as it is
    # The same after a reload.
    markup = body.evaluate("body => body.innerHTML.replace(/Copied/g, 'Copy')")
    chat.page.reload()
    chat.expect_status("completed")
    expect(chat.answer.locator("pre .hljs-keyword").first).to_have_text("def")
    assert chat.answer.inner_html() == markup


def test_answers_are_inert(chat: ChatPage):
    """Markup is shown as text, and no request leaves (see `open_page`); also after a reload."""
    chat.ask(HOSTILE)
    for _ in range(2):
        body = chat.answer
        expect(body.locator(".code")).to_be_visible()
        assert body.locator("img, script, svg, iframe, style, form, input, div[onmouseover]").count() == 0
        handlers = "[...e.attributes].some(a => a.name.startsWith('on'))"
        assert body.evaluate(f"body => [...body.querySelectorAll('*')].filter(e => {handlers}).length") == 0
        for written in (
            '<img src=x onerror="window.hit=1">',
            "[x](javascript:window.hit=1)",
            "<br onclick=window.hit=1>",
        ):
            expect(body).to_contain_text(written)
        # An image of another host is a link that says where it leads.
        image = body.get_by_role("link")
        expect(image).to_have_count(1)
        expect(image).to_have_text("Image “secret” from 192.0.2.1: open")
        assert chat.page.evaluate("window.hit") is None
        chat.page.reload()
        chat.expect_status("completed")
    expect(chat.listed.first).to_contain_text("<img")


def test_what_markdown_cannot_read_is_shown_as_it_was_written(chat: ChatPage):
    """Quotes in quotes, thousands of times; the conversation goes on, and opens again."""
    chat.until_markdown()
    quotes = ">" * 5000 + " deep"
    chat.ask(quotes)
    assert chat.ask("and **on**") == "and on"
    chat.page.reload()
    expect(chat.answers).to_have_count(2)
    chat.until_markdown()
    assert chat.answers.first.locator(".body").text_content() == quotes
    expect(chat.answer.locator("strong")).to_have_text("on")


def test_finished_blocks_are_left_alone_while_the_rest_grows(server: ServerProcess, open_page: Open):
    """The very same nodes: what a reader has selected stays selected, and code grows in one text node."""
    chat = open_page(server.url)
    chat.until_markdown()
    lines = "\n".join(f"line{number} of some code" for number in range(20))
    chat.send(
        f"First **paragraph** here.\n\n- item one\n- item two\n\n```js\n{lines}\n```\n\nThe last words are these."
    )
    code = chat.answer.locator("pre code")
    expect(code).to_contain_text("line3 ")
    now = "[body.children[0], body.querySelector('li'), body.querySelector('code').firstChild]"
    chat.answer.evaluate(f"body => {{ window.kept = {now}; }}")
    expect(code).to_contain_text("line8 ")
    assert chat.answer.evaluate(f"body => {now}.map((node, index) => node === window.kept[index])") == [True] * 3
    chat.expect_status("completed")
    assert chat.answer.evaluate(f"body => {now}.map((node, index) => node === window.kept[index])")[:2] == [True] * 2
    assert code.text_content() == lines
    expect(chat.answer.locator("p").last).to_have_text("The last words are these.")
    expect(chat.answer.locator(":scope > *")).to_have_count(4)


def test_thoughts_are_folded_away(chat: ChatPage, context: BrowserContext):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.ask("<think>\nThe user greets <me>.\n</think>\n\nHello **you**.")
    for _ in range(2):
        expect(chat.answer).to_have_text("Hello you.")
        thoughts = chat.answers.last.locator(".thoughts")
        expect(thoughts).to_be_hidden()
        chat.page.get_by_text("Thoughts", exact=True).click()
        expect(thoughts).to_have_text("The user greets <me>.")
        chat.page.reload()
        chat.expect_status("completed")
    assert chat.copied() == "Hello **you**."
