// State and drafts: what the page knows, and that nothing typed gets lost. Run: node --test tests/unit/web/
import assert from "node:assert/strict";
import { test } from "node:test";
import { compose } from "../../../web/attachments.js";
import { Drafts } from "../../../web/drafts.js";
import { KeptStorage } from "../../../web/storage.js";
import { ChatState, canSend, messageFromItem, newMessage, thoughtsOf } from "../../../web/state.js";
import { titleFrom, titleFromMessage } from "../../../web/titles.js";

const drafts = (storage = new KeptStorage()) => {
  let ids = 0;
  return new Drafts(storage, () => `id-${++ids}`);
};

test("a title is one line, cut by characters and never inside one", () => {
  assert.equal(titleFrom("  Hello\n\n  world "), "Hello world");
  assert.equal(Array.from(titleFrom("🫠".repeat(200))).length, 80);
  assert.ok(!titleFrom("🫠".repeat(200)).includes("\uFFFD"));
});

test("a message that is files without a word is called after them", () => {
  const files = [{ name: "a.md", text: "x" }, { name: "b.txt", text: "y" }];
  assert.equal(titleFromMessage(compose(files, "Summarise this.")), "a.md, b.txt");
  assert.equal(titleFromMessage(compose(files, "Which is longer?")), "Which is longer?");
});

test("an incomplete answer in the history is a stopped one; other items are left out", () => {
  const item = { type: "message", role: "assistant", status: "incomplete", content: [{ text: "Hel" }] };
  assert.equal(messageFromItem(item).status, "stopped");
  assert.equal(messageFromItem({ type: "reasoning" }), null);
});

test("thoughts are the text of reasoning items, whichever way a server tells them", () => {
  const thought = { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "A capital." }] };
  const summary = { type: "reasoning", summary: [{ type: "summary_text", text: "Of France." }] };
  assert.equal(thoughtsOf([thought, { type: "message", content: [{ text: "Paris" }] }, summary]), "A capital.Of France.");
  assert.equal(thoughtsOf([{ type: "reasoning" }]), "");
  assert.equal(thoughtsOf(undefined), "");
});

test("the newest conversation is first, each is there once, and a complete list forgets deleted ones", () => {
  const state = new ChatState();
  state.addConversations([{ id: "a", created_at: 1 }, { id: "b", created_at: 2 }], false);
  state.touchConversation("a", 3);
  assert.deepEqual(state.conversations.map(({ id }) => id), ["a", "b"]);
  state.replaceConversations([{ id: "b", created_at: 2 }], false);
  assert.deepEqual(state.conversations.map(({ id }) => id), ["b"]);
});

test("a text sent twice before it was accepted has one id; another text has another", () => {
  const kept = drafts();
  assert.equal(kept.sending("c", "hi"), "id-1");
  assert.equal(kept.sending("c", "hi"), "id-1");
  assert.equal(kept.sending("c", "ho"), "id-2");
});

test("a reload before acceptance brings the text back, with what was typed since", () => {
  const storage = new KeptStorage();
  drafts(storage).sending(null, "first");
  assert.equal(drafts(storage).shown(null).text, "first");
  drafts(storage).set(null, "second");
  assert.equal(drafts(storage).shown(null).text, "first\nsecond");
});

test("acceptance clears what was sent and keeps what was typed since", () => {
  const kept = drafts();
  const id = kept.sending("c", "first");
  kept.set("c", "second");
  kept.accepted("c", id);
  assert.equal(kept.shown("c").text, "second");
  kept.accepted("c", kept.sending("c", "second"));
  assert.equal(kept.shown("c").text, "");
});

test("a refused text can be edited without the old one coming back", () => {
  const kept = drafts();
  kept.restore("c", "hi", { id: kept.sending("c", "hi"), sent: "hi" });
  kept.set("c", "hi there");
  assert.equal(kept.shown("c").text, "hi there");
});

test("the draft follows a new conversation to its name", () => {
  const kept = drafts();
  const id = kept.sending(null, "hi");
  kept.move(null, "conv_1");
  assert.equal(kept.shown(null).text, "");
  assert.equal(kept.sending("conv_1", "hi"), id);
});

test("files that were attached come back with the text: before it was sent, and until the server has it", () => {
  const storage = new KeptStorage();
  const files = [{ name: "a.md", text: "# A\n````\n" }];
  drafts(storage).setFiles(null, files);
  drafts(storage).set(null, "look");
  assert.deepEqual(drafts(storage).shown(null), { text: "look", files });
  const text = compose(files, "look");
  const id = drafts(storage).sending(null, text);
  drafts(storage).setFiles(null, []);
  assert.deepEqual(drafts(storage).shown(null), { text: "look", files });
  assert.equal(drafts(storage).sending(null, text), id); // the same turn
  drafts(storage).accepted(null, id);
  assert.deepEqual([drafts(storage).shown(null), storage.names()], [{ text: "", files: [] }, []]);
});

