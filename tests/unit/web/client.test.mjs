// The client's behaviour on a scripted socket: no network, no real time. Run: node --test tests/unit/web/
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { TokenwireClient, TokenwireError, jitteredBackoff, outputText } from "../../../web/client.js";

class FakeSocket {
  /** @type {FakeSocket[]} */ static made = [];
  sent = [];
  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    FakeSocket.made.push(this);
  }
  send(data) {
    this.sent.push(JSON.parse(data));
  }
  close(code) {
    this.closedWith ??= code;
  }
  open() {
    this.onopen({});
  }
  drop(code, reason = "") {
    this.onclose?.({ code, reason });
  }
  say(event) {
    this.onmessage?.({ data: JSON.stringify(event) });
  }
}

/** Runs what was put off when told to. */
class FakeTimers {
  waiting = [];
  setTimeout = (callback, ms) => {
    const timer = { callback, ms };
    this.waiting.push(timer);
    return timer;
  };
  clearTimeout = (timer) => (this.waiting = this.waiting.filter((other) => other !== timer));
  fire() {
    const due = this.waiting;
    this.waiting = [];
    for (const { callback } of due) callback();
    return due.map(({ ms }) => ms);
  }
}

let timers, client, ids;

beforeEach(() => {
  FakeSocket.made = [];
  timers = new FakeTimers();
  ids = 0;
  client = new TokenwireClient({ url: "ws://host/v1/responses", WebSocket: FakeSocket, timers, backoff: (attempt) => attempt * 100, newId: () => `id-${++ids}` });
});

function connected() {
  client.connect();
  socket().open();
  return socket();
}
const socket = () => FakeSocket.made.at(-1);
const delta = (lane, sequence_number, text) => ({ type: "response.output_text.delta", stream_id: lane, sequence_number, delta: text });
const created = (lane, id, sequence_number = 0) => ({ type: "response.created", stream_id: lane, sequence_number, response: { id } });
const ended = (lane, sequence_number, text, kind = "completed") => ({
  type: `response.${kind}`, stream_id: lane, sequence_number,
  response: { output: [{ type: "message", content: [{ type: "output_text", text }] }] },
});

test("answers are matched by id, in whatever order they come", async () => {
  const server = connected();
  const [list, made] = [client.command({ type: "conversation.list" }), client.command({ type: "conversation.create" })];
  server.say({ type: "conversation.created", id: "id-2", conversation: { id: "conv_1" } });
  server.say({ type: "conversation.listed", id: "id-1", data: [] });
  assert.equal((await list).type, "conversation.listed");
  assert.equal((await made).conversation.id, "conv_1");
});

test("a refused command rejects with the server's code, words and retry hint", async () => {
  const server = connected();
  const refused = client.command({ type: "conversation.list" });
  server.say({ type: "error", status: 429, id: "id-1", error: { code: "rate_limit_exceeded", message: "Too many.", param: null, retry_after_ms: 500 } });
  await assert.rejects(refused, (error) => error instanceof TokenwireError && error.code === "rate_limit_exceeded" && error.status === 429 && error.retryAfterMs === 500);
});

test("a command given before the socket opens is sent once it does", () => {
  client.connect();
  client.command({ type: "model.list" });
  assert.deepEqual(socket().sent, []);
  socket().open();
  assert.deepEqual(socket().sent, [{ type: "model.list", id: "id-1" }]);
});

test("two responses side by side never mix", async () => {
  const server = connected();
  const [one, two] = [client.respond({ input: "a" }), client.respond({ input: "b" })];
  assert.notEqual(one.lane, two.lane);
  const [laneOne, laneTwo] = [one.lane, two.lane];
  server.say(created(laneOne, "resp_1"));
  server.say(created(laneTwo, "resp_2"));
  server.say(delta(laneTwo, 1, "B"));
  server.say(delta(laneOne, 1, "A"));
  server.say(ended(laneOne, 2, "A"));
  server.say(ended(laneTwo, 2, "B"));
  assert.equal((await one.done).text, "A");
  assert.equal((await two.done).text, "B");
});

test("a seventeenth response waits for a free lane, and lane names are used again", () => {
  const server = connected();
  const streams = Array.from({ length: 17 }, () => client.respond({ input: "x" }));
  assert.equal(server.sent.length, 16);
  server.say(ended("lane-3", 0, "x"));
  assert.equal(server.sent.length, 17);
  assert.equal(streams[16].lane, "lane-3");
});

