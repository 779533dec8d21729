// What the page computes without a browser: metadata, attachments, files, preferences. Run: node --test tests/unit/web/
import assert from "node:assert/strict";
import { test } from "node:test";
import { compose, parse, readText } from "../../../web/attachments.js";
import { fileName, fromJson, toJson, toMarkdown } from "../../../web/conversation-file.js";
import { figuresOf } from "../../../web/figures.js";
import { addVersion, leaveVersion, optionsOf, requestOf, versionsOf, withOptions, withVersions } from "../../../web/metadata.js";
import { footFor } from "../../../web/messages-view.js";
import { Preferences } from "../../../web/preferences.js";
import { newMessage } from "../../../web/state.js";
import { KeptStorage } from "../../../web/storage.js";
import { ENGLISH } from "../../../web/words.js";
import { CHINESE } from "../../../web/words.zh.js";

const NONE = { model: null, instructions: "", temperature: null, top_p: null, max_output_tokens: null };
const id = (number) => `resp_${String(number).padStart(32, "0")}`;

test("options are kept in metadata that the wire takes, and come back as they were", () => {
  const options = { model: "big", instructions: "🫠".repeat(1300), temperature: 0, top_p: 0.9, max_output_tokens: 64 };
  const metadata = withOptions({ title: "T", other: "x" }, options);
  assert.deepEqual(optionsOf(metadata), options);
  assert.ok(Object.values(metadata).every((value) => Array.from(value).length <= 512));
  assert.deepEqual(withOptions(metadata, NONE), { title: "T", other: "x" });
  assert.deepEqual(requestOf(options).temperature, 0);
  assert.deepEqual(requestOf(NONE), {});
  assert.deepEqual(optionsOf({ temperature: "hot" }), NONE);
});

test("versions of turns: one is made, left, made inside another, and all come back", () => {
  let groups = addVersion([], { turn: id(1), leaf: id(3) }, id(4));
  groups = addVersion(groups, { turn: id(4), leaf: id(4) }, id(5));
  groups = leaveVersion(groups, { turn: id(5), leaf: id(9) });
  groups = addVersion(groups, { turn: id(7), leaf: id(7) }, id(8));
  assert.deepEqual(versionsOf(withVersions({ title: "T" }, groups)), groups);
  assert.deepEqual(addVersion(groups, { turn: id(7), leaf: id(7) }, id(8)), groups); // told twice, it is there once
  assert.deepEqual(groups[0].map(({ turn, leaf }) => [turn, leaf]), [[id(1), id(3)], [id(4), id(4)], [id(5), id(9)]]);
  assert.deepEqual(withVersions({ title: "T" }, []), { title: "T" });
});

test("with options and versions at their longest there are 16 keys at most; the oldest versions go", () => {
  const full = withOptions({ title: "T", root: id(0) }, { model: "m", instructions: "x".repeat(5000), temperature: 1, top_p: 1, max_output_tokens: 1 });
  const groups = Array.from({ length: 60 }, (_, number) => [{ turn: id(number), leaf: id(number) }, { turn: id(number + 100), leaf: id(number + 200) }]);
  const metadata = withVersions(full, groups);
  assert.ok(Object.keys(metadata).length <= 16);
  assert.deepEqual(versionsOf(metadata).at(-1), groups.at(-1));
});

test("files in a message are found again, whatever is in them", () => {
  const files = [{ name: "a.md", text: "```js\nx\n```\n\nFile: b\n````\n" }, { name: "b `c`.txt", text: "" }, { name: "d", text: "`````" }];
  assert.deepEqual(parse(compose(files, "What is this?")), { files, text: "What is this?" });
  assert.deepEqual(parse("File: no file"), { files: [], text: "File: no file" });
});

test("only text is read", async () => {
  assert.equal(await readText(new File(["a\r\nb\rc"], "a.txt")), "a\nb\nc");
  assert.equal(await readText(new File([new Uint8Array([0xff, 0xfe])], "a")), null);
  assert.equal(await readText(new File(["a\0b"], "a")), null);
});

test("a conversation goes out and comes in; lists of other programs come in, too; nothing else does", () => {
  const items = [
    { type: "message", role: "user", content: [{ type: "input_text", text: "Hi" }] },
    { type: "reasoning" },
    { type: "message", role: "assistant", content: [{ type: "output_text", text: "Ho" }] },
  ];
  const metadata = { title: "T", model: "m", root: id(1), versions: "x", "versions.2": "y" };
  const messages = [{ role: "user", content: "Hi" }, { role: "assistant", content: "Ho" }];
  assert.deepEqual(fromJson(toJson({ id: "conv_1", created_at: 1, metadata }, items)), { metadata: { title: "T", model: "m" }, items: messages });
  assert.deepEqual(fromJson(JSON.stringify(messages)), { metadata: { title: "Hi" }, items: messages });
  for (const text of ["", "{", "null", "3", "[]", "{}", '[{"role":"tool"}]', '{"messages":[null]}']) assert.equal(fromJson(text), null, text);
  assert.equal(toMarkdown("T", items, { user: "You", assistant: "Answer" }), "# T\n\n## You\n\nHi\n\n## Answer\n\nHo\n");
  assert.deepEqual([fileName("a/b: c?", "md"), fileName("///", "json")], ["a-b-c.md", "conversation.json"]);
});