test("what was typed in a conversation that is gone waits in the next new one, below what waits there", () => {
  const kept = drafts();
  const [one, two] = [{ name: "1", text: "" }, { name: "2", text: "" }];
  kept.set("c", "typed there");
  kept.setFiles("c", [two]);
  kept.move("c", null);
  assert.deepEqual(kept.shown(null), { text: "typed there", files: [two] });
  kept.set("d", "and here");
  kept.setFiles("d", [one]);
  kept.move("d", null);
  assert.deepEqual(kept.shown(null), { text: "typed there\nand here", files: [two, one] });
});

test("another version of a message comes back until the server has it, and leaves the text field alone", () => {
  const kept = drafts();
  kept.set("c", "half typed");
  const id = kept.rewriting("c", "said better");
  assert.equal(kept.shown("c").text, "said better\nhalf typed");
  kept.accepted("c", id);
  assert.equal(kept.shown("c").text, "half typed");
});

test("a thread takes a message while somebody else is answered, and none while we are", () => {
  const state = new ChatState();
  const thread = state.current;
  const theirs = newMessage("assistant", "", "waiting", "resp_1");
  const ours = { ...newMessage("assistant", "", "sending"), isOwn: true };
  state.addMessage(thread, theirs);
  assert.equal(thread.active, theirs);
  assert.ok(canSend(thread));
  state.addMessage(thread, ours, theirs);
  assert.equal(thread.active, ours);
  assert.ok(!canSend(thread));
  state.update(thread, ours, { status: "completed" });
  assert.equal(thread.active, theirs);
  state.update(thread, theirs, { status: "stopped" });
  assert.equal(thread.active, null);
  assert.ok(canSend(thread));
});

test("a search lists titles at once and what the server finds; Escape brings the list back as far as it was read", () => {
  const state = new ChatState();
  const row = (id, title, updated_at) => ({ id, created_at: 1, updated_at, metadata: { title } });
  state.addConversations([row("a", "Old Lighthouse", 9), row("b", "Soup", 8)], true);
  state.putConversation(row("z", "opened by its address", 1));
  assert.equal(state.lastListed, "b");
  state.setSearch(" lighthouse OLD ");
  assert.deepEqual([state.listed.map(({ id }) => id), state.search.status], [["a"], "searching"]);
  const found = [["a", "msg_1"], ["b", "msg_2"], ["c", null]].map(([id, item_id]) => ({ conversation: row(id, id, 5), item_id, excerpt: "an old lighthouse" }));
  state.addFound(found, false);
  assert.deepEqual([state.listed.map(({ id }) => id), state.search.status], [["a", "b", "c"], "over"]);
  assert.equal(state.conversation("c").metadata.title, "c"); // it can be renamed and exported, although the list was not read that far
  assert.deepEqual(state.listed.map((conversation) => state.search.excerptOf(conversation.id, conversation.metadata.title)), [null, "an old lighthouse", null]);
  state.setSearch("");
  assert.deepEqual(state.listed.map(({ id }) => id), ["a", "b", "z"]);
});

test("reading the first page of the list again does not bring back what was read behind it", () => {
  const state = new ChatState();
  const row = (id, updated_at) => ({ id, created_at: 1, updated_at });
  state.replaceConversations([row("a", 9)], true);
  state.addConversations([row("b", 8)], false);
  state.replaceConversations([row("a", 9)], true);
  assert.deepEqual([state.hasMore, state.lastListed], [false, "b"]);
});

test("what the browser's storage does not take lasts as long as the page, and its old value is gone", () => {
  const real = { held: {}, getItem: (name) => real.held[name] ?? null, removeItem: (name) => delete real.held[name], setItem: (name, value) => {
    if (value.length > 5) throw new DOMException("full", "QuotaExceededError");
    real.held[name] = value;
  } };
  const storage = new KeptStorage(() => real);
  storage.setItem("a", "short");
  storage.setItem("a", "too long");
  assert.deepEqual([storage.getItem("a"), real.held], ["too long", {}]);
  storage.setItem("a", "short");
  assert.deepEqual([storage.getItem("a"), real.held], ["short", { a: "short" }]);
  const forbidden = new KeptStorage(() => {
    throw new DOMException("forbidden", "SecurityError");
  });
  forbidden.setItem("a", "kept");
  assert.deepEqual([forbidden.getItem("a"), forbidden.names()], ["kept", ["a"]]);
  forbidden.removeItem("a");
  assert.equal(forbidden.getItem("a"), null);
});
