// A followed conversation on a scripted client: nothing missing, nothing twice. Run: node --test tests/unit/web/
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Subscription } from "../../../web/subscription.js";

let told, own, streaming, naming, read, pages, subscription;

beforeEach(() => {
  [told, own, streaming, naming, read, pages] = [[], new Set(), new Set(), false, [], []];
  let ids = 0;
  const host = {
    command: async () => pages.shift(),
    isNaming: () => naming,
    isOwn: (id) => own.has(id),
    isStreaming: (id) => streaming.has(id),
    readOn: (id, after, listener) => new Promise((resolve, reject) => read.push({ id, after, listener, reject })),
    newId: () => `ask-${++ids}`,
  };
  subscription = new Subscription(host, "conv_1", (event) => told.push(event));
});

const item = (id, role, response_id) => ({ id, type: "message", role, response_id });
const running = (id, text, sequence_number) => ({ response: { id }, text, sequence_number });
const snapshot = (items = [], responses = [], rest = {}) => {
  const { id } = subscription.frame();
  subscription.receive({ type: "conversation.subscribed", id, conversation: { id: "conv_1" }, items, has_more: false, responses, ...rest });
};
const added = (it) => subscription.receive({ type: "conversation.item.added", conversation: "conv_1", item: it });
const created = (id, sequence_number = 0) => subscription.receive({ type: "response.created", sequence_number, response: { id } });
const delta = (item_id, sequence_number, text) => subscription.receive({ type: "response.output_text.delta", sequence_number, item_id, delta: text });
const completed = (id, sequence_number) => subscription.receive({ type: "response.completed", sequence_number, response: { id } });
const summary = () => told.splice(0).map((event) => [event.type.split(".").slice(1).join("."), event.response_id ?? event.item?.id, event.delta].filter((part) => part !== undefined).join(" "));

test("the first snapshot is told as it is, then everything live, each event with its response", async () => {
  snapshot([item("msg_u1", "user", "resp_1")], [running("resp_1", "Hel", 4)]);
  delta("msg_1", 5, "lo");
  completed("resp_1", 6);
  added(item("msg_u2", "user", "resp_2"));
  created("resp_2");
  delta("msg_2", 4, "Ho");
  assert.equal((await subscription.ready).responses[0].text, "Hel");
  assert.deepEqual(summary(), [
    "subscribed", "output_text.delta resp_1 lo", "completed resp_1",
    "item.added msg_u2", "created resp_2", "output_text.delta resp_2 Ho",
  ]);
});

test("deltas of two answers are told apart by their items", () => {
  snapshot([], [running("resp_1", "a", 4), running("resp_2", "", 1)]);
  delta("msg_2", 4, "B");
  delta("msg_1", 5, "A");
  assert.deepEqual(summary().slice(1), ["output_text.delta resp_2 B", "output_text.delta resp_1 A"]);
});

test("items without a response's key belong to the oldest answer", () => {
  snapshot([], [running("resp_1", "a", 4), running("resp_2", "", 1)]);
  delta("item-x", 5, "A");
  assert.deepEqual(summary().slice(1), ["output_text.delta resp_1 A"]);
});

test("an answer that was heard to its end does not come once more with the next connection's snapshot", () => {
  snapshot();
  added(item("msg_u1", "user", "resp_1"));
  created("resp_1");
  delta("msg_1", 1, "all of it");
  completed("resp_1", 2);
  summary();
  subscription.lost();
  snapshot([item("msg_u1", "user", "resp_1"), item("msg_1", "assistant", "resp_1")]);
  assert.deepEqual(summary(), ["updated"]);
});

test("own answers are left to their streams; own items come", () => {
  snapshot();
  own.add("resp_1");
  added(item("msg_u1", "user", "resp_1"));
  created("resp_1");
  delta("msg_1", 4, "x");
  completed("resp_1", 5);
  assert.deepEqual(summary().slice(1), ["item.added msg_u1"]);
});

test("while a turn of ours has no id, events wait; then they are told in their order", () => {
  snapshot();
  naming = true;
  added(item("msg_u1", "user", "resp_1"));
  created("resp_1");
  created("resp_2");
  assert.deepEqual(summary(), ["subscribed"]);
  naming = false;
  own.add("resp_1");
  subscription.flush();
  assert.deepEqual(summary(), ["item.added msg_u1", "created resp_2"]);
});

