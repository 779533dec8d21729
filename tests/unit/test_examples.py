"""Examples for languages that the tests cannot run: their syntax, by the grammars that editors use."""

from __future__ import annotations

import pytest
import tree_sitter_dart
import tree_sitter_kotlin
import tree_sitter_swift
from tree_sitter import Language, Node, Parser

from tests.support.server import ROOT

GRAMMARS = {"swift": tree_sitter_swift, "kt": tree_sitter_kotlin, "dart": tree_sitter_dart}
MAX_LINES = 120  # a page or so


def faults(language: str, source: bytes) -> list[str]:
    """Return the places that the grammar does not know."""

    def walk(node: Node) -> list[str]:
        if node.is_error or node.is_missing:
            return [f"line {node.start_point.row + 1}: {source[node.start_byte : node.end_byte][:60]!r}"]
        return [fault for child in node.children for fault in walk(child)]

    return walk(Parser(Language(GRAMMARS[language].language())).parse(source).root_node)


@pytest.mark.parametrize("language", GRAMMARS)
def test_an_example_is_well_formed_and_short(language: str):
    source = (ROOT / "examples" / f"resume.{language}").read_bytes()
    assert faults(language, source) == []
    assert len(source.splitlines()) <= MAX_LINES
    # The recipe's words, which all examples share.
    for word in (b"response.create", b"response.retrieve", b"starting_after", b"sequence_number", b"retry_after_ms"):
        assert word in source


@pytest.mark.parametrize("language", GRAMMARS)
def test_a_fault_would_be_found(language: str):
    before, _, after = (ROOT / "examples" / f"resume.{language}").read_bytes().rpartition(b"(")
    assert faults(language, before + after) != []
