// @ts-check — longer than our other files: a turn's whole way, with its versions, in one place.
/**
 * What a person does on the page, one method each. Talks to the client, writes to the state; no DOM.
 *
 * Nothing typed is lost: from Enter until the server has accepted the turn, the text and its idempotency key lie in
 * the drafts. A refusal, a stop or a reload before that brings the text back, and sending it again makes one turn.
 */
import { compose, parse } from "./attachments.js";
import { TokenwireError, outputText, randomId } from "./client.js";
import { addVersion, leaveVersion, optionsOf, requestOf, versionsOf, withOptions, withVersions } from "./metadata.js";
import { UNFINISHED, canSend, messageFromItem, newMessage, newThread, thoughtsOf } from "./state.js";
import { titleFromMessage } from "./titles.js";
import { t } from "./words.js";

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./client.js").ResponseStream} ResponseStream */
/** @typedef {import("./client.js").WireEvent} WireEvent */
/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Thread} Thread */
/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./drafts.js").Drafts} Drafts */
/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./conversations.js").Conversations} Conversations */
/** @typedef {import("./metadata.js").Options} Options */
/** @typedef {import("./metadata.js").Version} Version */
/** @typedef {import("./state.js").Conversation} Conversation */
/** @typedef {import("./subscription.js").Subscription} Subscription */
/** A version that this page made in the place of another one. @typedef {{ left: Version, made: string, tries: number }} Made */
/**
 * A message of this page's, for as long as its thread is held. `over`: taken back before the server had it. `placed`: the
 * conversation's order is known up to here; what others say goes before turns that are not placed yet. `typed`, `files`:
 * what goes back to the text field when the server refuses it; null: nothing was typed. `previous`, `left`: it is another
 * version of a turn, and follows what that one followed.
 * @typedef {{ thread: Thread, text: string, id: string, user: Message, answer: Message, over: boolean, accepted: boolean, placed: boolean,
 *   typed: string | null, files: Attachment[], previous: string | null, left: Version | null }} Turn
 */

/** How often the note of a version is made again; forgotten where there is no room for all of them. */
const ADD_TRIES = 3;
/** Milliseconds between looks at models that are being loaded. */
const MODELS_AGAIN_MS = 2_000;

export class Chat {
  /** @type {TokenwireClient} */ #client;
  /** @type {ChatState} */ #state;
  /** @type {Drafts} */ #drafts;
  /** @type {Conversations} */ #conversations;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #modelsTimer;
  /** The stream of each answer being made. @type {WeakMap<Message, ResponseStream>} */ #streams = new WeakMap();
  /** This page's own turns, oldest first. @type {WeakMap<Thread, Turn[]>} */ #turns = new WeakMap();
  /** @type {WeakMap<Thread, Made[]>} */ #made = new WeakMap();
  /** Threads that are kept up to date. @type {Map<Thread, Subscription>} */ #watched = new Map();
  /** The thread whose conversation the server is asked to make. @type {Thread | null} */ #newborn = null;

  /**
   * @param {TokenwireClient} client
   * @param {ChatState} state
   * @param {Drafts} drafts
   * @param {Conversations} conversations
   */
  constructor(client, state, drafts, conversations) {
    this.#client = client;
    this.#state = state;
    this.#drafts = drafts;
    this.#conversations = conversations;
    client.onConnection((connection) => {
      state.setConnection(connection);
      if (connection.status === "open") this.#refresh();
    });
  }