test("after a lost connection only what was missed is told", () => {
  snapshot([item("msg_u1", "user", "resp_1")], [running("resp_1", "Hel", 4)]);
  delta("msg_1", 5, "lo ");
  told.length = 0;
  subscription.lost();
  delta("msg_1", 6, "lost"); // nothing is heard before the new snapshot
  snapshot(
    [item("msg_u1", "user", "resp_1"), item("msg_u0", "user", "resp_0"), item("msg_0", "assistant", "resp_0"), item("msg_u2", "user", "resp_2")],
    [running("resp_1", "Hello wor", 8), running("resp_2", "", 1)],
  );
  delta("msg_1", 8, "r"); // in the snapshot already
  delta("msg_1", 9, "ld");
  added(item("msg_u2", "user", "resp_2"));
  assert.deepEqual(summary(), [
    "updated", "item.added msg_u0", "item.added msg_0", "item.added msg_u2",
    "output_text.delta resp_1 wor", "created resp_2", "output_text.delta resp_1 ld",
  ]);
});

test("a snapshot from a gateway that is behind repeats nothing, also where a merged delta begins before what is known", () => {
  snapshot([], [running("resp_1", "One two three", 9)]);
  told.length = 0;
  subscription.lost();
  snapshot([], [running("resp_1", "One ", 5)]);
  delta("msg_1", 7, "two ");
  delta("msg_1", 12, "three four");
  assert.deepEqual(summary(), ["updated", "output_text.delta resp_1  four"]);
});

test("an answer that ended during a lost connection is read to its end, once", () => {
  snapshot([], [running("resp_1", "Hel", 4)]);
  told.length = 0;
  subscription.lost();
  snapshot([item("msg_1", "assistant", "resp_1")]);
  subscription.lost();
  snapshot([item("msg_1", "assistant", "resp_1")]);
  assert.deepEqual(read.map(({ id, after }) => [id, after]), [["resp_1", 4]]);
  read[0].listener({ type: "response.output_text.delta", sequence_number: 5, item_id: "msg_1", delta: "lo" });
  read[0].listener({ type: "response.completed", sequence_number: 6, response: { id: "resp_1" } });
  completed("resp_1", 6);
  assert.deepEqual(summary(), ["updated", "updated", "output_text.delta resp_1 lo", "completed resp_1"]);
});

test("an answer whose end cannot be read has failed", async () => {
  snapshot([], [running("resp_1", "Hel", 4)]);
  subscription.lost();
  snapshot();
  read[0].reject({ code: "response_not_found", message: "Gone." });
  await new Promise(setImmediate);
  assert.deepEqual(told.at(-1).response.error, { code: "response_not_found", message: "Gone." });
});

test("a long snapshot is read to its end before anything else is told", async () => {
  pages = [{ data: [item("msg_2", "user", "resp_2")], has_more: true }, { data: [item("msg_3", "user", "resp_3")], has_more: false }];
  snapshot([item("msg_1", "user", "resp_1")], [], { has_more: true });
  created("resp_4");
  assert.deepEqual(told, []);
  const { items } = await subscription.ready;
  assert.deepEqual(items.map(({ id }) => id), ["msg_1", "msg_2", "msg_3"]);
  assert.deepEqual(summary(), ["subscribed", "created resp_4"]);
});

test("the answer to an earlier subscription does not count", () => {
  const { id } = subscription.frame();
  subscription.frame();
  subscription.receive({ type: "conversation.subscribed", id, conversation: {}, items: [], responses: [] });
  assert.deepEqual(told, []);
});

test("a conversation that is gone rejects at first, and is told as deleted later", async () => {
  const gone = { code: "conversation_not_found" };
  subscription.refused(gone);
  await assert.rejects(subscription.ready, gone);
  snapshot();
  subscription.lost();
  subscription.refused(gone);
  assert.equal(told.at(-1).type, "conversation.deleted");
});

test("who begins to listen is told our own answers that have ended, and not those that still stream", () => {
  for (const id of ["resp_1", "resp_2"]) own.add(id);
  streaming.add("resp_2");
  snapshot([item("msg_u1", "user", "resp_1"), item("msg_1", "assistant", "resp_1"), item("msg_u2", "user", "resp_2"), item("msg_2", "assistant", "resp_2")]);
  assert.deepEqual(told[0].items.map(({ id }) => id), ["msg_u1", "msg_1", "msg_u2"]);
});

test("an item's event is its response's, also where a response has several items", () => {
  snapshot([], [running("resp_1", "", -1), running("resp_2", "", -1)]);
  delta("msg_2.1", 3, "two");
  delta("rs_1.0", 3, "one");
  assert.deepEqual(told.slice(1).map(({ response_id }) => response_id), ["resp_2", "resp_1"]);
});
