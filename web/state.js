// @ts-check
/**
 * What the page knows, apart from how it is shown. Everything changes through ChatState's methods; each tells its
 * listeners what changed, so that the view touches only that. No DOM, no socket.
 */
import { Search } from "./search.js";
import { titleOf } from "./titles.js";

/** @typedef {import("./client.js").Connection} Connection */
/** @typedef {import("./client.js").Waiting} Waiting */
/** @typedef {{ id: string, created_at: number, updated_at?: number, metadata?: Record<string, string>, title?: string, running_response?: string | null }} Conversation */
/** @typedef {{ code: string, message: string }} Problem */
/** What `model.list` tells, as far as a server tells it. @typedef {{ id: string, state?: string, detail?: string | null, progress?: number | null, context_length?: number | null, [key: string]: any }} Model */
/** A short notice. `ms`: how long it stays; without an action a default. @typedef {{ text: string, action?: string, act?: () => void, ms?: number }} Toast */
/**
 * `sending`: not accepted yet. `waiting`: accepted, no text yet. `streaming`: text flows. The others are ends.
 * @typedef {"sending" | "waiting" | "streaming" | "completed" | "stopped" | "shortened" | "failed"} MessageStatus
 */
/** Milliseconds of this page's clock; tokens as the server counted them. @typedef {{ sent: number, first: number | null, last: number | null, tokens: number | null }} Timing */
/**
 * @typedef {object} Message
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {MessageStatus} status
 * @property {Waiting | null} waiting why it waits, as the server tells it
 * @property {string | null} problem what went wrong, in words
 * @property {string} reasoning the model's thoughts, where the server tells them apart from the text
 * @property {{ done: number, parts: number } | null} summary how far a long summary is
 * @property {Timing | null} timing how fast it came, where this page saw all of it
 * @property {string | null} responseId the turn that it belongs to, once the server has told it
 * @property {boolean} isOwn whether this page sent the turn, since it was loaded
 */
/**
 * One conversation as the page holds it. Events of a response always go to the thread that asked for it, never to
 * "the one on screen".
 * @typedef {object} Thread
 * @property {string | null} id null until the server has made the conversation
 * @property {"ready" | "loading" | "missing"} status
 * @property {Message[]} messages
 * @property {Message | null} active the answer that is being made: the first one of them, while others wait behind it
 * @property {string} draft what stands in the text field
 * @property {import("./attachments.js").Attachment[]} files attached to what stands in the text field
 * @property {Record<string, string>} metadata of a conversation that is not made yet
 * @property {Problem | null} problem shown next to the text field
 */
/**
 * @typedef {{ kind: "connection" | "list" | "current" | "models" | "toast" }
 *   | { kind: "thread" | "messages" | "draft", thread: Thread }
 *   | { kind: "message" | "reasoning" | "removed", thread: Thread, message: Message }
 *   | { kind: "added", thread: Thread, message: Message, before: Message | null }
 *   | { kind: "append", thread: Thread, message: Message, delta: string }} Change
 */

/** How messages are that go on. */
export const UNFINISHED = new Set(["sending", "waiting", "streaming"]);

/** @param {Conversation} a @param {Conversation} b */
function newestFirst(a, b) {
  return (b.updated_at ?? b.created_at) - (a.updated_at ?? a.created_at);
}

/**
 * @param {Message["role"]} role
 * @param {string} text
 * @param {MessageStatus} status
 * @param {string | null} [responseId]
 * @returns {Message}
 */
export function newMessage(role, text, status, responseId = null) {
  return { role, text, status, waiting: null, problem: null, reasoning: "", summary: null, timing: null, responseId, isOwn: false };
}

/**
 * Whether a thread takes a message now. While another tab or device is being answered it does: the server keeps the order.
 * @param {Thread} thread
 */
export function canSend({ status, messages }) {
  return status === "ready" && !messages.some((message) => message.isOwn && UNFINISHED.has(message.status));
}

/**
 * A stored item as a message; null for items that are no messages.
 * @param {any} item
 */
export function messageFromItem(item) {
  if (item.type !== "message" || (item.role !== "user" && item.role !== "assistant")) return null;
  const parts = Array.isArray(item.content) ? item.content : [];
  const text = parts.map((/** @type {any} */ part) => part.text ?? "").join("");
  const incomplete = item.role === "assistant" && item.status === "incomplete";
  return newMessage(item.role, text, incomplete ? "stopped" : "completed", item.response_id ?? null);
}

/**
 * What a model thought, where the server tells it apart: the text of a list's reasoning items.
 * @param {any[]} [items]
 */
export function thoughtsOf(items = []) {
  const parts = items.filter(({ type }) => type === "reasoning").flatMap(({ content, summary }) => (content?.length ? content : (summary ?? [])));
  return parts.map(({ text }) => text ?? "").join("");
}

