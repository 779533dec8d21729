// A plain WebSocket, with nothing of ours around it: the same cases for browsers and for k6.

const MODEL = "echo";
const AGENT = "agent"; // calls tools by a script: world.py
const LONG = Array.from({ length: 60 }, (_, number) => `w${number}`).join(" ");
const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];

const isDelta = (event) => event.type === "response.output_text.delta";
const isEnd = (event) => TERMINAL.includes(event.type);

function assert(fact, what) {
  if (!fact) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
}

/** Returns the cases by name. open: makes a socket. cut: has all connections cut. */
export function plainCases(open, cut) {
  /** Connects; `next(test)` resolves with the next event that passes; errors and the end pass every test. */
  async function connect() {
    const socket = open();
    const events = [];
    let wake = () => {};
    socket.onmessage = ({ data }) => {
      events.push(JSON.parse(data));
      wake();
    };
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = () => reject(new Error("it does not connect"));
    });
    socket.onerror = () => {}; // followed by a close
    socket.onclose = () => {
      events.push({ type: "closed" });
      wake();
    };
    const next = async (test) => {
      for (;;) {
        while (events.length) {
          const event = events.shift();
          if (test(event) || event.type === "error" || event.type === "closed") return event;
        }
        await new Promise((resolve) => {
          wake = resolve;
        });
      }
    };
    const send = (event) => socket.send(JSON.stringify(event));
    const create = (input, fields = {}) => send({ type: "response.create", model: MODEL, input, ...fields });
    return { socket, next, send, create };
  }

  return {
    async happy() {
      const { socket, next, create } = await connect();
      create("hello from a socket");
      let text = "";
      const end = await next((event) => {
        if (isDelta(event)) text += event.delta;
        return isEnd(event);
      });
      assert(end.type === "response.completed" && text === "hello from a socket", end);
      assert(end.response.output[0].content[0].text === text, end);
      socket.close();
    },

    async turns() {
      const { socket, next, create } = await connect();
      create("my name is Ada");
      const first = await next(isEnd);
      create("who am I", { previous_response_id: first.response.id });
      const second = await next(isEnd);
      assert(second.response.usage.input_tokens === 4 + 4 + 3, second);
      socket.close();
    },

    async cancel() {
      const { socket, next, send, create } = await connect();
      create(LONG);
      await next(isDelta);
      send({ type: "response.cancel" });
      const end = await next(isEnd);
      assert(end.type === "response.incomplete" && end.response.incomplete_details.reason === "cancelled", end);
      create("next");
      const after = await next(isEnd);
      assert(after.response.output[0].content[0].text === "next", after);
      socket.close();
    },

    async error() {
      const { socket, next, create } = await connect();
      create("x", { model: "no-such" });
      const event = await next(isEnd);
      assert(event.type === "error" && event.error.code === "model_not_found", event);
      create("fine");
      const after = await next(isEnd);
      assert(after.type === "response.completed", after);
      socket.close();
    },

    async reconnect() {
      const lost = await connect();
      lost.create(LONG);
      let id;
      let last = -1;
      const follow = (event) => {
        id ??= event.response?.id;
        last = event.sequence_number ?? last;
        return isDelta(event);
      };
      await lost.next(follow);
      await cut();
      while ((await lost.next(follow)).type !== "closed");
      const { socket, next, send } = await connect();
      send({ type: "response.retrieve", response_id: id, starting_after: last });
      const first = await next(() => true);
      assert(first.sequence_number > last, first);  // deltas that gathered come as one
      const end = isEnd(first) ? first : await next(isEnd);
      assert(end.response.output[0].content[0].text === LONG, end);
      socket.close();
    },

    async tools() {
      const tool = { type: "function", name: "get_weather", parameters: { type: "object" } };
      const { socket, next, create } = await connect();
      create("What is the weather in Paris?", { model: AGENT, tools: [tool] });
      const first = await next(isEnd);
      const call = first.response.output.find((item) => item.type === "function_call");
      assert(call.name === "get_weather" && JSON.parse(call.arguments).city === "Paris", first);
      const output = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
      create([output], { model: AGENT, tools: [tool], previous_response_id: first.response.id });
      const second = await next(isEnd);
      assert(second.response.output.at(-1).content[0].text === "It says: sunny", second);
      socket.close();
    },
  };
}
