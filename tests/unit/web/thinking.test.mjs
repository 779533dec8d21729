// Thoughts and answers in one text. Run: node --test tests/unit/web/
import assert from "node:assert/strict";
import { test } from "node:test";
import { ThinkingSplitter, splitThinking } from "../../../web/thinking.js";

const CASES = [
  ["Hello", "", "Hello"],
  ["<think>\nhm\n</think>\n\nYes", "hm", "Yes"],
  ["\n <think></think>No", "", "No"],
  ["<think>never ends", "never ends", ""],
  ["<thinker> is a tag", "", "<thinker> is a tag"],
  ["an answer with <think>tags</think>", "", "an answer with <think>tags</think>"],
  ["<think>a </thin b</think>c </think> d", "a </thin b", "c </think> d"],
  ["<thi", "", "<thi"],
  ["", "", ""],
];

test("the split does not depend on where the text was cut", () => {
  for (const [text, thinking, answer] of CASES) {
    assert.deepEqual(splitThinking(text), { thinking, answer }, text);
    const splitter = new ThinkingSplitter();
    const told = [...Array.from(text, (piece) => splitter.feed(piece)), splitter.end()];
    assert.equal(told.map((part) => part.thinking).join("").trimEnd(), thinking.trimEnd(), text);
    assert.equal(told.map((part) => part.answer).join(""), answer, text);
  }
});
