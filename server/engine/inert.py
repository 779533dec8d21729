"""A tokenizer that knows no control tokens, and a cache for what it made."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Characters of text whose tokens are remembered for each model: some hundred conversations. A token's id costs
# 8 bytes and stands for about 4 characters, so this is some 20 MB.
CACHE_CHARS: Final = 4_000_000
_NAME_BYTES: Final = 16
BREAK: Final = "\u200b"  # zero width space: a reader sees the same text, a tokenizer another


class InertEncoder:
    """Two copies of one tokenizer: one finds the template's control tokens, one tokenises text without them.

    A control token is every added token, marked special or not (`<think>` and `<tool_call>` often are not), except
    those that stand for white space only: some tokenizers add runs of spaces, which are ordinary text.

    tokenizer: a transformers tokenizer with `backend_tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - comes with vLLM: a gateway for remote models has none

        source = tokenizer.backend_tokenizer
        description = json.loads(source.to_str())  # some megabytes: once is enough
        added = source.get_added_tokens_decoder()
        self._controls = {
            token.content: index for index, token in added.items() if token.content.strip(" \t\r\n\u2581")
        }
        self._control_ids = frozenset(self._controls.values())
        self._forbidden = self._control_ids - _unknown_token(source, description["model"])
        description["truncation"] = description["padding"] = None
        self._finder = Tokenizer.from_str(json.dumps(description))
        self._encoder = Tokenizer.from_str(_without_controls(description, self._control_ids))

    def has_control(self, text: str) -> bool:
        """Return whether a template that held this text would make a control token of it."""
        return any(control in text for control in self._controls)

    def find_controls(self, text: str) -> Iterator[int | str]:
        """Yield the control tokens of a template's own text, and the text between them."""
        encoding = self._finder.encode(text, add_special_tokens=False)
        end = 0
        for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if index not in self._control_ids:
                continue
            if start > end:
                yield text[end:start]
            yield index
            end = stop
        if end < len(text):
            yield text[end:]

    def control_text(self, index: int) -> str:
        """Return the text of a control token."""
        return next(str(text) for text, known in self._controls.items() if known == index)

    def adds(self, index: int) -> bool:
        """Whether the tokenizer itself puts this control token before every text."""
        return bool(self._finder.encode("", add_special_tokens=True).ids[:1] == [index])

    def disarm(self, text: str) -> str:
        """Return `text` with a break in every control token that it spells, for those who take text alone."""
        for control in self._controls:
            text = text.replace(control, control[0] + BREAK + control[1:] if len(control) > 1 else BREAK)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, none of them a control token. Thread-safe."""
        token_ids = self._tokens([text])
        if self._forbidden.isdisjoint(token_ids):
            return token_ids
        return self._encode_cut(text)

    def _encode_cut(self, text: str) -> list[int]:
        """Tokenise with each control token's text cut after its first character.

        For vocabularies whose ordinary part holds the control tokens too, so that a model can reach them by
        merging (Unigram's `<s>`).
        """
        pieces = [text]
        for control in self._controls:
            pieces = [part for piece in pieces for part in _cut(piece, control)]
        return [index for index in self._tokens(pieces) if index not in self._forbidden]

    def _tokens(self, texts: list[str]) -> list[int]:
        """Return the tokens of texts, one after the other.

        As a batch also where it is one: `encode` keeps Python's lock, and a megabyte would stop the event loop for a
        second from whatever thread.
        """
        encodings = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [index for encoding in encodings for index in encoding.ids]


def _cut(text: str, control: str) -> Iterator[str]:
    """Yield `text` in pieces of which none holds `control`."""
    if len(control) == 1:
        yield from (piece for piece in text.split(control) if piece)
        return
    head, *rest = text.split(control)
    for piece in rest:
        yield head + control[0]
        head = control[1:] + piece
    if head:
        yield head


def _without_controls(description: dict[str, Any], controls: frozenset[int]) -> str:
    """Describe a tokenizer that finds none of `controls` and gives every other token its old id."""
    description["added_tokens"] = list(_disarmed(description, controls))
    description["post_processor"] = None  # it names control tokens, and only serves to add them
    _continue_text(description.get("pre_tokenizer"))
    return json.dumps(description)


def _disarmed(description: dict[str, Any], controls: frozenset[int]) -> Iterator[dict[str, Any]]:
    """Yield the added tokens, without those of `controls` that the vocabulary holds, and the others renamed.

    `tokenizers` numbers added tokens that are not in the vocabulary by their order, so none of those may be left
    out. The new name holds random digits: no text matches it.
    """
    vocabulary = description["model"].get("vocab", ())
    known = vocabulary if isinstance(vocabulary, dict) else {piece[0] for piece in vocabulary}
    for token in description["added_tokens"]:
        if token["id"] not in controls:
            yield token
        elif token["content"] not in known:
            yield {**token, "content": f"{token['id']}{secrets.token_hex(_NAME_BYTES)}"}


def _continue_text(pre_tokenizer: Any) -> None:
    """Make SentencePiece's word mark go to real spaces only: our texts stand behind a control token, and there
    the scheme `first` sets none.
    """
    if not isinstance(pre_tokenizer, dict):
        return
    if pre_tokenizer.get("prepend_scheme") == "first":
        pre_tokenizer["prepend_scheme"] = "never"
    for inner in pre_tokenizer.get("pretokenizers", ()):
        _continue_text(inner)


def _unknown_token(source: Tokenizer, model: dict[str, Any]) -> frozenset[int]:
    """Return the id that characters outside the vocabulary get, if there is one: it controls nothing."""
    index = source.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")
    return frozenset() if index is None else frozenset({index})


class TokenCache:
    """Tokens of the texts used last, bounded by their characters.

    limit: in characters.
    """

    def __init__(self, limit: int = CACHE_CHARS) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, list[int]] = OrderedDict()

    def __contains__(self, text: str) -> bool:
        return text in self._entries

    def __getitem__(self, text: str) -> list[int]:
        self._entries.move_to_end(text)
        return self._entries[text]

    def add(self, text: str, token_ids: list[int]) -> None:
        """Remember `token_ids`, forgetting the texts that were not used for longest."""
        if text in self._entries or len(text) > self._limit:
            return
        self._entries[text] = token_ids
        self._size += len(text)
        while self._size > self._limit:
            old, _ = self._entries.popitem(last=False)
            self._size -= len(old)
