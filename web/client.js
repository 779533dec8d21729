// @ts-check — longer than our other files on purpose: this and subscription.js are all that another project has to copy.
/**
 * The Tokenwire client: one socket, any number of responses side by side. No DOM; runs in browsers and in Node.
 *
 *     import { TokenwireClient } from "./client.js";
 *
 *     const client = new TokenwireClient({ url: "ws://localhost:8000/v1/responses" });
 *     client.connect();
 *     const stream = client.respond({ input: "Hello" }, (event) => {
 *       if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
 *     });
 *     const { status, text } = await stream.done;      // "completed", "Hello to you"
 *     const { data } = await client.command({ type: "conversation.list" });
 *     client.subscribe(data[0].id, (event) => console.log(event.type));   // whoever says something there
 *     client.close();
 *
 * Where there is no global WebSocket (Node before 22 without `--experimental-websocket`) pass a class:
 * `new TokenwireClient({ url, WebSocket: (await import("ws")).WebSocket })`.
 *
 * What it takes care of:
 * - Every command carries an `id`, so sending it again after a lost connection is harmless; answers are matched by it.
 * - Every response runs in a lane (`stream_id`) of its own, so no event of one can reach another.
 * - A lost socket is reopened by close code with back-off. Unanswered commands are sent again; a response that
 *   had begun goes on after its last `sequence_number` (`response.retrieve`, `starting_after`): no gap, no repeat.
 *   Subscriptions are made again, and tell what was missed and only that.
 *
 * The wire is described in protocol/README.md.
 */
import { Subscription } from "./subscription.js";

/** @typedef {{ type: string, sequence_number?: number, stream_id?: string, id?: string, [key: string]: any }} WireEvent */
/** @typedef {{ type: string, [key: string]: any }} Command */
/** @typedef {{ reason: string, position?: number, estimated_wait_ms?: number, progress?: number }} Waiting */
/** @typedef {{ status: "completed" | "incomplete" | "failed", text: string, response: any }} Outcome */
/**
 * `idle`: connect() was not called yet. `connecting`, `open`: as they say. `waiting`: lost, trying again in `delay` ms.
 * `closed`: for good, by close() or by a close code that says that trying again is no use.
 * @typedef {{ status: "idle" | "connecting" | "open" | "waiting" | "closed", attempt: number, delay?: number, code?: number, reason?: string }} Connection
 */
/**
 * @typedef {object} Options
 * @property {string | URL} url the server's `/v1/responses`, as ws:// or wss://
 * @property {string} [token] API key or JWT; it travels as a subprotocol, since browsers cannot set headers
 * @property {any} [WebSocket] class to open sockets with; default: the global one
 * @property {(attempt: number) => number} [backoff] milliseconds to wait before attempt 1, 2, …; default: `jitteredBackoff`
 * @property {() => string} [newId] makes idempotency keys; default: `randomId`
 * @property {{ setTimeout: (callback: () => void, ms: number) => any, clearTimeout: (timer: any) => void }} [timers]
 */

/** Responses one connection may run at once (protocol, "Lanes"): the rest wait here for a free lane. */
const MAX_LANES = 16;
/** Milliseconds that `wake` gives an open socket to prove that it is alive; a phone's slow radio needs 1–3 s. */
const PROBE_TIMEOUT_MS = 5_000;
/** Milliseconds of silence after something was said, until an open socket is asked to prove that it is alive; the server may wait 10 s for its store. */
const SILENCE_MS = 15_000;
/** Milliseconds for a handshake; one that a lost network has swallowed would else hang for minutes. */
const CONNECT_TIMEOUT_MS = 20_000;
/** Milliseconds that a running answer is asked for again while the server says "later", as when it changes gateways. */
const RESUME_PATIENCE_MS = 60_000;
const BACKOFF_FIRST_MS = 300;
const BACKOFF_MAX_MS = 10_000;

/**
 * Close codes after which a new socket is worth trying (protocol, "Connection"), plus 1000: a client that did not
 * close the socket itself was cut by something on the way, which is how sleeping phones see it.
 */
const RETRY_CODES = new Set([1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015]);
/** "Too big": a new socket is fine, but the same frame would close it again, so what was unanswered fails. */
const TOO_BIG = 1009;

const TERMINAL_STATUS = /** @type {Record<string, Outcome["status"]>} */ ({
  "response.completed": "completed",
  "response.incomplete": "incomplete",
  "response.failed": "failed",
});