/** @param {string | null} id @returns {Thread} */
export function newThread(id) {
  return { id, status: id === null ? "ready" : "loading", messages: [], active: null, draft: "", files: [], metadata: {}, problem: null };
}

export class ChatState {
  /** @type {Connection} */ connection = { status: "idle", attempt: 0 };
  /** Newest first. @type {Conversation[]} */ conversations = [];
  listStatus = /** @type {"loading" | "ready" | "failed"} */ ("loading");
  hasMore = false;
  search = new Search();
  /** Conversations that came by pages of the list: only these tell how far it was read. @type {Set<string>} */ #paged = new Set();
  /** Not shown: their deletion can still be taken back. @type {Set<string>} */ #hidden = new Set();
  /** @type {Model[]} */ models = [];
  /** @type {Toast | null} */ toast = null;
  /** @type {Thread} the one on screen */ current = newThread(null);
  /** @type {Map<string, Thread>} */ #threads = new Map();
  /** @type {Set<(change: Change) => void>} */ #listeners = new Set();

  /** @param {(change: Change) => void} listener */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** @param {Change} change */
  #tell(change) {
    for (const listener of this.#listeners) listener(change);
  }

  /** @param {Connection} connection */
  setConnection(connection) {
    this.connection = connection;
    this.#tell({ kind: "connection" });
  }

  /** @param {Model[]} models */
  setModels(models) {
    this.models = models;
    this.#tell({ kind: "models" });
  }

  /** @param {Toast | null} toast */
  setToast(toast) {
    this.toast = toast;
    this.#tell({ kind: "toast" });
  }

  // ── the list ──

  /** @param {Conversation[]} page @param {boolean} hasMore */
  addConversations(page, hasMore) {
    for (const conversation of page) {
      this.#put(conversation);
      this.#paged.add(conversation.id);
    }
    this.hasMore = hasMore;
    this.listStatus = "ready";
    this.#sort();
  }

