// @ts-check
/**
 * One conversation followed live, for client.js: from the server's snapshots and events it makes one history in which
 * nothing is missing and nothing comes twice, over any number of connections. No socket here.
 */

/** @typedef {import("./client.js").WireEvent} WireEvent */
/** @typedef {import("./client.js").TokenwireError} TokenwireError */
/**
 * What a subscription needs of its client.
 * @typedef {object} Host
 * @property {(command: Record<string, any>) => Promise<WireEvent>} command
 * @property {(conversation: string) => boolean} isNaming whether a turn of ours in it was sent and has no response id yet
 * @property {(responseId: string) => boolean} isOwn whether a ResponseStream of ours tells of it, or has told
 * @property {(responseId: string) => boolean} isStreaming whether one still tells
 * @property {(responseId: string, after: number, listener: (event: WireEvent) => void) => Promise<unknown>} readOn
 * @property {() => string} newId
 */
/**
 * How far a response of somebody else has been told.
 * @typedef {object} Progress
 * @property {string} text what the listener has
 * @property {number} last the highest sequence number that the listener has
 * @property {number} position length of the text that this connection's deltas go on from: a snapshot may be older than `text`
 * @property {number} from this connection's deltas with higher numbers count
 * @property {boolean} isReadOn whether its end is being fetched
 */

const DELTA = "response.output_text.delta";
const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

export class Subscription {
  /** @type {string} */ conversation;
  /** The lane of its events. The same for each subscription to a conversation: what an earlier one left running still comes. @type {string} */ lane;
  /** @type {Promise<WireEvent>} resolves with the first snapshot; rejects with a TokenwireError when there is no such conversation */
  ready;

  /** @type {Host} */ #host;
  /** @type {(event: WireEvent) => void} */ #listener;
  /** @type {(event: WireEvent) => void} */ #resolve = () => {};
  /** @type {(error: TokenwireError) => void} */ #reject = () => {};
  /** Key of the command whose answer counts. @type {string | null} */ #asked = null;
  /** Whether this connection's snapshot has been told. */
  #isLive = false;
  #isFirst = true;
  /** Whether the rest of a long snapshot is being read. */
  #isReading = false;
  /** Not told yet, in order. @type {WireEvent[]} */ #held = [];
  /** @type {Set<string>} */ #items = new Set();
  /** @type {Map<string, Progress>} */ #running = new Map();
  /** @type {Set<string>} */ #ended = new Set();

  /**
   * @param {Host} host
   * @param {string} conversation
   * @param {(event: WireEvent) => void} listener
   */
  constructor(host, conversation, listener) {
    this.#host = host;
    this.conversation = conversation;
    this.lane = `conversation.${conversation.replaceAll(":", ".")}`;
    this.#listener = listener;
    this.ready = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever only listens to events need not handle `ready` as well.
    this.ready.catch(() => {});
  }

