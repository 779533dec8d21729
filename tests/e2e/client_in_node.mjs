// web/client.js outside a browser, against a real server: node --experimental-websocket client_in_node.mjs ws://…
import assert from "node:assert/strict";
import { TokenwireClient } from "../../web/client.js";

const url = process.argv[2];
const client = new TokenwireClient({ url });
client.connect();
const words = Array.from({ length: 40 }, (_, index) => `word${index}`).join(" ");

// Two answers side by side.
const [one, two] = [client.respond({ input: words }), client.respond({ input: "short" })];
assert.equal((await two.done).text, "short");
assert.equal((await one.done).text, words);

// The same key twice is one turn.
const { conversation } = await client.command({ type: "conversation.create", metadata: { title: "from Node" } });
for (const _ of [1, 2]) {
  const outcome = await client.respond({ conversation: conversation.id, input: "once", id: "turn-1" }).done;
  assert.equal(outcome.text, "once");
}
const items = await client.command({ type: "conversation.items.list", conversation: conversation.id });
assert.deepEqual(items.data.map((item) => item.role), ["user", "assistant"]);

// A second client picks an answer up from the middle, without a gap or a repeat.
let handedOver;
const first = client.respond({ conversation: conversation.id, input: words }, (event, stream) => {
  if (event.type === "response.output_text.delta" && stream.text.length > 60) handedOver ??= { id: stream.responseId, after: stream.lastSequence, text: stream.text };
});
while (!handedOver) await new Promise((resolve) => setTimeout(resolve, 5));
const other = new TokenwireClient({ url });
other.connect();
let rest = "";
const resumed = other.resume(handedOver.id, { startingAfter: handedOver.after }, (event) => {
  if (event.type === "response.output_text.delta") rest += event.delta;
});
assert.equal((await resumed.done).text, words);
assert.equal(handedOver.text + rest, words);
assert.equal((await first.done).text, words);

// A subscription tells of somebody else's turn, whole; joined in the middle, it has the text so far; of its own client's turns it tells the items.
const follow = (client, conversation) => {
  const seen = { texts: {}, items: [], ended: 0 };
  seen.subscription = client.subscribe(conversation, (event) => {
    if (event.type === "conversation.item.added") seen.items.push(event.item.role);
    if (event.type === "response.output_text.delta") seen.texts[event.response_id] = (seen.texts[event.response_id] ?? "") + event.delta;
    if (event.type === "conversation.subscribed") for (const { response, text } of event.responses) seen.texts[response.id] = text;
    if (event.type === "response.completed") seen.ended += 1;
  });
  return seen;
};
const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
};
const shared = (await client.command({ type: "conversation.create" })).conversation.id;
const [own, others] = [follow(client, shared), follow(other, shared)];
await Promise.all([own.subscription.ready, others.subscription.ready]);
const turn = client.respond({ conversation: shared, input: words });
await until(() => turn.text.length > 60);
other.unsubscribe(others.subscription);
const late = follow(other, shared);
await turn.done;
await until(() => late.ended === 1 && own.items.length === 1);
assert.deepEqual(late.texts, { [turn.responseId]: words });
assert.ok(words.startsWith(others.texts[turn.responseId]) && others.ended === 0);
assert.deepEqual([own.texts, own.ended, own.items, others.items], [{}, 0, ["user"], ["user"]]);
await assert.rejects(client.subscribe("conv_missing", () => {}).ready, { code: "conversation_not_found" });

// Cancel ends as incomplete; a refusal carries the server's code.
const stopped = client.respond({ input: words.repeat(20) }, (event, stream) => event.type === "response.output_text.delta" && stream.cancel());
const outcome = await stopped.done;
assert.equal(outcome.status, "incomplete");
assert.equal(outcome.response.incomplete_details.reason, "cancelled");
await assert.rejects(client.command({ type: "conversation.retrieve", conversation: "conv_missing" }), { code: "conversation_not_found" });

client.close();
other.close();
console.log("ok");