test("speed is told without the wait for the first token", () => {
  assert.equal(figuresOf({ sent: 0, first: 500, last: 2500, tokens: 21 }), "21 tokens · 10.0 tokens/s · first after 0.50 s");
  assert.equal(figuresOf({ sent: 0, first: 500, last: 500, tokens: 1 }), "first after 0.50 s");
  assert.equal(figuresOf({ sent: 0, first: null, last: null, tokens: null }), null);
  assert.equal(figuresOf(null), null);
});

/** As a browser's: its keys are its own properties. */
function storage() {
  const methods = {
    getItem(name) { return this[name] ?? null; },
    setItem(name, value) { this[name] = String(value); },
    removeItem(name) { delete this[name]; },
  };
  return Object.create(methods);
}

test("below an answer stands how far a summary is, where it has parts", () => {
  const answer = newMessage("assistant", "So far", "streaming");
  assert.equal(footFor({ ...answer, summary: { done: 1, parts: 4 } }), "1 of 4 parts are summarised");
  assert.equal(footFor({ ...answer, summary: { done: 0, parts: 0 } }), "");
  assert.equal(footFor({ ...answer, status: "stopped", summary: { done: 1, parts: 4 } }), "Stopped");
});

test("a key is kept for the tab or for good, and signing out forgets it with all that was typed", () => {
  const [lasting, session] = [storage(), storage()];
  const preferences = new Preferences(new KeptStorage(() => lasting), new KeptStorage(() => session));
  preferences.theme = "dark";
  preferences.keep("k1", false);
  assert.deepEqual([preferences.key, Object.keys(lasting)], ["k1", ["tokenwire.theme"]]);
  preferences.keep("k2", true);
  assert.deepEqual([preferences.key, Object.keys(session)], ["k2", []]);
  for (const name of ["new", "conv_1.files", "edit.resp_1"]) session.setItem(`tokenwire.draft.${name}`, "typed");
  preferences.signOut();
  assert.deepEqual([preferences.key, Object.keys(session), preferences.theme], [null, [], "dark"]);
});

test("a key that the browser does not keep is told apart: a reload would ask for it again", () => {
  const full = storage();
  full.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };
  for (const [kept, lasts] of [[storage(), true], [full, false], [undefined, false]]) {
    const preferences = new Preferences(new KeptStorage(kept && (() => kept)), new KeptStorage(kept && (() => kept)));
    preferences.keep("k", true);
    assert.deepEqual([preferences.key, preferences.keyLasts], ["k", lasts]);
  }
});

test("the language is the reader's choice, else the first one of the browser's that is spoken here", () => {
  const preferences = new Preferences(new KeptStorage(), new KeptStorage());
  assert.equal(preferences.spoken(["fr", "zh-TW", "en"]), "zh");
  assert.equal(preferences.spoken(["fr"]), "en");
  preferences.language = "en";
  assert.equal(preferences.spoken(["zh"]), "en");
});

test("both languages say everything, with the same gaps", () => {
  const gaps = (text) => [...text.matchAll(/\{\w+\}/g)].map(([gap]) => gap).sort();
  assert.deepEqual(Object.keys(CHINESE), Object.keys(ENGLISH));
  for (const word of Object.keys(ENGLISH)) assert.deepEqual(gaps(CHINESE[word]), gaps(ENGLISH[word]), word);
});

test("of a file that somebody else wrote, what the wire takes is taken, and nothing else stops it", () => {
  const metadata = { title: "T", root: "resp_1", "versions.2": "x", long: "x".repeat(513), number: 5, ...Object.fromEntries(Array.from({ length: 30 }, (_, index) => [`key${index}`, "v"])) };
  const messages = [{ role: "user", content: [null, 5, { text: { a: 1 } }, { text: "hi" }] }, { role: "assistant", content: { text: "no list" } }];
  const read = fromJson(JSON.stringify({ metadata, messages }));
  assert.deepEqual(read.items, [{ role: "user", content: "hi" }, { role: "assistant", content: "" }]);
  assert.deepEqual(Object.keys(read.metadata).slice(0, 2), ["title", "key0"]);
  assert.equal(Object.keys(read.metadata).length, 15);
});
