// The official `openai` package for JavaScript, with `ws` below it, as in Node.
import assert from "node:assert/strict";
import { AGENT, ANSWER, LONG, MODEL, QUESTION, TERMINAL, WEATHER, cut, require, run } from "./case.mjs";

const OpenAI = require("openai").default;
const { ResponsesWS } = require("openai/resources/responses/ws");

/** Opens a socket; `next(test)` resolves with the next event that passes, and rejects with the SDK's error. */
function connect(url, options) {
  const socket = new ResponsesWS(new OpenAI({ apiKey: "k", baseURL: `${url}/v1` }), options);
  const stream = socket.stream();
  const next = async (test) => {
    for (;;) {
      const { value, done } = await stream.next();
      if (done || value.type === "close") throw new Error("the connection ended");
      if (value.type === "error") throw value.error;
      if (value.type === "message" && test(value.message)) return value.message;
    }
  };
  return { socket, next };
}

const isDelta = (event) => event.type === "response.output_text.delta";
const isEnd = (event) => TERMINAL.has(event.type);

async function happy(url) {
  const { socket, next } = connect(url);
  socket.send({ type: "response.create", model: MODEL, input: "hello from the SDK" });
  let text = "";
  const { response } = await next((event) => {
    if (isDelta(event)) text += event.delta;
    return isEnd(event);
  });
  assert.equal(text, "hello from the SDK");
  assert.equal(response.status, "completed");
  assert.equal(response.output[0].content[0].text, text);
  socket.close();
}

async function turns(url) {
  const { socket, next } = connect(url);
  socket.send({ type: "response.create", model: MODEL, input: "my name is Ada" });
  const first = (await next(isEnd)).response;
  socket.send({ type: "response.create", model: MODEL, input: "who am I", previous_response_id: first.id });
  const second = (await next(isEnd)).response;
  assert.equal(second.previous_response_id, first.id);
  assert.equal(second.usage.input_tokens, 4 + 4 + 3);
  socket.close();
}

async function cancel(url) {
  const { socket, next } = connect(url);
  socket.send({ type: "response.create", model: MODEL, input: LONG });
  await next(isDelta);
  socket.sendRaw(JSON.stringify({ type: "response.cancel" }));
  const end = await next(isEnd);
  assert.equal(end.type, "response.incomplete");
  assert.deepEqual(end.response.incomplete_details, { reason: "cancelled" });
  const text = end.response.output[0].content[0].text;
  assert.ok(LONG.startsWith(text) && text !== LONG);
  socket.send({ type: "response.create", model: MODEL, input: "next" });
  assert.equal((await next(isEnd)).response.output[0].content[0].text, "next");
  socket.close();
}

async function error(url) {
  const { socket, next } = connect(url);
  socket.send({ type: "response.create", model: "no-such", input: "x" });
  await assert.rejects(next(isEnd), (fault) => fault.error?.error?.code === "model_not_found" || fault.error?.code === "model_not_found");
  socket.send({ type: "response.create", model: MODEL, input: "fine" });
  assert.equal((await next(isEnd)).response.status, "completed");
  socket.close();
}

async function reconnect(url) {
  // The SDK reconnects by itself; what it sends then is ours to say: the rest of the answer, please.
  let id, text = "", last = -1;
  const onReconnecting = () => {
    socket.send({ type: "response.retrieve", response_id: id, starting_after: last });
  };
  const { socket, next } = connect(url, { reconnect: { onReconnecting, initialDelay: 50 } });
  socket.send({ type: "response.create", model: MODEL, input: LONG });
  const gather = (event) => {
    assert.ok(event.sequence_number > last);
    last = event.sequence_number;
    id ??= event.response?.id;
    if (isDelta(event)) text += event.delta;
    return isDelta(event) || isEnd(event);
  };
  await next(gather);
  await cut();
  let end;
  do end = await next(gather);
  while (!isEnd(end));
  assert.equal(end.type, "response.completed");
  assert.equal(text, LONG);
  socket.close();
}

async function tools(url) {
  const tool = { type: "function", name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } };
  const { socket, next } = connect(url);
  socket.send({ type: "response.create", model: AGENT, input: QUESTION, tools: [tool] });
  const first = (await next(isEnd)).response;
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Paris" }]);
  const output = { type: "function_call_output", call_id: call.call_id, output: WEATHER };
  socket.send({ type: "response.create", model: AGENT, input: [output], tools: [tool], previous_response_id: first.id });
  const second = (await next(isEnd)).response;
  assert.equal(second.output.at(-1).content[0].text, ANSWER);
  socket.close();
}

await run({ happy, turns, cancel, error, reconnect, tools });
