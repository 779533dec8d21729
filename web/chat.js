// @ts-check
/**
 * What a person does on the page, one method each. Talks to the client, writes to the state; no DOM.
 *
 * Nothing typed is lost: from Enter until the server has accepted the turn, the text and its idempotency key lie in
 * the drafts. A refusal, a stop or a reload before that brings the text back, and sending it again makes one turn.
 */
import { TokenwireError, outputText } from "./client.js";
import { messageFromItem, newMessage, newThread, titleFrom } from "./state.js";

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./client.js").ResponseStream} ResponseStream */
/** @typedef {import("./client.js").WireEvent} WireEvent */
/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Thread} Thread */
/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./drafts.js").Drafts} Drafts */
/**
 * A message on its way to the server. `over`: taken back before the server had it.
 * @typedef {{ thread: Thread, text: string, id: string, user: Message, answer: Message, over: boolean, accepted: boolean }} Turn
 */

const LIST_PAGE = 30;
const ITEMS_PAGE = 100;

export class Chat {
  /** @type {TokenwireClient} */ #client;
  /** @type {ChatState} */ #state;
  /** @type {Drafts} */ #drafts;
  /** @type {() => number} */ #now;
  /** The stream of each answer being made. @type {WeakMap<Message, ResponseStream>} */ #streams = new WeakMap();
  /** Turns without a stream or without an answer from the server yet. @type {WeakMap<Message, Turn>} */ #turns = new WeakMap();

  /** The thread whose conversation the server is asked to make. @type {Thread | null} */ #newborn = null;

  /**
   * @param {TokenwireClient} client
   * @param {ChatState} state
   * @param {Drafts} drafts
   * @param {() => number} [now] Unix seconds
   */
  constructor(client, state, drafts, now = () => Math.floor(Date.now() / 1000)) {
    this.#client = client;
    this.#state = state;
    this.#drafts = drafts;
    this.#now = now;
    client.onConnection((connection) => {
      state.setConnection(connection);
      if (connection.status === "open") this.#refresh();
    });
  }