  /** The command that asks for it, anew on each connection. */
  frame() {
    this.#asked = this.#host.newId();
    return { type: "conversation.subscribe", conversation: this.conversation, stream_id: this.lane, id: this.#asked };
  }

  /** The socket is gone. What was held was never told, so the next snapshot brings it again. */
  lost() {
    this.#asked = null;
    this.#isLive = this.#isReading = false;
    this.#held = [];
  }

  /** @param {string | undefined} id of a command */
  isAnswer(id) {
    return id !== undefined && id === this.#asked;
  }

  /** @param {WireEvent} event anything on its lane but errors */
  receive(event) {
    if (event.type === "conversation.subscribed" && !this.isAnswer(event.id)) return;
    this.#held.push(event);
    this.flush();
  }

  /**
   * Tells what may be told. While a turn of ours has no id yet, nobody knows whether an event is of that turn; so all
   * wait. The client calls this when the turn has its id, or has failed.
   */
  flush() {
    while (this.#held.length > 0 && !this.#isReading && !this.#host.isNaming(this.conversation)) {
      this.#take(/** @type {WireEvent} */ (this.#held.shift()));
    }
  }

  /** The server refused it. @param {TokenwireError} error */
  refused(error) {
    if (this.#isFirst) this.#reject(error);
    else if (error.code === "conversation_not_found") {
      this.#listener({ type: "conversation.deleted", conversation: { id: this.conversation, object: "conversation.deleted", deleted: true } });
    }
  }

  /** @param {WireEvent} event */
  #take(event) {
    if (event.type === "conversation.subscribed") return this.#snapshot(event);
    if (!this.#isLive) return; // left over from an earlier subscription: the snapshot has it, too
    if (event.type.startsWith("response.")) return this.#response(event, this.#responseOf(event));
    if (event.type !== "conversation.item.added") return this.#listener(event);
    if (this.#items.has(event.item.id)) return;
    this.#items.add(event.item.id);
    this.#listener(event);
  }

  // ── snapshots ──

  /** @param {WireEvent} event */
  #snapshot(event) {
    if (!event.has_more) return this.#begin(event, event.items);
    const asked = this.#asked;
    this.#isReading = true;
    this.#readRest(event.items).then(
      (items) => {
        if (asked !== this.#asked) return;
        this.#isReading = false;
        this.#begin(event, items);
        this.flush();
      },
      (error) => asked === this.#asked && this.refused(error),
    );
  }

  /** @param {any[]} start @returns {Promise<any[]>} */
  async #readRest(start) {
    const items = [...start];
    for (let more = true; more; ) {
      const page = await this.#host.command({ type: "conversation.items.list", conversation: this.conversation, limit: 1000, after: items.at(-1).id });
      items.push(...page.data);
      more = page.has_more && page.data.length > 0;
    }
    return items;
  }

  /** @param {WireEvent} event @param {any[]} all its items, all pages */
  #begin(event, all) {
    if (!this.#isFirst && this.#hasLeft(all)) this.#forget();
    /** @type {any[]} */
    const responses = event.responses.filter((/** @type {any} */ { response }) => !this.#host.isOwn(response.id) && !this.#ended.has(response.id));
    const listed = new Set(responses.map(({ response }) => response.id));
    // A running answer's text comes by its own events and has come whole where it has ended, ours by its stream; whoever
    // begins to listen has not heard ended streams.
    const isOurs = this.#isFirst ? this.#host.isStreaming : this.#host.isOwn;
    const isTold = (/** @type {string} */ id) => listed.has(id) || this.#running.has(id) || this.#ended.has(id) || isOurs(id);
    const streamed = (/** @type {any} */ item) => item.role === "assistant" && isTold(item.response_id);
    const items = all.filter((item) => !this.#items.has(item.id) && !streamed(item));
    for (const item of all) this.#items.add(item.id);
    this.#isLive = true;
    if (this.#isFirst) this.#tellAll({ ...event, items, has_more: false, responses });
    else this.#tellNews(event.conversation, items, responses);
    for (const [id, progress] of this.#running) if (!listed.has(id)) this.#readOn(id, progress);
  }

  /** Whether the conversation has gone to another branch while there was no connection. @param {any[]} all the items of its branch */
  #hasLeft(all) {
    const ids = new Set(all.map(({ id }) => id));
    return [...this.#items].some((id) => !ids.has(id));
  }

  /** Everything is told anew. */
  #forget() {
    this.#isFirst = true;
    for (const known of [this.#items, this.#running, this.#ended]) known.clear();
  }

  /** @param {WireEvent} snapshot */
  #tellAll(snapshot) {
    this.#isFirst = false;
    for (const { response, text, sequence_number } of snapshot.responses) {
      this.#running.set(response.id, { text, last: sequence_number, position: text.length, from: sequence_number, isReadOn: false });
    }
    this.#listener(snapshot);
    this.#resolve(snapshot);
  }

  /** After a lost connection: what the listener does not have yet, as if it had come live. @param {any} conversation @param {any[]} items @param {any[]} responses */
  #tellNews(conversation, items, responses) {
    this.#listener({ type: "conversation.updated", conversation });
    for (const item of items) this.#listener({ type: "conversation.item.added", conversation: this.conversation, item });
    for (const { response, text, sequence_number } of responses) {
      const progress = this.#progress(response.id);
      if (progress.last < 0) this.#listener({ type: "response.created", sequence_number, response, response_id: response.id });
      const missed = text.slice(progress.text.length);
      Object.assign(progress, { position: text.length, from: sequence_number, last: Math.max(progress.last, sequence_number), text: progress.text + missed });
      if (missed) this.#listener({ type: DELTA, sequence_number, delta: missed, response_id: response.id });
    }
  }

  /** A response that has ended while there was no connection. @param {string} id @param {Progress} progress */
  #readOn(id, progress) {
    if (progress.isReadOn) return;
    Object.assign(progress, { isReadOn: true, position: progress.text.length, from: progress.last });
    this.#host.readOn(id, progress.last, (event) => this.#response(event, id)).catch((error) => {
      const failure = { code: error.code, message: error.message };
      this.#response({ type: "response.failed", response: { id, status: "failed", output: [], error: failure } }, id);
    });
  }

  // ── responses ──

  /** @param {string} id @returns {Progress} */
  #progress(id) {
    let progress = this.#running.get(id);
    if (!progress) this.#running.set(id, (progress = { text: "", last: -1, position: 0, from: -1, isReadOn: false }));
    return progress;
  }

  /**
   * Most events name only their item, whose id has its response's key (`resp_1`, `msg_1`, `rs_1.0`). Else it is the oldest one
   * that runs: turns of a conversation are answered one at a time, in order.
   * @param {WireEvent} event
   * @returns {string | undefined}
   */
  #responseOf(event) {
    if (event.response?.id) return event.response.id;
    const key = keyOf(event.item_id ?? event.item?.id ?? "");
    const running = [...this.#running.keys()];
    return [...running, ...this.#ended].find((id) => keyOf(id) === key) ?? running[0];
  }

  /** @param {WireEvent} event @param {string | undefined} id */
  #response(event, id) {
    if (id === undefined || this.#host.isOwn(id) || this.#ended.has(id)) return;
    const progress = this.#progress(id);
    const number = event.sequence_number ?? progress.last + 1;
    if (event.type === DELTA) return this.#delta(event, id, progress, number);
    if (ENDS.has(event.type)) {
      this.#running.delete(id);
      this.#ended.add(id);
    } else if (number <= progress.last) return;
    progress.last = Math.max(progress.last, number);
    this.#listener({ ...event, response_id: id });
  }

  /** Counted by characters: a merged delta may begin before what is known and end after it. @param {WireEvent} event @param {string} id @param {Progress} progress @param {number} number */
  #delta(event, id, progress, number) {
    if (number <= progress.from) return;
    const delta = event.delta.slice(Math.max(0, progress.text.length - progress.position));
    progress.position += event.delta.length;
    progress.from = number;
    progress.last = Math.max(progress.last, number);
    if (delta === "") return;
    progress.text += delta;
    this.#listener({ ...event, delta, response_id: id });
  }
}

/** What a response's id and those of its items (`msg_1`, `rs_1.0`) have in common. @param {string} id */
function keyOf(id) {
  return id.slice(id.indexOf("_") + 1).split(".")[0];
}