for (const code of [1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015]) {
  test(`close code ${code}: tried again, and the answer goes on after the last number seen`, async () => {
    const server = connected();
    const seen = [];
    const stream = client.respond({ input: "hi" }, (event) => seen.push(event.sequence_number));
    const lane = stream.lane;
    server.say(created(lane, "resp_1"));
    server.say(delta(lane, 1, "Hel"));
    server.drop(code);
    assert.deepEqual(client.connection, { status: "waiting", attempt: 1, delay: 100, code, reason: "" });
    timers.fire();
    socket().open();
    assert.deepEqual(socket().sent, [{ type: "response.retrieve", response_id: "resp_1", starting_after: 1, stream_id: lane }]);
    socket().say(delta(lane, 1, "Hel")); // a server that repeats itself
    socket().say(delta(lane, 2, "lo"));
    socket().say(ended(lane, 3, "Hello"));
    assert.equal((await stream.done).text, "Hello");
    assert.deepEqual(seen, [0, 1, 2, 3]);
  });
}

for (const code of [1002, 1003, 1008, 4401, 4408]) {
  test(`close code ${code} is final: everything fails, nothing is tried again`, async () => {
    const server = connected();
    const stream = client.respond({ input: "hi" });
    server.drop(code, "Go away.");
    assert.equal(client.connection.status, "closed");
    await assert.rejects(stream.done, { code: "connection_refused", message: "Go away." });
    assert.deepEqual(timers.fire(), []);
    client.connect();
    assert.equal(client.connection.status, "connecting");
  });
}

test("a turn that was not accepted is sent again with the same id: one turn", () => {
  const server = connected();
  const { lane } = client.respond({ input: "hi", id: "turn-1" });
  server.drop(1006);
  timers.fire();
  socket().open();
  assert.deepEqual(socket().sent, server.sent);
  assert.deepEqual(socket().sent, [{ type: "response.create", input: "hi", id: "turn-1", stream_id: lane }]);
});

test("a frame that is too big fails and is not sent again; what had begun goes on", async () => {
  const server = connected();
  const begun = client.respond({ input: "hi" });
  server.say(created(begun.lane, "resp_1"));
  const big = client.respond({ input: "x".repeat(10) });
  server.drop(1009);
  await assert.rejects(big.done, { code: "message_too_big" });
  timers.fire();
  socket().open();
  assert.deepEqual(socket().sent.map((frame) => frame.type), ["response.retrieve"]);
});

test("an answer that is not stored ends with its connection", async () => {
  const server = connected();
  const stream = client.respond({ input: "hi", store: false });
  server.say(created(stream.lane, "resp_1"));
  server.drop(1006);
  timers.fire();
  socket().open();
  await assert.rejects(stream.done, { code: "connection_lost" });
  assert.deepEqual(socket().sent, []);
});

test("waits grow with each failed attempt and start over once the server has spoken", () => {
  client.connect();
  socket().drop(1006);
  assert.deepEqual(timers.fire(), [100]);
  socket().drop(1006);
  assert.deepEqual(timers.fire(), [200]);
  socket().open();
  socket().say({ type: "tokenwire:hello" });
  socket().drop(1006);
  assert.deepEqual(timers.fire(), [100]);
});

test("cancel goes outside the response's lane, once, and the partial text is the outcome", async () => {
  const server = connected();
  const stream = client.respond({ input: "hi" });
  const lane = stream.lane;
  server.say(created(lane, "resp_1"));
  stream.cancel();
  stream.cancel();
  assert.deepEqual(server.sent.slice(1), [{ type: "response.cancel", id: "id-2", response_id: "resp_1" }]);
  server.say(ended(lane, 1, "Hel", "incomplete"));
  assert.deepEqual(await stream.done.then(({ status, text }) => ({ status, text })), { status: "incomplete", text: "Hel" });
});

test("cancel before the server has named the response is sent as soon as it has", () => {
  const server = connected();
  const stream = client.respond({ input: "hi" });
  stream.cancel();
  assert.equal(server.sent.length, 1);
  server.say(created(stream.lane, "resp_1"));
  assert.equal(server.sent[1].type, "response.cancel");
});

test("cancel before anything was sent withdraws the turn", async () => {
  client.connect();
  const stream = client.respond({ input: "hi" });
  stream.cancel();
  await assert.rejects(stream.done, { code: "withdrawn" });
  socket().open();
  assert.deepEqual(socket().sent, []);
});

test("a cancel that a lost connection may have swallowed is sent again", () => {
  const server = connected();
  const stream = client.respond({ input: "hi" });
  server.say(created(stream.lane, "resp_1"));
  stream.cancel();
  server.drop(1006);
  timers.fire();
  socket().open();
  assert.deepEqual(socket().sent.map((frame) => frame.type), ["response.retrieve", "response.cancel"]);
});

