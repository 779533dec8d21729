// @ts-check
/**
 * What a person does on the page, one method each. Talks to the client, writes to the state; no DOM.
 *
 * Nothing typed is lost: from Enter until the server has accepted the turn, the text and its idempotency key lie in
 * the drafts. A refusal, a stop or a reload before that brings the text back, and sending it again makes one turn.
 */
import { TokenwireError, outputText } from "./client.js";
import { canSend, messageFromItem, newMessage, newThread, titleFrom } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./client.js").ResponseStream} ResponseStream */
/** @typedef {import("./client.js").WireEvent} WireEvent */
/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Thread} Thread */
/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./drafts.js").Drafts} Drafts */
/** @typedef {import("./subscription.js").Subscription} Subscription */
/**
 * A message of this page's, for as long as its thread is held. `over`: taken back before the server had it. `placed`: the
 * conversation's order is known up to here; what others say goes before turns that are not placed yet.
 * @typedef {{ thread: Thread, text: string, id: string, user: Message, answer: Message, over: boolean, accepted: boolean, placed: boolean }} Turn
 */

const LIST_PAGE = 30;

export class Chat {
  /** @type {TokenwireClient} */ #client;
  /** @type {ChatState} */ #state;
  /** @type {Drafts} */ #drafts;
  /** @type {() => number} */ #now;
  /** The stream of each answer being made. @type {WeakMap<Message, ResponseStream>} */ #streams = new WeakMap();
  /** This page's own turns, oldest first. @type {WeakMap<Thread, Turn[]>} */ #turns = new WeakMap();
  /** Threads that are kept up to date. @type {Map<Thread, Subscription>} */ #watched = new Map();
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
    const thread = this.#state.thread(id);
    if (this.#state.current === thread) this.open(null);
    this.#deleted(thread, id);
  }

  // ── one conversation ──

  /** Shows a conversation. @param {string | null} id null: a new one */
  open(id) {
    if (id === null && this.#newborn) return this.#state.show(this.#newborn);
    const thread = id === null ? newThread(null) : this.#state.thread(id);
    if (!thread.active) thread.draft = this.#drafts.text(id);
    this.#state.show(thread);
    if (id !== null) this.#watch(thread, id);
    this.#unwatchIdle();
  }

  // ── live ──

  /** Keeps a thread as the server has it, whoever talks in it. @param {Thread} thread @param {string} id */
  #watch(thread, id) {
    if (this.#watched.has(thread)) return;
    const subscription = this.#client.subscribe(id, (event) => this.#onNews(thread, event));
    this.#watched.set(thread, subscription);
    subscription.ready.catch((error) => {
      this.#watched.delete(thread);
      const problem = asProblem(error);
      if (problem.code === "conversation_not_found") return this.#state.setThreadStatus(thread, "missing");
      this.#state.setThreadStatus(thread, "ready");
      this.#state.setProblem(thread, problem);
    });
  }

  /** Threads out of sight are followed only until their answers have ended. */
  #unwatchIdle() {
    for (const [thread, subscription] of this.#watched) {
      if (thread === this.#state.current || thread.active) continue;
      this.#watched.delete(thread);
      this.#client.unsubscribe(subscription);
    }
  }

  /** @param {Thread} thread @param {WireEvent} event */
  #onNews(thread, event) {
    switch (event.type) {
      case "conversation.subscribed":
        return this.#loaded(thread, event);
      case "conversation.item.added":
        return this.#itemAdded(thread, event.item);
      case "conversation.updated":
        return this.#state.putConversation(event.conversation);
      case "conversation.deleted":
        return this.#deleted(thread, event.conversation.id);
      default:
        return this.#onEvent(thread, this.#answerTo(thread, event.response_id), event);
    }
  }