/** A request that the server refused, or that could not be made. `code` is for programs, `message` for people. */
export class TokenwireError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{ status?: number, param?: string | null, retryAfterMs?: number }} [details]
   */
  constructor(code, message, { status, param, retryAfterMs } = {}) {
    super(message);
    this.name = "TokenwireError";
    this.code = code;
    this.status = status;
    this.param = param;
    this.retryAfterMs = retryAfterMs;
  }

  /** @param {WireEvent} event an `error` event */
  static from(event) {
    const error = event.error ?? {};
    return new TokenwireError(error.code ?? "unknown_error", error.message ?? "The server refused the request.", {
      status: event.status,
      param: error.param,
      retryAfterMs: error.retry_after_ms,
    });
  }
}

/**
 * Exponential back-off with jitter, so that many clients of a restarted server do not come back in one instant.
 * @param {number} attempt 1, 2, …
 * @param {() => number} [random]
 */
export function jitteredBackoff(attempt, random = Math.random) {
  const ceiling = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** (attempt - 1));
  return ceiling / 2 + (random() * ceiling) / 2;
}

/**
 * The text of a response object's messages.
 * @param {any} response
 * @returns {string}
 */
export function outputText(response) {
  /** @type {any[]} */
  const items = Array.isArray(response?.output) ? response.output : [];
  return items
    .filter((item) => item.type === "message")
    .flatMap((item) => item.content ?? [])
    .map((part) => part.text ?? "")
    .join("");
}

/** One response as this client sees it: made by `respond` or `resume`, it survives lost connections. */
export class ResponseStream {
  /** Null until the server has accepted the turn. @type {string | null} */
  responseId = null;
  /** The last event that was seen; -1 before the first. */
  lastSequence = -1;
  /** The answer's text so far. */
  text = "";
  /** Why it is not running yet, while it is not. @type {Waiting | null} */
  waiting = null;
  /** Whether cancel() was called. */
  cancelled = false;
  /** @type {Promise<Outcome>} resolves at the response's end, rejects with a TokenwireError when there is no response */
  done;

  /** @type {string | null} the lane, while it has one */
  lane = null;
  /** Whether its request was written to a socket, so that the server may know of it. */
  sent = false;
  /** Milliseconds spent on waiting for the server to find the response again. */
  patienceUsed = 0;
  /** @type {TokenwireClient} */ #client;
  /** @type {Command} */ #request;
  /** @type {(event: WireEvent, stream: ResponseStream) => void} */ #listener;
  /** @type {(outcome: Outcome) => void} */ #resolve = () => {};
  /** @type {(error: TokenwireError) => void} */ #reject = () => {};

  /**
   * @param {TokenwireClient} client
   * @param {Command} request `response.create`, with an `id`, or `response.retrieve`
   * @param {(event: WireEvent, stream: ResponseStream) => void} listener
   */
  constructor(client, request, listener) {
    this.#client = client;
    this.#request = request;
    this.#listener = listener;
    if (request.type === "response.retrieve") {
      this.responseId = request.response_id;
      this.lastSequence = request.starting_after ?? -1;
    }
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever only listens to events need not handle `done` as well.
    this.done.catch(() => {});
  }

  /** The conversation that its turn is for. @returns {string | undefined} */
  get conversation() {
    return this.#request.conversation?.id ?? this.#request.conversation;
  }

  /** Whether a new connection can pick it up. */
  get resumable() {
    return !this.sent || this.#request.store !== false;
  }

  /**
   * Stops the response; its partial text is kept and `done` resolves as `incomplete`. Harmless when it is over.
   * A request that never left this machine is withdrawn: `done` rejects with code `withdrawn`.
   */
  cancel() {
    if (this.cancelled) return;
    this.cancelled = true;
    if (!this.sent) this.#client.drop(this, new TokenwireError("withdrawn", "Stopped before it was sent."));
    else if (this.responseId) this.#client.sendCancel(this.responseId);
    // Otherwise `receive` sends it, once the server has told the response's id.
  }

