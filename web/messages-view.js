// @ts-check
/**
 * The messages of the thread on screen. While an answer streams, only its end grows: deltas are gathered and shown once
 * per frame. Answers are plain text until Markdown is loaded, and stay so where it cannot be.
 */
import { parse } from "./attachments.js";
import { PlainBody } from "./body.js";
import { byId, element, icon } from "./dom.js";
import { MessageTools } from "./message-tools.js";
import { UNFINISHED } from "./state.js";
import { ThinkingSplitter } from "./thinking.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./state.js").Thread} Thread */
/** @typedef {import("./state.js").Waiting} Waiting */
/** @typedef {import("./body.js").Body} Body */
/** @typedef {import("./message-tools.js").MessageActions} MessageActions */
/** @typedef {{ details: HTMLDetailsElement, body: PlainBody }} Thoughts */
/**
 * `source`: the text as far as it was given to `body`. `isOver`: nothing more comes.
 * @typedef {{ root: HTMLElement, holder: HTMLElement, body: Body, foot: HTMLElement, bar: HTMLProgressElement, tools: MessageTools,
 *   splitter: ThinkingSplitter | null, thoughts: Thoughts | null, source: string, reasoning: string, isOver: boolean }} Shown
 */

/** A reader this near to the end wants to follow it. */
const FOLLOW_PX = 80;
/** How long a message that was searched for is pointed at. */
const FOUND_MS = 2_500;

export class MessagesView {
  #list;
  #scroll;
  #latest;
  #actions;
  /** @type {Map<Message, Shown>} */ #shown = new Map();
  /** @type {Set<Message>} */ #growing = new Set();
  #frame = 0;
  #following = true;