test("queued tells why; the first event after it ends the waiting", () => {
  const server = connected();
  const stream = client.respond({ input: "hi" });
  server.say({ type: "response.queued", stream_id: stream.lane, sequence_number: 0, response: { id: "resp_1" }, tokenwire: { reason: "admission", position: 3 } });
  assert.deepEqual(stream.waiting, { reason: "admission", position: 3 });
  server.say(created(stream.lane, "resp_1", 1));
  assert.equal(stream.waiting, null);
});

test("after an expired log the terminal event alone gives the whole text", async () => {
  const server = connected();
  const stream = client.resume("resp_1", { startingAfter: 900 });
  assert.deepEqual(server.sent, [{ type: "response.retrieve", response_id: "resp_1", starting_after: 900, stream_id: "lane-1" }]);
  server.say(ended("lane-1", 3, "All of it"));
  assert.equal((await stream.done).text, "All of it");
});

test("a response that is between two gateways is asked for again, for a minute at most", async () => {
  const server = connected();
  const stream = client.resume("resp_1");
  const later = { type: "error", stream_id: "lane-1", error: { code: "server_is_overloaded", message: "Ask again.", retry_after_ms: 20_000 } };
  for (let tries = 1; tries <= 3; tries++) {
    server.say(later);
    assert.deepEqual(timers.fire(), [20_000]);
    assert.equal(server.sent.length, 1 + tries);
  }
  server.say(later);
  await assert.rejects(stream.done, { code: "server_is_overloaded" });
  assert.deepEqual(timers.fire(), []);
});

test("a turn refused with a hint to retry is told at once: its sender decides", async () => {
  const server = connected();
  const stream = client.respond({ input: "hi" });
  server.say({ type: "error", stream_id: stream.lane, id: "id-1", error: { code: "rate_limit_exceeded", message: "Later.", retry_after_ms: 500 } });
  await assert.rejects(stream.done, { code: "rate_limit_exceeded", retryAfterMs: 500 });
});

test("wake replaces an open socket that does not answer, and leaves one that does", async () => {
  const server = connected();
  client.wake();
  server.say({ type: "conversation.listed", id: "id-1", data: [], has_more: false });
  await new Promise(setImmediate);
  assert.deepEqual(timers.fire(), []);
  client.wake();
  timers.fire();
  assert.equal(client.connection.status, "waiting");
  client.wake();
  assert.equal(FakeSocket.made.length, 2);
});

test("a handshake that takes too long is tried again; where the network may have come back, soon", () => {
  client.connect();
  assert.deepEqual(timers.fire(), [20_000]);
  assert.deepEqual(client.connection, { status: "waiting", attempt: 1, delay: 100, code: 1006, reason: "no answer" });
  timers.fire();
  assert.equal(FakeSocket.made.length, 2);
  client.wake();
  assert.deepEqual(timers.fire(), [5_000]);
  assert.equal(client.connection.status, "waiting");
});

test("silence after something was said is looked into, and a dead socket is replaced; an answer is enough", () => {
  const server = connected();
  client.respond({ input: "hi", id: "turn-1" });
  client.command({ type: "model.list" });
  assert.deepEqual(timers.fire(), [15_000]); // counted from the first of them
  assert.deepEqual(server.sent.map(({ type }) => type), ["response.create", "model.list", "conversation.list"]);
  assert.deepEqual(timers.fire(), [5_000]);
  assert.equal(client.connection.status, "waiting");
  timers.fire();
  socket().open();
  assert.equal(socket().sent.find(({ type }) => type === "response.create").id, "turn-1");
  socket().say(created("lane-1", "resp_1"));
  assert.deepEqual(timers.fire(), []); // silence is allowed to an answer that is being made
});

test("nothing that an abandoned socket still says is heard", () => {
  const server = connected();
  client.close();
  assert.equal(server.closedWith, 1000);
  server.say({ type: "error", error: { code: "x" } });
  server.drop(1006);
  assert.equal(client.connection.status, "closed");
});

test("events that answer nothing reach onEvent; refusals of late cancels do not", () => {
  const server = connected();
  const heard = [];
  const stop = client.onEvent((event) => heard.push(event.type));
  server.say({ type: "conversation.item.added" });
  server.say({ type: "error", id: "late", error: { code: "response_not_found" } });
  stop();
  server.say({ type: "conversation.item.added" });
  assert.deepEqual(heard, ["conversation.item.added"]);
});