  /** The frame that starts it, or that goes on with it on a new connection. @returns {Command} */
  frame() {
    const lane = { stream_id: this.lane };
    if (!this.responseId) return { ...this.#request, ...lane };
    const after = this.lastSequence >= 0 ? { starting_after: this.lastSequence } : {};
    // Without an `id`: each of these asks for another part, and a refusal is matched by the lane.
    return { type: "response.retrieve", response_id: this.responseId, ...after, ...lane };
  }

  /** @param {WireEvent} event one of this response's */
  receive(event) {
    const status = TERMINAL_STATUS[event.type];
    const sequence = event.sequence_number ?? this.lastSequence;
    // Replayed by a resumed or repeated request. A terminal event counts in any case: after an expired log it is all there is.
    if (!status && event.sequence_number !== undefined && sequence <= this.lastSequence) return;
    this.lastSequence = Math.max(this.lastSequence, sequence);
    if (event.response?.id && !this.responseId) {
      this.responseId = event.response.id;
      if (this.cancelled && !status) this.#client.sendCancel(event.response.id);
    }
    if (event.type === "response.queued") this.waiting = event.tokenwire ?? { reason: "admission" };
    else this.waiting = null;
    if (event.type === "response.output_text.delta") this.text += event.delta;
    if (status) this.text = outputText(event.response) || this.text;
    try {
      this.#listener(event, this);
    } finally {
      if (status) this.#resolve({ status, text: this.text, response: event.response });
    }
  }

  /** @param {TokenwireError} error */
  fail(error) {
    this.#reject(error);
  }
}

export class TokenwireClient {
  /** @type {Connection} */
  connection = { status: "idle", attempt: 0 };

  /** @type {Required<Omit<Options, "token">> & { token?: string }} */ #options;
  /** @type {any} */ #socket = null;
  /** @type {any} */ #timer = null;
  /** Runs while the socket owes an answer: to the handshake, or to what was written last. @type {any} */ #doubt = null;
  #attempt = 0;
  /** Commands without an answer yet, oldest first. @type {Map<string, { command: Command, resolve: (event: WireEvent) => void, reject: (error: TokenwireError) => void }>} */
  #pending = new Map();
  /** @type {Map<string, ResponseStream>} */ #lanes = new Map();
  /** Lane names are used again: a connection may have 32 of them in its life. */
  #freeLanes = Array.from({ length: MAX_LANES }, (_, index) => `lane-${index + 1}`);
  /** Streams that wait for a free lane. @type {ResponseStream[]} */
  #laneless = [];
  /** By lane. @type {Map<string, Subscription>} */ #subscriptions = new Map();
  /** Responses that a ResponseStream tells of: subscriptions are silent about them. @type {Set<string>} */ #own = new Set();
  /** @type {Set<(connection: Connection) => void>} */ #connectionListeners = new Set();
  /** @type {Set<(event: WireEvent) => void>} */ #eventListeners = new Set();

  /** @param {Options} options */
  constructor(options) {
    this.#options = {
      WebSocket: /** @type {any} */ (globalThis).WebSocket,
      backoff: jitteredBackoff,
      newId: randomId,
      timers: { setTimeout: (callback, ms) => setTimeout(callback, ms), clearTimeout: (timer) => clearTimeout(timer) },
      ...options,
    };
    if (!this.#options.WebSocket) throw new TypeError("No global WebSocket here: pass a class as `WebSocket`.");
  }

  /**
   * Calls back at every change of the connection.
   * @param {(connection: Connection) => void} listener
   * @returns {() => void} stops it
   */
  onConnection(listener) {
    this.#connectionListeners.add(listener);
    return () => this.#connectionListeners.delete(listener);
  }

  /**
   * Calls back for every event that answers nothing asked here (connection-wide errors).
   * @param {(event: WireEvent) => void} listener
   * @returns {() => void} stops it
   */
  onEvent(listener) {
    this.#eventListeners.add(listener);
    return () => this.#eventListeners.delete(listener);
  }