  /** @param {Document} document @param {MessageActions} actions */
  constructor(document, actions) {
    this.#actions = actions;
    this.#list = byId(document, "messages", HTMLDivElement);
    this.#scroll = byId(document, "scroll", HTMLDivElement);
    this.#latest = byId(document, "latest", HTMLButtonElement);
    this.#scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#latest.addEventListener("click", () => this.follow());
    // The window and the text field change the visible height; the end should stay in sight.
    new ResizeObserver(() => this.#keepUp()).observe(this.#scroll);
  }

  /** Shows answers as Markdown from now on. @param {import("./markdown.js").Markdown} markdown */
  async setMarkdown(markdown) {
    const { MarkdownBody } = await import("./markdown.js");
    this.#makeBody = (root) => new MarkdownBody(root, markdown);
    for (const [message, shown] of this.#shown) if (message.role === "assistant") this.#rewrite(message, shown);
    this.#keepUp();
  }

  /** @param {HTMLElement} root @returns {Body} */
  #makeBody = (root) => new PlainBody(root);

  /** All of them. A message that was being edited still is, if it is still there. @param {Message[]} messages @param {boolean} isOther whether they are another conversation's */
  replace(messages, isOther) {
    const focused = document.activeElement;
    const place = [...this.#list.children].findIndex((message) => message.contains(focused));
    const edited = isOther ? [] : [...this.#shown].filter(([, { tools }]) => tools.typed !== null);
    this.#shown.clear();
    this.#growing.clear();
    this.#list.replaceChildren();
    for (const message of messages) this.#insert(message, null);
    for (const [message, { tools }] of this.#shown) {
      const typed = message.role === "user" ? this.#actions.edited(message) : null;
      if (typed === null) continue;
      tools.edit(typed);
      if (tools.typed === null) this.#giveBack(message, typed); // not while an answer is being made
    }
    const isThere = (/** @type {Message} */ { role, responseId }) => messages.some((other) => other.role === role && other.responseId === responseId);
    for (const [message, { tools }] of edited) if (tools.typed && !isThere(message)) this.#giveBack(message, tools.typed);
    this.follow();
    if (focused && place >= 0) this.#focusAgain(focused, place);
  }

  /** What was typed in a message's place goes to the text field. @param {Message} message @param {string} typed */
  #giveBack(message, typed) {
    this.#actions.editing(message, null);
    this.#actions.keepTyped(typed);
  }

  /** For keyboards: the button that took the place of one that had the focus, or the one beside it. @param {Element} gone @param {number} place of its message */
  #focusAgain(gone, place) {
    if (document.activeElement !== document.body) return;
    const tools = /** @type {HTMLElement[]} */ ([...(this.#list.children[place]?.querySelectorAll(".tools button:enabled") ?? [])]);
    const seen = tools.filter((button) => button.checkVisibility());
    const same = seen.find((button) => button.getAttribute("aria-label") === gone.getAttribute("aria-label"));
    (same ?? seen.find((button) => button.parentElement?.className === gone.parentElement?.className))?.focus();
  }

  /** @param {Message} message @param {Message | null} [before] null: at the end */
  add(message, before = null) {
    this.#insert(message, before);
    this.#keepUp();
  }

  /** Without a look at where the end is now: for thousands of messages that would take minutes. @param {Message} message @param {Message | null} before */
  #insert(message, before) {
    const isAnswer = message.role === "assistant";
    const holder = element("div", { class: "body", dir: "auto" });
    const foot = element("p", { class: "foot" });
    const bar = element("progress", { max: "1", "aria-label": t("progress") });
    const speaker = element("span", { class: "unseen" }, t(isAnswer ? "answerSaid" : "youSaid"));
    const tools = new MessageTools(message, holder, this.#actions);
    const root = element("article", { class: `message ${message.role}` }, speaker, holder, foot, bar, tools.root);
    const shown = { root, holder, foot, bar, tools, body: /** @type {Body} */ (new PlainBody(holder)), splitter: null, thoughts: null, source: "", reasoning: "", isOver: false };
    this.#shown.set(message, shown);
    this.#rewrite(message, shown);
    shown.body.flush(performance.now());
    this.#renew(message);
    this.#list.insertBefore(root, (before && this.#shown.get(before)?.root) ?? null);
  }

  /** @param {Message} message */
  remove(message) {
    const shown = this.#shown.get(message);
    const typed = shown?.tools.typed;
    shown?.root.remove();
    this.#shown.delete(message);
    if (typed) this.#giveBack(message, typed); // another tab or device has changed what was being edited
  }

  /** @param {Message} message @param {string} delta */
  append(message, delta) {
    const shown = this.#shown.get(message);
    if (!shown) return;
    this.#write(shown, delta);
    this.#grow(message);
  }

  /** A model's thoughts, where the server tells them apart. @param {Message} message */
  think(message) {
    const shown = this.#shown.get(message);
    if (!shown) return;
    this.#think(shown, message.reasoning.slice(shown.reasoning.length));
    shown.reasoning = message.reasoning;
    this.#grow(message);
  }

  /** Everything but growing text. @param {Message} message */
  update(message) {
    this.#renew(message);
    this.#keepUp();
  }

  /** @param {Message} message */
  #renew(message) {
    const shown = this.#shown.get(message);
    if (!shown) return;
    const isOver = !UNFINISHED.has(message.status);
    // Only after an expired event log, where the final text is all that comes.
    if (shown.source !== message.text && message.status !== "streaming") this.#rewrite(message, shown);
    if (message.reasoning.length > shown.reasoning.length) this.think(message);
    if (isOver && !shown.isOver) this.#finish(shown);
    shown.isOver = isOver;
    shown.root.dataset.status = message.status;
    shown.foot.textContent = footFor(message);
    shown.foot.hidden = shown.foot.textContent === "";
    const progress = isOver ? undefined : progressOf(message);
    shown.bar.hidden = typeof progress !== "number";
    if (typeof progress === "number") shown.bar.value = progress;
    shown.tools.update();
    this.#renderThoughts(shown);
  }

  /** What can be done with each message: it depends on all of them. */
  updateTools() {
    for (const { tools } of this.#shown.values()) tools.update();
  }

  /** Begins to edit what the user said, where that is possible. @param {Message} message */
  edit(message) {
    this.#shown.get(message)?.tools.edit();
  }

  /** Goes to the newest message that has all of these. @param {string[]} words in small letters */
  seek(words) {
    const has = (/** @type {Message} */ { text }) => words.every((word) => text.toLowerCase().includes(word));
    const found = [...this.#shown].findLast(([message]) => has(message));
    if (!found) return;
    this.#following = false;
    const { root } = found[1];
    root.scrollIntoView({ block: "center" });
    root.classList.add("found");
    setTimeout(() => root.classList.remove("found"), FOUND_MS);
  }

  /** Goes to the end and stays there. */
  follow() {
    this.#following = true;
    this.#keepUp();
  }

  /** Everything anew, from the message as it is. @param {Message} message @param {Shown} shown */
  #rewrite(message, shown) {
    shown.holder.replaceChildren();
    shown.thoughts?.details.remove();
    const isAnswer = message.role === "assistant";
    const body = isAnswer ? this.#makeBody(shown.holder) : new PlainBody(shown.holder);
    Object.assign(shown, { body, splitter: isAnswer ? new ThinkingSplitter() : null, thoughts: null, source: "", reasoning: "" });
    if (isAnswer) this.#write(shown, message.text);
    else this.#writeQuestion(shown, message.text);
    this.think(message);
    shown.isOver = !UNFINISHED.has(message.status);
    if (shown.isOver) this.#finish(shown);
  }

  /** What a user said, its files folded. @param {Shown} shown @param {string} text */
  #writeQuestion(shown, text) {
    const said = parse(text);
    const files = said.files.map((file) => {
      const summary = element("summary", {}, icon("file"), element("span", {}, file.name));
      return element("details", { class: "attached", "aria-label": t("attachedFile", { name: file.name }) }, summary, element("pre", { tabindex: "0" }, file.text));
    });
    shown.root.querySelector(".attachments")?.remove();
    if (files.length > 0) shown.holder.before(element("div", { class: "attachments" }, ...files));
    shown.source = text;
    shown.body.append(said.text);
  }

  /** @param {Shown} shown @param {string} text */
  #write(shown, text) {
    shown.source += text;
    const { thinking, answer } = shown.splitter ? shown.splitter.feed(text) : { thinking: "", answer: text };
    if (thinking) this.#think(shown, thinking);
    if (answer) shown.body.append(answer);
  }

  /** @param {Shown} shown */
  #finish(shown) {
    const { thinking, answer } = shown.splitter?.end() ?? { thinking: "", answer: "" };
    if (thinking) this.#think(shown, thinking);
    if (answer) shown.body.append(answer);
    shown.body.finish();
    shown.thoughts?.body.finish();
  }

  /** @param {Shown} shown @param {string} text */
  #think(shown, text) {
    if (!text) return;
    if (!shown.thoughts) {
      const holder = element("div", { class: "thoughts" });
      const details = element("details", { class: "reasoning" }, element("summary"), holder);
      shown.root.insertBefore(details, shown.holder);
      shown.thoughts = { details, body: new PlainBody(holder) };
    }
    shown.thoughts.body.append(text);
    this.#renderThoughts(shown);
  }

  /** @param {Shown} shown */
  #renderThoughts({ thoughts, root, source, splitter }) {
    const summary = thoughts?.details.firstElementChild;
    if (!summary) return;
    const isThinking = !["completed", "stopped", "shortened", "failed"].includes(root.dataset.status ?? "") && (source === "" || splitter?.isThinking);
    summary.textContent = t(isThinking ? "isThinking" : "thoughts");
    thoughts?.details.toggleAttribute("data-thinking", Boolean(isThinking));
  }