  /** What may have changed while there was no connection. */
  #refresh() {
    this.#conversations.refresh();
    this.refreshModels();
  }

  /** Asks what models there are; again and again while one of them is being loaded. */
  async refreshModels() {
    clearTimeout(this.#modelsTimer);
    try {
      const { data } = await this.#client.command({ type: "model.list" });
      this.#state.setModels(data);
      if (data.some((/** @type {any} */ { state }) => state === "loading")) this.#modelsTimer = setTimeout(() => this.refreshModels(), MODELS_AGAIN_MS);
    } catch {
      // Only for the menu: without it the server's default model answers.
    }
  }

  // ── one conversation ──

  /** Shows a conversation. @param {string | null} id null: a new one */
  open(id) {
    if (id === null && this.#newborn) return this.#state.show(this.#newborn);
    const thread = id === null ? newThread(null) : this.#state.thread(id);
    if (id === null) thread.metadata = this.#drafts.metadata;
    if (!thread.active) ({ text: thread.draft, files: thread.files } = this.#drafts.shown(id));
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
        this.#state.putConversation(event.conversation);
        return this.#addLost(thread, event.conversation);
      case "conversation.deleted":
        return this.#deleted(thread, event.conversation.id);
      default:
        return this.#onOthers(thread, event);
    }
  }

  /** Somebody else's answer. Without a message of its turn it has no input: it only moves the conversation to another branch. @param {Thread} thread @param {WireEvent} event */
  #onOthers(thread, event) {
    const { response, response_id: id } = event;
    const previous = response?.previous_response_id;
    const hasTurn = thread.messages.some(({ responseId }) => responseId === id);
    if (event.type === "response.created" && hasTurn && previous) this.#cut(thread, id, previous);
    const isOver = event.type === "response.completed";
    if (hasTurn) return this.#onEvent(thread, this.#answerTo(thread, id), event);
    if (isOver && previous) this.#reload(thread);
  }

  /** A turn that follows an earlier one: what came between is on another branch. @param {Thread} thread @param {string} id @param {string} previous */
  #cut(thread, id, previous) {
    const end = thread.messages.findIndex(({ responseId }) => responseId === id);
    const start = thread.messages.slice(0, end).findLastIndex(({ responseId }) => responseId === previous) + 1;
    if (start === 0 && previous !== this.#state.metadataOf(thread).root) return;
    for (const message of thread.messages.slice(start, end)) this.#state.removeMessage(thread, message);
  }

  /** Another branch is the conversation's now. What is still on its way here stays. @param {Thread} thread */
  #reload(thread) {
    if (thread.id === null) return;
    this.#watched.delete(thread);
    this.#turns.set(thread, this.#turnsOf(thread).filter(({ answer }) => UNFINISHED.has(answer.status)));
    this.#watch(thread, thread.id);
  }

  /** The conversation as it is, with this page's turns where they belong. @param {Thread} thread @param {WireEvent} snapshot */
  #loaded(thread, { conversation, items, responses }) {
    /** @type {Message[]} */
    const messages = [];
    const put = (/** @type {Message} */ message) => void (messages.includes(message) || messages.push(message));
    const turns = this.#turnsOf(thread);
    /** @type {any[]} */
    const thoughts = items.filter((/** @type {any} */ { type }) => type === "reasoning");
    for (const item of items) {
      const turn = turns.find(({ user }) => user.responseId !== null && user.responseId === item.response_id);
      const message = turn ? turn.user : messageFromItem(item);
      if (message?.role === "assistant") message.reasoning = thoughtsOf(thoughts.filter(({ response_id }) => response_id !== undefined && response_id === item.response_id));
      if (turn) turn.placed = true;
      if (message) put(message);
      if (turn) put(turn.answer);
    }
    for (const { response, output, text } of responses) {
      const answer = newMessage("assistant", text, text ? "streaming" : "waiting", response.id);
      answer.reasoning = thoughtsOf(output);
      messages.splice(messages.findLastIndex(({ responseId }) => responseId === response.id) + 1 || messages.length, 0, answer);
    }
    // Stopped before its first word: nothing of it is kept, but it can be answered again.
    for (const { role, responseId } of [...messages]) {
      if (role !== "user" || responseId === null || messages.some((other) => other.role === "assistant" && other.responseId === responseId)) continue;
      messages.splice(messages.findLastIndex((other) => other.responseId === responseId) + 1, 0, newMessage("assistant", "", "stopped", responseId));
    }
    // What is on its way here comes last; what has ended and is not among the items is on another branch.
    for (const { user, answer, placed } of turns) if (!placed && UNFINISHED.has(answer.status)) messages.push(user, answer);
    this.#state.putConversation(conversation);
    this.#state.setMessages(thread, messages);
    for (const { response } of responses) if (response.previous_response_id) this.#cut(thread, response.id, response.previous_response_id);
    this.#state.setThreadStatus(thread, "ready");
  }

  /** @param {Thread} thread @param {any} item */
  #itemAdded(thread, item) {
    const turn = this.#turnsOf(thread).find(({ user }) => user.responseId !== null && user.responseId === item.response_id);
    if (turn) return this.#placed(turn);
    const message = messageFromItem(item);
    if (message) this.#state.addMessage(thread, message, this.#firstUnplaced(thread));
    if (thread.id) this.#state.touchConversation(thread.id);
  }

  /** A turn of ours has its place; another tab may have said something else there, a moment before. @param {Turn} turn */
  #placed(turn) {
    turn.placed = true;
    if (turn.previous && turn.user.responseId) this.#cut(turn.thread, turn.user.responseId, turn.previous);
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

  /** A conversation was deleted here. @param {string} id */
  gone(id) {
    this.#drafts.clear(id);
    this.#deleted(this.#state.thread(id), id);
  }

  /** By another tab or device, or by this one. What was typed in it can begin a new one. @param {Thread} thread @param {string} id */
  #deleted(thread, id) {
    this.#turns.delete(thread);
    this.#state.setThreadStatus(thread, "missing");
    this.#moveTyped(thread, id);
    this.#state.setMessages(thread, []); // what was being edited comes into the text field, too
    this.#state.removeConversation(id);
    this.#forget(thread);
  }

  /** What was typed in a conversation that is gone begins a new one. @param {Thread} thread @param {string} id */
  #moveTyped(thread, id) {
    const { text, files } = this.#drafts.shown(id);
    if (text === "" && files.length === 0) return;
    this.#drafts.move(id, null);
    const shown = this.#state.current.id === null ? this.#state.current : thread; // whatever is typed next is typed below it
    const moved = this.#drafts.typed(null);
    this.#state.setFiles(shown, moved.files);
    this.#state.setDraft(shown, moved.text);
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
    this.#drafts.set(draftOf(thread), text);
    if (thread.problem) this.#state.setProblem(thread, null);
  }

  /** Keeps what is attached. @param {Thread} thread @param {Attachment[]} files all of them */
  attach(thread, files) {
    this.#state.setFiles(thread, files);
    this.#drafts.setFiles(draftOf(thread), files);
  }

  /** Puts a text below what is in the text field. @param {string} text */
  typeMore(text) {
    const { current } = this.#state;
    this.type(current.draft.trim() ? `${current.draft}\n${text}` : text);
    this.#state.setDraft(current, current.draft);
  }

  /** Sends what is in the text field. */
  send() {
    const thread = this.#state.current;
    const { draft: typed, files } = thread;
    if ((!typed.trim() && files.length === 0) || !canSend(thread)) return;
    const text = compose(files, typed.trim() ? typed : t("summarise"));
    this.#state.setDraft(thread, "");
    this.attach(thread, []);
    this.#begin(thread, { text, typed, files, id: this.#drafts.sending(thread.id, text) });
  }

  /** @param {Thread} thread @param {Pick<Turn, "text" | "typed" | "files" | "id"> & Partial<Turn>} said */
  #begin(thread, said) {
    const user = newMessage("user", said.text, "sending");
    const answer = newMessage("assistant", "", "sending");
    user.isOwn = answer.isOwn = true;
    answer.timing = { sent: performance.now(), first: null, last: null, tokens: null };
    const turn = { thread, user, answer, over: false, accepted: false, placed: false, previous: null, left: null, ...said };
    this.#turns.set(thread, [...this.#turnsOf(thread), turn]);
    this.#state.setProblem(thread, null);
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
    const { text: input, id, previous } = turn;
    const options = requestOf(optionsOf(this.#state.metadataOf(turn.thread)));
    const task = isForSummary(input) ? { task: "summarize" } : {};
    const request = { conversation, input, id, truncation: "auto", ...task, ...options, ...(previous && { previous_response_id: previous }) };
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
    const title = titleFromMessage(text);
    // Its key follows from the turn's, so that a repeat after a reload does not leave an empty conversation behind.
    this.#newborn = thread;
    const metadata = { ...thread.metadata, title };
    const create = this.#client.command({ type: "conversation.create", metadata, id: `${id}.conversation` });
    const { conversation } = await create.finally(() => (this.#newborn = null));
    this.#drafts.move(null, conversation.id);
    this.#state.putConversation({ ...conversation, metadata: { ...conversation.metadata, ...metadata } });
    this.#state.adopt(thread, conversation.id);
    await this.#makeRoot(conversation.id, `${id}.root`);
    return conversation.id;
  }

  /** A response without input or answer before the first turn, so that this one, too, can have other versions. @param {string} conversation @param {string} id */
  async #makeRoot(conversation, id) {
    const stream = this.#client.respond({ conversation, generate: false, input: [], id });
    await stream.done;
    this.#conversations.update(conversation, (metadata) => ({ ...metadata, root: /** @type {string} */ (stream.responseId) }));
  }

  /** A conversation from a file. @param {{ metadata: Record<string, string>, items: any[] }} file @returns {Promise<string | null>} */
  async import(file) {
    const id = await this.#conversations.create(file);
    if (id) await this.#makeRoot(id, randomId());
    return id;
  }

  /** @param {Options} options of the conversation on screen */
  setOptions(options) {
    const { current } = this.#state;
    if (current.id === null) this.#state.setMetadata(current, (this.#drafts.metadata = withOptions(current.metadata, options)));
    else this.#conversations.update(current.id, (metadata) => withOptions(metadata, options));
  }

  // ── versions ──

  /** What a turn follows; null where that is not known. @param {Thread} thread @param {string} turn @returns {string | null} */
  #before(thread, turn) {
    const start = thread.messages.findIndex(({ responseId }) => responseId === turn);
    return lastTurn(thread.messages.slice(0, start)) ?? this.#state.metadataOf(thread).root ?? null;
  }

  /** Whether a message's turn can be said or answered anew. It is asked for each of them, so the cheap answers come first. @param {Message} message */
  canRewrite({ role, responseId }) {
    const thread = this.#state.current;
    if (responseId === null || thread.active !== null) return false;
    const hasQuestion = role === "user" || thread.messages.some((message) => message.role === "user" && message.responseId === responseId);
    return hasQuestion && (this.#state.metadataOf(thread).root !== undefined || this.#before(thread, responseId) !== null);
  }

  /** Answers a turn once more. @param {Message} answer */
  regenerate({ responseId }) {
    const user = this.#state.current.messages.find((message) => message.role === "user" && message.responseId === responseId);
    if (user) this.#sayAgain(user, user.text, null);
  }

  /** Says something else in a message's place, with the same files. @param {Message} user @param {string} typed */
  rewrite(user, typed) {
    this.#sayAgain(user, compose(parse(user.text).files, typed), typed);
  }

  /** @param {Message} user @param {string} text @param {string | null} typed */
  #sayAgain(user, text, typed) {
    const thread = this.#state.current;
    const turn = user.responseId;
    if (turn === null || !this.canRewrite(user)) return;
    const left = { turn, leaf: lastTurn(thread.messages) ?? turn };
    const previous = this.#before(thread, turn);
    const start = thread.messages.findIndex(({ responseId }) => responseId === turn);
    const gone = thread.messages.slice(start);
    this.#turns.set(thread, this.#turnsOf(thread).filter((other) => !gone.includes(other.user)));
    for (const message of gone) this.#state.removeMessage(thread, message);
    const id = typed === null || thread.id === null ? randomId() : this.#drafts.rewriting(thread.id, text);
    this.#begin(thread, { text, typed, files: [], id, previous, left });
  }

  /** Which version of its turn a message is; null where it is the only one. @param {Message} message */
  versions({ role, responseId }) {
    const { current } = this.#state;
    if (role !== "assistant" || responseId === null || current.id === null) return null;
    const group = this.#versionsOf(responseId);
    return group && { index: group.findIndex(({ turn }) => turn === responseId), count: group.length };
  }

  /** @param {string} turn */
  #versionsOf(turn) {
    return versionsOf(this.#state.metadataOf(this.#state.current)).find((group) => group.some((version) => version.turn === turn)) ?? null;
  }

  /** Goes to another version of a message's turn, and to what was said after it. @param {Message} message @param {-1 | 1} step */
  async showVersion({ responseId }, step) {
    const thread = this.#state.current;
    if (thread.id === null) return;
    await this.#conversations.settled(thread.id);
    const group = responseId && this.#versionsOf(responseId);
    if (!group || thread !== this.#state.current || thread.active) return;
    const target = group[group.findIndex(({ turn }) => turn === responseId) + step];
    const left = { turn: responseId, leaf: lastTurn(thread.messages) ?? responseId };
    try {
      // Nothing is said, but the conversation goes on from there.
      await this.#client.respond({ conversation: thread.id, previous_response_id: target.leaf, generate: false, input: [] }).done;
    } catch (error) {
      return this.#state.setProblem(thread, asProblem(error));
    }
    this.#conversations.update(thread.id, (metadata) => withVersions(metadata, leaveVersion(versionsOf(metadata), left)));
    this.#reload(thread);
  }

  // ── how a turn goes ──

  /** @param {Turn} turn @param {string | null} responseId */
  #accepted(turn, responseId) {
    turn.accepted = true;
    this.#drafts.accepted(turn.thread.id, turn.id);
    turn.answer.responseId = responseId;
    this.#state.update(turn.thread, turn.user, { status: "completed", responseId });
    const { id } = turn.thread;
    if (id === null) return;
    this.#state.touchConversation(id);
    if (!turn.left || !responseId) return;
    const version = { left: turn.left, made: responseId, tries: 0 };
    this.#made.set(turn.thread, [...(this.#made.get(turn.thread) ?? []), version]);
    this.#addVersion(id, version);
  }

  /** @param {string} id @param {Made} version */
  #addVersion(id, { left, made }) {
    this.#conversations.update(id, (metadata) => withVersions(metadata, addVersion(versionsOf(metadata), left, made)));
  }

  /** Two tabs that make versions at one moment may overwrite each other's note of it: then it is made again, a few times. @param {Thread} thread @param {Conversation} conversation */
  #addLost(thread, { id, metadata }) {
    const known = versionsOf(metadata ?? {}).flat().map(({ turn }) => turn);
    for (const version of this.#made.get(thread) ?? []) {
      if (known.includes(version.made) || ++version.tries > ADD_TRIES) continue;
      this.#addVersion(id, version);
    }
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
    if (turn.typed !== null) this.#giveBack(turn, turn.typed);
    if (turn.left) this.#reload(thread);
    this.#state.setProblem(thread, problem.code === "withdrawn" ? null : problem);
  }

  /** @param {Turn} turn @param {string} typed */
  #giveBack({ thread, text, id, files }, typed) {
    const draft = thread.draft.trim() ? `${typed}\n${thread.draft}` : typed;
    this.attach(thread, [...files, ...thread.files]);
    this.#state.setDraft(thread, draft);
    this.#drafts.restore(thread.id, draft, { id, sent: draft === typed ? text : draft });
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
        if (event.tokenwire?.reason === "model_loading") this.refreshModels(); // the menu tells of it, too
        return this.#state.update(thread, answer, { status: "waiting", waiting: event.tokenwire ?? null });
      case "response.created":
      case "response.in_progress":
        if (event.response?.tokenwire?.summarize) this.#state.update(thread, answer, { summary: event.response.tokenwire.summarize });
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
    if (thread.id) this.#conversations.ended(thread.id, response.id, answer.isOwn);
    if (answer.timing) answer.timing.tokens = response.usage?.output_tokens ?? null;
    // The same as what was streamed, unless the event log had expired and this is all that there is.
    const text = outputText(response) || answer.text;
    const thoughts = thoughtsOf(response.output);
    if (thoughts.length > answer.reasoning.length) answer.reasoning = thoughts;
    const reason = response.incomplete_details?.reason;
    const status = type === "response.completed" ? "completed" : reason === "cancelled" ? "stopped" : "shortened";
    if (type === "response.failed") this.#failed(thread, answer, response.error?.message ?? t("answerFailed"));
    else this.#state.update(thread, answer, { text, status, waiting: null });
    this.#unwatchIdle();
    // It made a branch, as another tab may have done meanwhile: the server knows which one it is.
    if (response.previous_response_id && thread === this.#state.current) this.#reload(thread);
  }

  /** @param {Thread} thread @param {Message} answer @param {string} problem */
  #failed(thread, answer, problem) {
    this.#state.update(thread, answer, { status: "failed", waiting: null, problem });
    this.#unwatchIdle();
  }
}

/** Whether a message is files without a word of one's own: the server may take them part by part. @param {string} text */
function isForSummary(text) {
  const said = parse(text);
  return said.files.length > 0 && said.text === t("summarise");
}

/** Where what is typed in a thread is kept: if it is gone, with the next new one. @param {Thread} thread @returns {string | null} */
function draftOf({ id, status }) {
  return status === "missing" ? null : id;
}

/** The newest turn that a list of messages has. @param {Message[]} messages @returns {string | null} */
function lastTurn(messages) {
  return messages.findLast(({ responseId }) => responseId !== null)?.responseId ?? null;
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
