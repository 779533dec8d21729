// Ask one question and print the answer, whatever happens to the connection on the way.
//
//     node examples/resume.mjs ws://localhost:8000/v1/responses "What is the capital of France?"
//
// Node 22 and later need nothing else; before that: `npm install ws`. (web/client.js does all this, and more, for you.)
//
// 1. The turn carries an `id` of ours. Until the server has named the response, the same frame is sent again: one turn.
// 2. From then on only the rest is asked for: `response.retrieve` with `starting_after`, the last number that was seen.
// 3. Events at or below that number are repetitions. The terminal event ends it and has the whole text.

const WebSocket = globalThis.WebSocket ?? (await import("ws")).WebSocket;

const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);
const RETRY_CODES = new Set([1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015]); // after others a new connection is no use
const FIRST_DELAY_MS = 300;
const MAX_DELAY_MS = 10_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Calls `onText` with each new piece; returns the response object at its end. Throws when the server refuses. */
export async function ask(url, text, onText) {
  const answer = { request: { type: "response.create", id: crypto.randomUUID(), input: text }, id: null, last: -1 };
  for (let attempt = 1; ; attempt++) {
    const outcome = await connection(url, answer, onText);
    if (outcome.response) return outcome.response;
    if (outcome.refused) throw new Error(outcome.refused);
    if (outcome.heard) attempt = 1;
    const backoff = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
    await sleep(outcome.retryAfter ?? backoff);
  }
}

/** One connection, until the answer ends, the server refuses, or the connection is lost. */
function connection(url, answer, onText) {
  return new Promise((resolve) => {
    const socket = new WebSocket(url);
    let heard = false;
    const finish = (outcome) => {
      resolve({ heard, ...outcome });
      socket.close();
    };
    socket.onopen = () => socket.send(JSON.stringify(frame(answer)));
    socket.onerror = () => {}; // always followed by a close
    socket.onclose = ({ code, reason }) => finish(RETRY_CODES.has(code) ? {} : { refused: `the server closed the connection: ${code} ${reason}` });
    socket.onmessage = ({ data }) => {
      heard = true;
      const event = JSON.parse(data);
      if (event.type === "error") {
        const retryAfter = event.error.retry_after_ms; // ask again when the server says
        finish(retryAfter === undefined ? { refused: event.error.message } : { retryAfter });
      } else if (receive(answer, event, onText)) finish({ response: event.response });
    };
  });
}

function frame({ request, id, last }) {
  return id === null ? request : { type: "response.retrieve", response_id: id, starting_after: last };
}

/** Returns whether that was the end. */
function receive(answer, event, onText) {
  const isEnd = TERMINAL.has(event.type);
  const number = event.sequence_number ?? -1;
  if (!isEnd && number <= answer.last) return false;
  answer.last = Math.max(answer.last, number);
  answer.id ??= event.response?.id ?? null;
  if (event.type === "response.output_text.delta") onText(event.delta);
  return isEnd;
}

const [url, text] = process.argv.slice(2);
const response = await ask(url, text, (piece) => process.stdout.write(piece));
console.error(`\n[${response.status}]`);