  /** @param {Message} message */
  #grow(message) {
    this.#growing.add(message);
    this.#frame ||= requestAnimationFrame((now) => this.#flush(now));
  }

  /** @param {number} now */
  #flush(now) {
    this.#frame = 0;
    for (const message of [...this.#growing]) {
      const shown = this.#shown.get(message);
      const isDone = !shown || shown.isOver || (shown.body.flush(now) && (shown.thoughts?.body.flush() ?? true));
      if (shown) this.#renderThoughts(shown);
      if (isDone) this.#growing.delete(message);
    }
    if (this.#growing.size > 0) this.#frame = requestAnimationFrame((later) => this.#flush(later));
    this.#keepUp();
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
    this.#following = scrollHeight - scrollTop - clientHeight < FOLLOW_PX;
    this.#latest.hidden = this.#following;
  }

  #keepUp() {
    if (!this.#following) return this.#scrolled();
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
    this.#latest.hidden = true; // no scrolling tells of it where there is nothing to scroll
  }
}

/** From 0 to 1, where it is known. @param {Message} message @returns {number | null | undefined} */
function progressOf({ summary, waiting }) {
  return summary?.parts ? summary.done / summary.parts : waiting?.progress;
}

/** What stands below a message: how it goes, or how it ended. @param {Message} message */
export function footFor(message) {
  const { summary } = message;
  if (summary?.parts && UNFINISHED.has(message.status)) return t("partsDone", { done: summary.done, parts: summary.parts });
  if (message.status === "failed") return message.problem ?? t("answerFailed");
  if (message.role === "user") return message.status === "sending" ? t("sending") : "";
  if (message.status === "waiting") return message.reasoning ? "" : waitingText(message.waiting);
  if (message.status === "stopped") return t("stopped");
  return message.status === "shortened" ? t("shortened") : "";
}

/**
 * Why an answer waits, in words.
 * @param {Waiting | null} waiting
 */
export function waitingText(waiting) {
  if (!waiting) return t("thinking");
  const left = waiting.estimated_wait_ms ? t("aboutTime", { time: seconds(waiting.estimated_wait_ms) }) : "";
  if (waiting.reason === "model_loading") {
    const part = typeof waiting.progress === "number" ? ` ${Math.round(waiting.progress * 100)} %` : "";
    return t("loadingModel") + part + left;
  }
  if (waiting.reason === "conversation") return t("waitsForTurn");
  return (waiting.position ? t("waitsAt", { position: waiting.position }) : t("waits")) + left;
}

/** @param {number} ms */
function seconds(ms) {
  const whole = Math.max(1, Math.round(ms / 1000));
  return whole < 90 ? `${whole} s` : `${Math.round(whole / 60)} min`;
}