  /** The conversation as it is, with this page's turns where they belong. @param {Thread} thread @param {WireEvent} snapshot */
  #loaded(thread, { conversation, items, responses }) {
    /** @type {Message[]} */
    const messages = [];
    const put = (/** @type {Message} */ message) => void (messages.includes(message) || messages.push(message));
    const turns = this.#turnsOf(thread);
    for (const item of items) {
      const turn = turns.find(({ user }) => user.responseId !== null && user.responseId === item.response_id);
      const message = turn ? turn.user : messageFromItem(item);
      if (turn) turn.placed = true;
      if (message) put(message);
      if (turn) put(turn.answer);
    }
    for (const { response, text } of responses) {
      const answer = newMessage("assistant", text, text ? "streaming" : "waiting", response.id);
      messages.splice(messages.findLastIndex(({ responseId }) => responseId === response.id) + 1 || messages.length, 0, answer);
    }
    for (const { user, answer, placed } of turns) if (!placed) messages.push(user, answer);
    this.#state.putConversation(conversation);
    this.#state.setMessages(thread, messages);
    this.#state.setThreadStatus(thread, "ready");
  }

  /** @param {Thread} thread @param {any} item */
  #itemAdded(thread, item) {
    const turn = this.#turnsOf(thread).find(({ user }) => user.responseId !== null && user.responseId === item.response_id);
    if (turn) return void (turn.placed = true);
    const message = messageFromItem(item);
    if (message) this.#state.addMessage(thread, message, this.#firstUnplaced(thread));
    if (thread.id) this.#state.touchConversation(thread.id, this.#now());
  }

  /** Where a turn goes that the server took before ours. @param {Thread} thread */
  #firstUnplaced(thread) {
    return this.#turnsOf(thread).find(({ placed }) => !placed)?.user ?? null;
  }

  /** The message that shows the answer of somebody else's turn; made when it is new. @param {Thread} thread @param {string} responseId */
  #answerTo(thread, responseId) {
    const { messages } = thread;
    const last = messages.findLastIndex((message) => message.responseId === responseId);
    if (messages[last]?.role === "assistant") return messages[last];
    const answer = newMessage("assistant", "", "waiting", responseId);
    this.#state.addMessage(thread, answer, last < 0 ? this.#firstUnplaced(thread) : messages[last + 1]);
    return answer;
  }

  /** By another tab or device, or by this one. @param {Thread} thread @param {string} id */
  #deleted(thread, id) {
    this.#drafts.clear(id);
    this.#turns.delete(thread);
    this.#state.setMessages(thread, []);
    this.#state.setThreadStatus(thread, "missing");
    this.#state.removeConversation(id);
    this.#forget(thread);
  }

  /** @param {Thread} thread */
  #forget(thread) {
    const subscription = this.#watched.get(thread);
    this.#watched.delete(thread);
    if (subscription) this.#client.unsubscribe(subscription);
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
    if (!text.trim() || !canSend(thread)) return;
    const user = newMessage("user", text, "sending");
    const answer = newMessage("assistant", "", "sending");
    user.isOwn = answer.isOwn = true;
    answer.timing = { sent: performance.now(), first: null, last: null, tokens: null };
    const turn = { thread, text, id: this.#drafts.sending(thread.id, text), user, answer, over: false, accepted: false, placed: false };
    this.#turns.set(thread, [...this.#turnsOf(thread), turn]);
    this.#state.setProblem(thread, null);
    this.#state.setDraft(thread, "");
    this.#state.addMessage(thread, user);
    this.#state.addMessage(thread, answer);
    this.#run(turn).catch((error) => this.#refused(turn, asProblem(error)));
  }

  /** @param {Thread} thread */
  #turnsOf(thread) {
    return this.#turns.get(thread) ?? [];
  }

  /** @param {Turn} turn */
  async #run(turn) {
    const conversation = turn.thread.id ?? (await this.#create(turn));
    if (turn.over) return;
    const request = { conversation, input: turn.text, id: turn.id, truncation: "auto" };
    this.#watch(turn.thread, conversation);
    const stream = this.#client.respond(request, (event, { responseId }) => {
      if (!turn.accepted) this.#accepted(turn, responseId);
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

  /** @param {Turn} turn @param {string | null} responseId */
  #accepted(turn, responseId) {
    turn.accepted = true;
    this.#drafts.accepted(turn.thread.id, turn.id);
    turn.answer.responseId = responseId;
    this.#state.update(turn.thread, turn.user, { status: "completed", responseId });
    if (turn.thread.id) this.#state.touchConversation(turn.thread.id, this.#now());
  }

  /** Before the server has the turn, its text goes back to the text field; after that, the answer tells what happened. @param {Turn} turn @param {import("./state.js").Problem} problem */
  #refused(turn, problem) {
    if (turn.over) return;
    if (turn.accepted) return this.#failed(turn.thread, turn.answer, problem.message);
    turn.over = true;
    const { thread } = turn;
    this.#turns.set(thread, this.#turnsOf(thread).filter((other) => other !== turn));
    this.#state.removeMessage(thread, turn.answer);
    this.#state.removeMessage(thread, turn.user);
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
    const turn = this.#turnsOf(this.#state.current).find((turn) => turn.answer === answer);
    if (stream) stream.cancel();
    else if (turn) this.#refused(turn, { code: "withdrawn", message: "" });
    else if (answer.responseId) this.#client.sendCancel(answer.responseId);
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
        tick(answer);
        return this.#state.append(thread, answer, event.delta);
      case "response.reasoning_text.delta":
      case "response.reasoning_summary_text.delta":
        tick(answer);
        return this.#state.appendReasoning(thread, answer, event.delta);
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        return this.#ended(thread, answer, event);
    }
  }

  /** @param {Thread} thread @param {Message} answer @param {WireEvent} event */
  #ended(thread, answer, { type, response }) {
    if (answer.timing) answer.timing.tokens = response.usage?.output_tokens ?? null;
    // The same as what was streamed, unless the event log had expired and this is all that there is.
    const text = outputText(response) || answer.text;
    if (type === "response.failed") return this.#failed(thread, answer, response.error?.message ?? t("answerFailed"));
    const reason = response.incomplete_details?.reason;
    const status = type === "response.completed" ? "completed" : reason === "cancelled" ? "stopped" : "shortened";
    this.#state.update(thread, answer, { text, status, waiting: null });
    this.#unwatchIdle();
  }

  /** @param {Thread} thread @param {Message} answer @param {string} problem */
  #failed(thread, answer, problem) {
    this.#state.update(thread, answer, { status: "failed", waiting: null, problem });
    this.#unwatchIdle();
  }
}

/** Something of an answer has come. @param {Message} answer */
function tick({ timing }) {
  if (!timing) return;
  timing.last = performance.now();
  timing.first ??= timing.last;
}

/** @param {unknown} error @returns {import("./state.js").Problem} */
function asProblem(error) {
  if (error instanceof TokenwireError) return { code: error.code, message: error.message };
  console.error(error); // a fault of this page, not of the server: let it be seen
  return { code: "page_error", message: t("pageError") };
}