  /** Opens the socket, and keeps one open from now on. Also starts over after `closed`. */
  connect() {
    if (this.#socket) return;
    this.#options.timers.clearTimeout(this.#timer);
    const { WebSocket, url, token } = this.#options;
    const socket = token ? new WebSocket(String(url), ["responses", `openai-insecure-api-key.${token}`]) : new WebSocket(String(url));
    this.#socket = socket;
    this.#setConnection({ status: "connecting", attempt: this.#attempt });
    socket.onopen = () => this.#opened();
    socket.onmessage = (/** @type {{ data: unknown }} */ message) => this.#received(message.data);
    // An error is always followed by a close, which carries the code.
    socket.onerror = () => {};
    socket.onclose = (/** @type {{ code: number, reason: string }} */ event) => this.#closed(event.code, event.reason);
    this.#doubtIn(CONNECT_TIMEOUT_MS, () => this.#lose());
  }

  /** Goes on under another key: the one so far was refused, or its time is up. @param {string} token */
  signIn(token) {
    this.#options.token = token;
    this.#abandonSocket()?.close();
    this.connect();
  }

  /** Closes for good; whatever is unanswered fails with code `closed`. Stored responses go on at the server. */
  close() {
    this.#options.timers.clearTimeout(this.#timer);
    const socket = this.#abandonSocket();
    this.#subscriptions.clear();
    this.#failAll(new TokenwireError("closed", "The connection was closed."));
    this.#setConnection({ status: "closed", attempt: 0, code: 1000 });
    socket?.close(1000);
  }

  /**
   * Call it when the machine may have been asleep or the network has come or gone: a waiting connection is tried at
   * once, any other one must answer within seconds or is replaced. It does so itself where an answer is overdue.
   */
  wake() {
    const { status } = this.connection;
    if (status === "waiting") this.connect();
    if (status !== "connecting" && status !== "open") return;
    this.#doubtIn(PROBE_TIMEOUT_MS, () => this.#lose());
    if (status === "open") this.command({ type: "conversation.list", limit: 1 }).catch(() => {}); // whatever it says
  }

  /** Does something unless the socket says something before. @param {number} ms @param {() => void} deed */
  #doubtIn(ms, deed) {
    this.#trust();
    this.#doubt = this.#options.timers.setTimeout(() => {
      this.#doubt = null;
      deed();
    }, ms);
  }

  #trust() {
    this.#options.timers.clearTimeout(this.#doubt);
    this.#doubt = null;
  }

  /** A dead socket's close() would wait for the peer's answer, perhaps for minutes. */
  #lose() {
    this.#closed(1006, "no answer");
  }

  /**
   * Sends a command that has one answer, and waits for it (across lost connections).
   * @param {Command} command an `id` is added unless it has one
   * @returns {Promise<WireEvent>} the event that answers it
   * @throws {TokenwireError} what the server said against it
   */
  command(command) {
    const id = command.id ?? this.#options.newId();
    const withId = { ...command, id };
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { command: withId, resolve, reject });
      this.#write(withId);
    });
  }

  /**
   * Starts a turn.
   * @param {Record<string, any>} request the body of `response.create`; an `id` is added unless it has one
   * @param {(event: WireEvent, stream: ResponseStream) => void} [listener] gets the response's events, each once, in order
   */
  respond(request, listener = () => {}) {
    return this.#start({ type: "response.create", id: this.#options.newId(), ...request }, listener);
  }

  /**
   * Follows a response that runs already, or reads one that has ended.
   * @param {string} responseId
   * @param {{ startingAfter?: number }} [options] the last sequence number that is known; none: from its beginning
   * @param {(event: WireEvent, stream: ResponseStream) => void} [listener]
   */
  resume(responseId, { startingAfter } = {}, listener = () => {}) {
    this.#own.add(responseId);
    return this.#retrieve(responseId, startingAfter, listener);
  }

  /** @param {string} responseId @param {number | undefined} after @param {(event: WireEvent, stream: ResponseStream) => void} listener */
  #retrieve(responseId, after, listener) {
    const starting = after === undefined || after < 0 ? {} : { starting_after: after };
    return this.#start({ type: "response.retrieve", response_id: responseId, ...starting }, listener);
  }

  /**
   * Follows a conversation live, whoever talks in it and on whichever device, until `unsubscribe`. The listener gets
   * each of these once, in order, over any number of lost connections:
   * - `conversation.subscribed`, first, and again where the conversation has gone to another branch during a lost
   *   connection: `conversation`, `items` (all of them) and `responses`, the answers
   *   that are being made: `{ response, text, sequence_number }`, with the text so far;
   * - `conversation.item.added`: each item after that, those of this client's own turns, too; an answer that began and
   *   ended during a lost connection comes as its item;
   * - `response.…`: the events of answers, with their `response_id`, except those that `respond` and `resume` of this
   *   client tell of. What a lost connection missed of an answer comes as one delta;
   * - `conversation.updated` and `conversation.deleted`; the first also after each lost connection.
   *
   * A second subscription to a conversation replaces the first.
   * @param {string} conversation its id
   * @param {(event: WireEvent) => void} listener
   * @returns {Subscription} `ready` resolves with the first event, and rejects with a TokenwireError where there is no such conversation
   */
  subscribe(conversation, listener) {
    const host = {
      command: (/** @type {any} */ command) => this.command(command),
      isNaming: (/** @type {string} */ id) => [...this.#lanes.values()].some((stream) => stream.conversation === id && stream.sent && !stream.responseId),
      isOwn: (/** @type {string} */ id) => this.#own.has(id),
      isStreaming: (/** @type {string} */ id) => [...this.#lanes.values()].some((stream) => stream.responseId === id),
      readOn: (/** @type {string} */ id, /** @type {number} */ after, /** @type {(event: WireEvent) => void} */ hear) => this.#retrieve(id, after, hear).done,
      newId: this.#options.newId,
    };
    const subscription = new Subscription(host, conversation, listener);
    this.#subscriptions.set(subscription.lane, subscription);
    this.#write(subscription.frame());
    return subscription;
  }

  /** Ends a subscription; harmless when it is not there (any more). @param {Subscription} subscription */
  unsubscribe(subscription) {
    if (this.#subscriptions.get(subscription.lane) !== subscription) return;
    this.#subscriptions.delete(subscription.lane);
    this.#write({ type: "conversation.unsubscribe", conversation: subscription.conversation, id: this.#options.newId() });
  }

  /**
   * Stops a response, also one of another device; a ResponseStream has its own `cancel`. It has no answer of its own:
   * the response ends. A refusal means that it is over already, and nobody waits for it.
   * @param {string} responseId
   */
  sendCancel(responseId) {
    this.#write({ type: "response.cancel", id: this.#options.newId(), response_id: responseId });
  }

  /**
   * For ResponseStream: forgets a stream and frees its lane.
   * @param {ResponseStream} stream
   * @param {TokenwireError} [error] why, unless it ended well
   */
  drop(stream, error) {
    if (stream.lane !== null) {
      this.#lanes.delete(stream.lane);
      this.#freeLanes.push(stream.lane);
      stream.lane = null;
    } else {
      this.#laneless = this.#laneless.filter((other) => other !== stream);
    }
    if (error) stream.fail(error);
    this.#fillLanes();
    this.#named(stream);
  }

  /** A turn's response is known now, or there is none: its conversation's subscription need not wait for that any more. @param {ResponseStream} stream */
  #named(stream) {
    for (const subscription of this.#subscriptions.values()) if (subscription.conversation === stream.conversation) subscription.flush();
  }

  /** @param {Command} request @param {(event: WireEvent, stream: ResponseStream) => void} listener */
  #start(request, listener) {
    const stream = new ResponseStream(this, request, listener);
    this.#laneless.push(stream);
    this.#fillLanes();
    return stream;
  }

  #fillLanes() {
    while (this.#laneless.length > 0 && this.#freeLanes.length > 0) {
      const stream = /** @type {ResponseStream} */ (this.#laneless.shift());
      stream.lane = /** @type {string} */ (this.#freeLanes.shift());
      this.#lanes.set(stream.lane, stream);
      this.#writeStream(stream);
    }
  }

  /** @param {ResponseStream} stream */
  #writeStream(stream) {
    if (this.#write(stream.frame())) stream.sent = true;
  }

  /** @param {Command} frame @returns {boolean} false when there is no socket: `#opened` sends it later */
  #write(frame) {
    if (!this.#socket || this.connection.status !== "open") return false;
    this.#socket.send(JSON.stringify(frame));
    if (this.#doubt === null) this.#doubtIn(SILENCE_MS, () => this.wake());
    return true;
  }

  #opened() {
    this.#trust();
    this.#setConnection({ status: "open", attempt: this.#attempt });
    for (const { command } of this.#pending.values()) this.#write(command);
    for (const stream of [...this.#lanes.values()]) {
      if (!stream.resumable) this.drop(stream, new TokenwireError("connection_lost", "The connection was lost, and this answer was not stored."));
      else this.#writeStream(stream);
      if (stream.cancelled && stream.responseId) this.sendCancel(stream.responseId);
    }
    for (const subscription of this.#subscriptions.values()) this.#write(subscription.frame());
  }

  /** @param {unknown} data */
  #received(data) {
    this.#trust();
    this.#attempt = 0;
    if (typeof data !== "string") return;
    /** @type {WireEvent} */
    const event = JSON.parse(data);
    const waiting = event.id === undefined ? undefined : this.#pending.get(event.id);
    const stream = event.stream_id === undefined ? undefined : this.#lanes.get(event.stream_id);
    const subscription = event.stream_id === undefined ? undefined : this.#subscriptions.get(event.stream_id);
    if (event.id !== undefined && waiting) this.#answered(event.id, event);
    else if (stream && event.type === "error") this.#streamRefused(stream, TokenwireError.from(event));
    else if (stream) this.#streamEvent(stream, event);
    else if (subscription && event.type === "error") this.#subscriptionRefused(subscription, event);
    else if (subscription) subscription.receive(event);
    else if (event.id === undefined && event.stream_id === undefined) {
      // With an id or a lane that nobody waits for, it is the refusal of a late cancel, or of an ended subscription.
      for (const listener of this.#eventListeners) listener(event);
    }
  }

  /** @param {ResponseStream} stream @param {WireEvent} event */
  #streamEvent(stream, event) {
    const isNew = stream.responseId === null;
    try {
      stream.receive(event);
    } finally {
      // Also when a listener has thrown, which is for its owner to see: the books are ours.
      if (isNew && stream.responseId) {
        this.#own.add(stream.responseId);
        this.#named(stream);
      }
      if (event.type in TERMINAL_STATUS) this.drop(stream);
    }
  }

  /** Asked for again where waiting helps: a subscription is a standing wish. @param {Subscription} subscription @param {WireEvent} event */
  #subscriptionRefused(subscription, event) {
    if (!subscription.isAnswer(event.id)) return;
    const error = TokenwireError.from(event);
    if (error.retryAfterMs === undefined) {
      this.#subscriptions.delete(subscription.lane);
      return subscription.refused(error);
    }
    const again = () => subscription.isAnswer(event.id) && this.#subscriptions.has(subscription.lane) && this.#write(subscription.frame());
    this.#options.timers.setTimeout(again, error.retryAfterMs);
  }

  /** A turn that was refused is its sender's affair; a response that exists is asked for again where that helps. @param {ResponseStream} stream @param {TokenwireError} error */
  #streamRefused(stream, error) {
    const delay = error.retryAfterMs;
    if (!stream.responseId || delay === undefined || stream.patienceUsed + delay > RESUME_PATIENCE_MS) return this.drop(stream, error);
    stream.patienceUsed += delay;
    this.#options.timers.setTimeout(() => stream.lane !== null && this.#writeStream(stream), delay);
  }

  /** @param {string} id @param {WireEvent} event */
  #answered(id, event) {
    const waiting = this.#pending.get(id);
    this.#pending.delete(id);
    if (event.type === "error") waiting?.reject(TokenwireError.from(event));
    else waiting?.resolve(event);
  }

  /** @param {number} code @param {string} reason */
  #closed(code, reason) {
    this.#abandonSocket()?.close();
    if (code === TOO_BIG) this.#failUnanswered(new TokenwireError("message_too_big", "This message is too long for the server."));
    if (code === TOO_BIG || RETRY_CODES.has(code)) {
      this.#attempt += 1;
      const delay = this.#options.backoff(this.#attempt);
      this.#timer = this.#options.timers.setTimeout(() => this.connect(), delay);
      this.#setConnection({ status: "waiting", attempt: this.#attempt, delay, code, reason });
    } else {
      this.#setConnection({ status: "closed", attempt: this.#attempt, code, reason });
      this.#failAll(new TokenwireError("connection_refused", reason || `The server closed the connection (code ${code}).`));
    }
  }

  /** Lets go of the socket, so that nothing it still says is heard. */
  #abandonSocket() {
    this.#trust();
    const socket = this.#socket;
    this.#socket = null;
    if (socket) socket.onopen = socket.onmessage = socket.onclose = null;
    for (const subscription of this.#subscriptions.values()) subscription.lost();
    return socket;
  }

  /** @param {TokenwireError} error */
  #failUnanswered(error) {
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
    for (const stream of [...this.#lanes.values()]) if (!stream.responseId) this.drop(stream, error);
  }

  /** @param {TokenwireError} error */
  #failAll(error) {
    this.#failUnanswered(error);
    for (const stream of [...this.#laneless, ...this.#lanes.values()]) this.drop(stream, error);
  }

  /** @param {Connection} connection */
  #setConnection(connection) {
    this.connection = connection;
    for (const listener of this.#connectionListeners) listener(connection);
  }
}

/** 128 random bits in hex. `crypto.randomUUID` exists on secure origins only; a page served over plain HTTP in a home network is none. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