  /** What may have changed while there was no connection. */
  #refresh() {
    this.refreshList();
    this.#client.command({ type: "model.list" }).then(
      ({ data }) => data[0] && this.#state.setModel(data[0].id),
      () => {}, // only a label: the first answer names the model, too
    );
  }

  // ── the list ──

  async refreshList() {
    try {
      const page = await this.#client.command({ type: "conversation.list", limit: LIST_PAGE });
      this.#state.replaceConversations(page.data, page.has_more);
    } catch {
      this.#state.listFailed(); // the list says so itself, with a button to try again
    }
  }

  async loadMore() {
    const last = this.#state.conversations.at(-1);
    try {
      const page = await this.#client.command({ type: "conversation.list", limit: LIST_PAGE, ...(last && { after: last.id }) });
      this.#state.addConversations(page.data, page.has_more);
    } catch {
      this.#state.listFailed();
    }
  }

  /** @param {string} id */
  async remove(id) {
    const shown = this.#state.current;
    try {
      await this.#client.command({ type: "conversation.delete", conversation: id });
    } catch (error) {
      const problem = asProblem(error);
      if (problem.code !== "conversation_not_found") return this.#state.setProblem(shown, problem);
    }
    this.#drafts.clear(id);
    this.#state.removeConversation(id);
    if (this.#state.current.id === id) this.open(null);
  }

  // ── one conversation ──

  /** Shows a conversation. @param {string | null} id null: a new one */
  open(id) {
    if (id === null && this.#newborn) return this.#state.show(this.#newborn);
    const thread = id === null ? newThread(null) : this.#state.thread(id);
    if (!thread.active) thread.draft = this.#drafts.text(id);
    this.#state.show(thread);
    if (id !== null && !thread.active) this.#load(thread, id);
  }

  /** @param {Thread} thread @param {string} id */
  async #load(thread, id) {
    try {
      // In this order, so that an answer that ends in between is in the items.
      const { conversation } = await this.#client.command({ type: "conversation.retrieve", conversation: id });
      const items = await this.#items(id);
      if (thread.active) return; // a turn was sent meanwhile: what is on screen is newer
      this.#state.putConversation(conversation);
      const running = conversation.running_response;
      this.#state.setMessages(thread, messagesFrom(items, running));
      this.#state.setThreadStatus(thread, "ready");
      if (running) this.#follow(thread, running);
    } catch (error) {
      const problem = asProblem(error);
      this.#state.setThreadStatus(thread, problem.code === "conversation_not_found" ? "missing" : "ready");
      if (problem.code !== "conversation_not_found") this.#state.setProblem(thread, problem);
    }
  }

  /** @param {string} conversation @returns {Promise<any[]>} */
  async #items(conversation) {
    /** @type {any[]} */
    const items = [];
    for (let more = true; more; ) {
      const after = items.at(-1)?.id;
      const page = await this.#client.command({ type: "conversation.items.list", conversation, limit: ITEMS_PAGE, ...(after && { after }) });
      items.push(...page.data);
      more = page.has_more && page.data.length > 0;
    }
    return items;
  }

  /** Goes on showing an answer that was begun before this page was opened. @param {Thread} thread @param {string} responseId */
  #follow(thread, responseId) {
    const answer = newMessage("assistant", "", "waiting");
    this.#state.addMessage(thread, answer);
    this.#state.setActive(thread, answer);
    const stream = this.#client.resume(responseId, {}, (event) => this.#onEvent(thread, answer, event));
    this.#streams.set(answer, stream);
    stream.done.catch((error) => this.#failed(thread, answer, asProblem(error).message));
  }

  // ── a turn ──

  /** Keeps what is in the text field. @param {string} text */
  type(text) {
    const thread = this.#state.current;
    thread.draft = text;
    this.#drafts.set(thread.id, text);
    if (thread.problem) this.#state.setProblem(thread, null);
  }

  /** Sends what is in the text field. */
  send() {
    const thread = this.#state.current;
    const text = thread.draft;
    if (!text.trim() || thread.active || thread.status !== "ready") return;
    const user = newMessage("user", text, "sending");
    const answer = newMessage("assistant", "", "sending");
    const turn = { thread, text, id: this.#drafts.sending(thread.id, text), user, answer, over: false, accepted: false };
    this.#turns.set(answer, turn);
    this.#state.setProblem(thread, null);
    this.#state.setDraft(thread, "");
    this.#state.addMessage(thread, user);
    this.#state.addMessage(thread, answer);
    this.#state.setActive(thread, answer);
    this.#run(turn).catch((error) => this.#refused(turn, asProblem(error)));
  }

  /** @param {Turn} turn */
  async #run(turn) {
    const conversation = turn.thread.id ?? (await this.#create(turn));
    if (turn.over) return;
    const request = { conversation, input: turn.text, id: turn.id, truncation: "auto" };
    const stream = this.#client.respond(request, (event) => {
      if (!turn.accepted) this.#accepted(turn);
      this.#onEvent(turn.thread, turn.answer, event);
    });
    this.#streams.set(turn.answer, stream);
    await stream.done;
  }

  /** @param {Turn} turn @returns {Promise<string>} */
  async #create({ thread, text, id }) {
    const title = titleFrom(text);
    // Its key follows from the turn's, so that a repeat after a reload does not leave an empty conversation behind.
    this.#newborn = thread;
    const create = this.#client.command({ type: "conversation.create", metadata: { title }, id: `${id}.conversation` });
    const { conversation } = await create.finally(() => (this.#newborn = null));
    this.#drafts.move(null, conversation.id);
    this.#state.putConversation({ ...conversation, metadata: { ...conversation.metadata, title } });
    this.#state.adopt(thread, conversation.id);
    return conversation.id;
  }

  /** @param {Turn} turn */
  #accepted(turn) {
    turn.accepted = true;
    this.#turns.delete(turn.answer);
    this.#drafts.accepted(turn.thread.id, turn.id);
    this.#state.update(turn.thread, turn.user, { status: "completed" });
    if (turn.thread.id) this.#state.touchConversation(turn.thread.id, this.#now());
  }

  /** Before the server has the turn, its text goes back to the text field; after that, the answer tells what happened. @param {Turn} turn @param {import("./state.js").Problem} problem */
  #refused(turn, problem) {
    if (turn.over) return;
    if (turn.accepted) return this.#failed(turn.thread, turn.answer, problem.message);
    turn.over = true;
    const { thread } = turn;
    this.#state.removeMessage(thread, turn.answer);
    this.#state.removeMessage(thread, turn.user);
    this.#state.setActive(thread, null);
    const draft = thread.draft.trim() ? `${turn.text}\n${thread.draft}` : turn.text;
    this.#state.setDraft(thread, draft);
    this.#drafts.restore(thread.id, draft, turn.id);
    this.#state.setProblem(thread, problem.code === "withdrawn" ? null : problem);
  }

  /** Stops the answer on screen. */
  stop() {
    const answer = this.#state.current.active;
    if (!answer) return;
    const stream = this.#streams.get(answer);
    const turn = this.#turns.get(answer);
    if (stream) stream.cancel();
    else if (turn) this.#refused(turn, { code: "withdrawn", message: "" });
  }

  /** @param {Thread} thread @param {Message} answer @param {WireEvent} event */
  #onEvent(thread, answer, event) {
    switch (event.type) {
      case "response.queued":
        return this.#state.update(thread, answer, { status: "waiting", waiting: event.tokenwire ?? null });
      case "response.created":
      case "response.in_progress":
        if (event.response?.model) this.#state.setModel(event.response.model);
        if (answer.text === "") this.#state.update(thread, answer, { status: "waiting", waiting: null });
        return;
      case "response.output_text.delta":
        if (answer.status !== "streaming") this.#state.update(thread, answer, { status: "streaming", waiting: null });
        return this.#state.append(thread, answer, event.delta);
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        return this.#ended(thread, answer, event);
    }
  }

  /** @param {Thread} thread @param {Message} answer @param {WireEvent} event */
  #ended(thread, answer, { type, response }) {
    // The same as what was streamed, unless the event log had expired and this is all that there is.
    const text = outputText(response) || answer.text;
    if (type === "response.failed") return this.#failed(thread, answer, response.error?.message ?? "The answer failed.");
    const reason = response.incomplete_details?.reason;
    const status = type === "response.completed" ? "completed" : reason === "cancelled" ? "stopped" : "shortened";
    this.#state.update(thread, answer, { text, status, waiting: null });
    this.#state.setActive(thread, null);
  }

  /** @param {Thread} thread @param {Message} answer @param {string} problem */
  #failed(thread, answer, problem) {
    this.#state.update(thread, answer, { status: "failed", waiting: null, problem });
    this.#state.setActive(thread, null);
  }
}

/**
 * History as messages, without the part of a running answer that may be stored already: it will be streamed.
 * @param {any[]} items
 * @param {string | null | undefined} running
 */
function messagesFrom(items, running) {
  const stored = items.filter((item) => !(running && item.role === "assistant" && item.response_id === running));
  return stored.map(messageFromItem).filter((message) => message !== null);
}

/** @param {unknown} error @returns {import("./state.js").Problem} */
function asProblem(error) {
  if (error instanceof TokenwireError) return { code: error.code, message: error.message };
  console.error(error); // a fault of this page, not of the server: let it be seen
  return { code: "page_error", message: "Something went wrong in this page. Reloading it may help." };
}
