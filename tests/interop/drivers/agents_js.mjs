// OpenAI's agents SDK for JavaScript over the WebSocket.
import assert from "node:assert/strict";
import { AGENT, ANSWER, LONG, MODEL, QUESTION, WEATHER, cut, require, run } from "./case.mjs";

// Node 22's own WebSocket takes headers, as this SDK needs; before that it is told to use `ws`.
globalThis.WebSocket = require("ws").WebSocket;
const { Agent, Runner, OpenAIProvider, setTracingDisabled, tool } = require("@openai/agents");
const { z } = require("zod");
setTracingDisabled(true);

async function withRunner(url, work) {
  const modelProvider = new OpenAIProvider({ apiKey: "k", baseURL: `${url}/v1`, useResponses: true, useResponsesWebSocket: true });
  try {
    return await work(new Runner({ modelProvider }));
  } finally {
    await modelProvider.close();
  }
}

const agent = (fields = {}) => new Agent({ name: "Echo", model: MODEL, instructions: "Say it again.", ...fields });

/** Reads a streamed run; calls `onText` with each piece. */
async function read(result, onText = () => {}) {
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") await onText(event.data.delta);
  }
  await result.completed;
}

const happy = (url) =>
  withRunner(url, async (runner) => {
    const result = await runner.run(agent(), "hello from an agent", { stream: true });
    let text = "";
    await read(result, (piece) => {
      text += piece;
    });
    assert.equal(text, "hello from an agent");
    assert.equal(result.finalOutput, text);
  });

const turns = (url) =>
  withRunner(url, async (runner) => {
    const first = await runner.run(agent(), "my name is Ada");
    const second = await runner.run(agent(), "who am I", { previousResponseId: first.lastResponseId });
    assert.equal(second.finalOutput, "who am I");
    assert.equal(second.state.usage.inputTokens, 3 + 4 + 4 + 3);
    // The other way that agents have: the whole history again, with what the server said in it.
    const third = await runner.run(agent(), [...first.history, { role: "user", content: "and now" }]);
    assert.equal(third.finalOutput, "and now");
    assert.equal(third.state.usage.inputTokens, 3 + 4 + 4 + 2);
  });

const cancel = (url) =>
  withRunner(url, async (runner) => {
    const abort = new AbortController();
    const result = await runner.run(agent(), LONG, { stream: true, signal: abort.signal });
    let text = "";
    await read(result, (piece) => {
      text += piece;
      abort.abort();
    }).catch((fault) => assert.equal(fault.name, "AbortError"));
    assert.ok(text && LONG.startsWith(text) && text !== LONG);
    assert.equal((await runner.run(agent(), "next")).finalOutput, "next");
  });

// The SDK's own error does not repeat what the server said; the raw events have it.
const error = (url) =>
  withRunner(url, async (runner) => {
    const result = await runner.run(agent({ model: "no-such" }), "x", { stream: true });
    const said = [];
    const raw = (event) => event.type === "raw_model_stream_event" && event.data.event?.type === "error";
    await assert.rejects(
      (async () => {
        for await (const event of result) if (raw(event)) said.push(event.data.event);
        await result.completed;
      })(),
      { name: "ModelBehaviorError" },
    );
    assert.deepEqual(said.map((event) => [event.status, event.error.code]), [[404, "model_not_found"]]);
    assert.equal((await runner.run(agent(), "fine")).finalOutput, "fine");
  });

// The SDK does not resume an answer: a cut in the middle is an error of that run; the next one connects anew.
const reconnect = (url) =>
  withRunner(url, async (runner) => {
    const first = await runner.run(agent(), "my name is Ada");
    const lost = await runner.run(agent(), LONG, { stream: true });
    let was_cut = false;
    await assert.rejects(
      read(lost, async () => {
        if (!was_cut) await cut();
        was_cut = true;
      }),
      /closed before a terminal response event|ECONNRESET/,
    );
    const second = await runner.run(agent(), "who am I", { previousResponseId: first.lastResponseId });
    assert.equal(second.finalOutput, "who am I");
    assert.equal(second.state.usage.inputTokens, 3 + 4 + 4 + 3);
  });

const tools = (url) =>
  withRunner(url, async (runner) => {
    const asked = [];
    const getWeather = tool({
      name: "get_weather",
      description: "Says how the weather is.",
      parameters: z.object({ city: z.string() }),
      execute: ({ city }) => {
        asked.push(city);
        return WEATHER;
      },
    });
    const result = await runner.run(agent({ model: AGENT, tools: [getWeather] }), QUESTION);
    assert.deepEqual(asked, ["Paris"]);
    assert.equal(result.finalOutput, ANSWER);
  });

await run({ happy, turns, cancel, error, reconnect, tools });