test("a subscription is made again on each connection, and its refusal with a hint is asked again", async () => {
  const server = connected();
  const heard = [];
  const subscription = client.subscribe("conv_1", (event) => heard.push(event.type));
  const subscribe = (id) => ({ type: "conversation.subscribe", conversation: "conv_1", stream_id: "conversation.conv_1", id });
  assert.deepEqual(server.sent, [subscribe("id-1")]);
  server.say({ type: "error", id: "id-1", stream_id: "conversation.conv_1", error: { code: "store_unavailable", message: "Later.", retry_after_ms: 700 } });
  assert.deepEqual(timers.fire(), [700]);
  assert.deepEqual(server.sent[1], subscribe("id-2"));
  server.drop(1006);
  timers.fire();
  socket().open();
  assert.deepEqual(socket().sent, [subscribe("id-3")]);
  socket().say({ type: "conversation.subscribed", id: "id-3", stream_id: "conversation.conv_1", conversation: {}, items: [], responses: [] });
  await subscription.ready;
  client.unsubscribe(subscription);
  client.unsubscribe(subscription);
  socket().say({ type: "conversation.updated", stream_id: "conversation.conv_1", conversation: {} });
  assert.deepEqual(socket().sent.slice(1).map((frame) => frame.type), ["conversation.unsubscribe"]);
  assert.deepEqual(heard, ["conversation.subscribed"]);
});

test("a subscription waits for the name of a turn that is on its way, and then leaves that one to its stream", () => {
  const server = connected();
  const heard = [];
  client.subscribe("conv_1", (event) => heard.push(event.type));
  const stream = client.respond({ conversation: "conv_1", input: "hi" });
  const feed = "conversation.conv_1";
  server.say({ type: "conversation.subscribed", id: "id-1", stream_id: feed, conversation: {}, items: [], responses: [{ response: { id: "resp_1" }, text: "", sequence_number: 0 }] });
  assert.deepEqual(heard, []);
  server.say(created(stream.lane, "resp_1"));
  assert.deepEqual(heard, ["conversation.subscribed"]);
  server.say({ type: "response.in_progress", stream_id: feed, sequence_number: 1, response: { id: "resp_1" } });
  server.say({ type: "response.created", stream_id: feed, sequence_number: 0, response: { id: "resp_2" } });
  assert.deepEqual(heard, ["conversation.subscribed", "response.created"]);
});

test("a listener that throws is heard of, and does not keep its answer from ending", async () => {
  const server = connected();
  const stream = client.respond({ input: "x" }, () => { throw new Error("a listener's own fault"); });
  const { lane } = stream;
  assert.throws(() => server.say(created(lane, "resp_1")), /own fault/);
  assert.throws(() => server.say(ended(lane, 1, "whole")), /own fault/);
  assert.equal((await stream.done).text, "whole");
  assert.equal(stream.lane, null);
});

test("signing in anew goes on under the other key, with what is unanswered", async () => {
  client = new TokenwireClient({ url: "ws://host/", WebSocket: FakeSocket, timers, token: "old" });
  client.connect();
  const asked = client.command({ type: "model.list", id: "once" });
  const refused = socket();
  refused.drop(1006);
  client.signIn("new");
  assert.deepEqual(socket().protocols, ["responses", "openai-insecure-api-key.new"]);
  assert.equal(FakeSocket.made.length, 2);
  assert.deepEqual(timers.waiting.map(({ ms }) => ms), [20_000]); // the handshake's; the old key is not tried again
  socket().open();
  assert.deepEqual(socket().sent, [{ type: "model.list", id: "once" }]);
  socket().say({ type: "model.listed", id: "once", data: [] });
  await asked;
});

test("a token travels as a subprotocol, never in the address", () => {
  new TokenwireClient({ url: "ws://host/", WebSocket: FakeSocket, timers, token: "k" }).connect();
  assert.deepEqual(socket().protocols, ["responses", "openai-insecure-api-key.k"]);
  assert.equal(socket().url, "ws://host/");
});

test("the back-off doubles up to its limit, with jitter over half of it", () => {
  assert.equal(jitteredBackoff(1, () => 1), 300);
  assert.equal(jitteredBackoff(3, () => 0), 600);
  assert.equal(jitteredBackoff(50, () => 1), 10_000);
});

test("outputText joins the messages and leaves out reasoning", () => {
  assert.equal(outputText({ output: [{ type: "reasoning", content: [{ text: "hm" }] }, { type: "message", content: [{ text: "a" }, { text: "b" }] }] }), "ab");
  assert.equal(outputText(undefined), "");
});