  /**
   * The first page, read again: whatever is missing from a complete list was deleted elsewhere.
   * @param {Conversation[]} page @param {boolean} hasMore
   */
  replaceConversations(page, hasMore) {
    if (!hasMore) this.conversations = [];
    // Pages behind the first one that were read already are still there.
    const goesOn = hasMore && (this.hasMore || this.#paged.size === 0);
    this.addConversations(page, goesOn);
  }

  /** Where the next page of the list begins: after the oldest one that came by a page. */
  get lastListed() {
    return this.conversations.findLast(({ id }) => this.#paged.has(id))?.id;
  }

  /** @param {Conversation} conversation */
  putConversation(conversation) {
    this.#put(conversation);
    this.#sort();
  }

  /** Moves one to the top, by the server's times: this machine's clock may be wrong. @param {string} id */
  touchConversation(id) {
    const known = this.conversation(id);
    const newest = this.conversations[0];
    if (known) this.putConversation({ ...known, updated_at: newest.updated_at ?? newest.created_at });
  }

  /** Nothing runs there any more. @param {string} id @param {string} responseId what ran */
  endRunning(id, responseId) {
    const known = this.conversation(id);
    if (known?.running_response === responseId) this.putConversation({ ...known, running_response: null });
  }

  /** @param {string} id */
  removeConversation(id) {
    this.conversations = this.conversations.filter((conversation) => conversation.id !== id);
    this.search.forget(id);
    this.#threads.delete(id);
    this.#tell({ kind: "list" });
  }

  /** @param {string} text empty: all conversations are shown */
  setSearch(text) {
    this.search.begin(text);
    this.#tell({ kind: "list" });
  }

  /** @param {import("./search.js").Found[]} rows @param {boolean} hasMore whether the search goes on */
  addFound(rows, hasMore) {
    this.search.add(rows, hasMore);
    this.#tell({ kind: "list" });
  }

  searchFailed() {
    this.search.fail();
    this.#tell({ kind: "list" });
  }

  /** @param {string} id @param {boolean} isHidden */
  hide(id, isHidden) {
    if (isHidden) this.#hidden.add(id);
    else this.#hidden.delete(id);
    this.#tell({ kind: "list" });
  }

  /** The conversations to show. */
  get listed() {
    const { search } = this;
    const fitting = search.text === "" ? this.conversations : this.conversations.filter((conversation) => search.fits(conversation.id, titleOf(conversation)));
    const others = search.found.filter(({ id }) => !this.#listed(id));
    return [...fitting, ...others].filter(({ id }) => !this.#hidden.has(id)).sort(newestFirst);
  }

  listFailed() {
    this.listStatus = "failed";
    this.#tell({ kind: "list" });
  }

  /** One that was read, by a page of the list or by a search. @param {string} id @returns {Conversation | undefined} */
  conversation(id) {
    return this.#listed(id) ?? this.search.found.find((conversation) => conversation.id === id);
  }

  /** @param {string} id */
  #listed(id) {
    return this.conversations.find((conversation) => conversation.id === id);
  }

  /** @param {string} id */
  titleOf(id) {
    return titleOf(this.conversation(id));
  }

  /** What is kept with a thread's conversation. @param {Thread} thread @returns {Record<string, string>} */
  metadataOf({ id, metadata }) {
    return (id === null ? undefined : this.conversation(id)?.metadata) ?? metadata;
  }

  /** @param {Conversation} conversation */
  #put(conversation) {
    this.conversations = [conversation, ...this.conversations.filter((other) => other.id !== conversation.id)];
  }

  #sort() {
    this.conversations.sort(newestFirst);
    this.#tell({ kind: "list" });
  }

  // ── threads ──

  /** @param {string} id */
  thread(id) {
    let thread = this.#threads.get(id);
    if (!thread) this.#threads.set(id, (thread = newThread(id)));
    return thread;
  }

  /** Whether an answer is being made in a conversation. @param {string} id */
  isActive(id) {
    return Boolean(this.#threads.get(id)?.active);
  }

  /** @param {Thread} thread */
  show(thread) {
    this.current = thread;
    this.#tell({ kind: "current" });
  }

  /** The server has made the conversation that a new thread was waiting for. @param {Thread} thread @param {string} id */
  adopt(thread, id) {
    thread.id = id;
    this.#threads.set(id, thread);
    this.#tell({ kind: "thread", thread });
    this.#tell({ kind: "list" });
  }

  /** @param {Thread} thread @param {Thread["status"]} status */
  setThreadStatus(thread, status) {
    thread.status = status;
    this.#tell({ kind: "thread", thread });
  }

  /** @param {Thread} thread @param {Problem | null} problem */
  setProblem(thread, problem) {
    thread.problem = problem;
    this.#tell({ kind: "thread", thread });
  }

  /** @param {Thread} thread @param {import("./attachments.js").Attachment[]} files */
  setFiles(thread, files) {
    thread.files = files;
    this.#tell({ kind: "draft", thread });
  }

  /** What is kept with a conversation that is not made yet. @param {Thread} thread @param {Record<string, string>} metadata */
  setMetadata(thread, metadata) {
    thread.metadata = metadata;
    this.#tell({ kind: "thread", thread });
  }

  /** Sets the text field from outside. @param {Thread} thread @param {string} draft */
  setDraft(thread, draft) {
    thread.draft = draft;
    this.#tell({ kind: "draft", thread });
  }

  /** Called whenever an answer may have begun or ended. @param {Thread} thread */
  #setActive(thread) {
    const active = thread.messages.find(({ role, status }) => role === "assistant" && UNFINISHED.has(status)) ?? null;
    if (active === thread.active) return;
    thread.active = active;
    this.#tell({ kind: "thread", thread });
    this.#tell({ kind: "list" });
  }

  // ── messages ──

  /** History, as the server has it. @param {Thread} thread @param {Message[]} messages */
  setMessages(thread, messages) {
    const same = (/** @type {Message} */ one, /** @type {Message} */ other) =>
      one === other || (!UNFINISHED.has(one.status) && one.text === other.text && one.status === other.status && one.responseId === other.responseId);
    // Spares the reader a jump when nothing is new.
    if (messages.length === thread.messages.length && messages.every((message, index) => same(message, thread.messages[index]))) return;
    thread.messages = messages;
    this.#tell({ kind: "messages", thread });
    this.#setActive(thread);
  }

  /** @param {Thread} thread @param {Message} message @param {Message | null} [before] null: at the end */
  addMessage(thread, message, before = null) {
    const index = before ? thread.messages.indexOf(before) : thread.messages.length;
    thread.messages.splice(index, 0, message);
    this.#tell({ kind: "added", thread, message, before });
    this.#setActive(thread);
  }

  /** @param {Thread} thread @param {Message} message */
  removeMessage(thread, message) {
    thread.messages = thread.messages.filter((other) => other !== message);
    this.#tell({ kind: "removed", thread, message });
    this.#setActive(thread);
  }

  /** @param {Thread} thread @param {Message} message @param {string} delta */
  append(thread, message, delta) {
    message.text += delta;
    this.#tell({ kind: "append", thread, message, delta });
  }

  /** @param {Thread} thread @param {Message} message @param {string} delta */
  appendReasoning(thread, message, delta) {
    message.reasoning += delta;
    this.#tell({ kind: "reasoning", thread, message });
  }

  /** @param {Thread} thread @param {Message} message @param {Partial<Message>} fields */
  update(thread, message, fields) {
    Object.assign(message, fields);
    this.#tell({ kind: "message", thread, message });
    if (fields.status) this.#setActive(thread);
  }
}
