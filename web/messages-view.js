// @ts-check
/**
 * The messages of the thread on screen. While an answer streams, only its last paragraph grows: deltas are gathered
 * and appended to one text node once per frame, so that a long answer costs as much per token as a short one.
 */
import { byId, element } from "./dom.js";

/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./state.js").Waiting} Waiting */
/** @typedef {{ root: HTMLElement, body: HTMLElement, foot: HTMLElement, pending: string }} Shown */

/** A reader this near to the end wants to follow it. */
const FOLLOW_PX = 80;
/** A text without empty lines is cut into blocks all the same, at the next line's end: layout costs by block. */
const BLOCK_CHARS = 4_000;

const FOOT = /** @type {Partial<Record<Message["status"], string>>} */ ({
  stopped: "Stopped",
  shortened: "Cut off at the length limit",
});

export class MessagesView {
  #list;
  #scroll;
  #latest;
  /** @type {Map<Message, Shown>} */ #shown = new Map();
  /** @type {Set<Message>} */ #growing = new Set();
  #frame = 0;
  #following = true;

  /** @param {Document} document */
  constructor(document) {
    this.#list = byId(document, "messages", HTMLDivElement);
    this.#scroll = byId(document, "scroll", HTMLDivElement);
    this.#latest = byId(document, "latest", HTMLButtonElement);
    this.#scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#latest.addEventListener("click", () => this.follow());
    // The window and the text field change the visible height; the end should stay in sight.
    new ResizeObserver(() => this.#keepUp()).observe(this.#scroll);
  }

  /** @param {Message[]} messages */
  replace(messages) {
    this.#shown.clear();
    this.#growing.clear();
    this.#list.replaceChildren();
    for (const message of messages) this.add(message);
    this.follow();
  }

  /** @param {Message} message @param {Message | null} [before] null: at the end */
  add(message, before = null) {
    const body = element("div", { class: "body", dir: "auto" });
    const foot = element("p", { class: "foot" });
    const speaker = element("span", { class: "unseen" }, message.role === "user" ? "You:" : "Answer:");
    const root = element("article", { class: `message ${message.role}` }, speaker, body, foot);
    this.#shown.set(message, { root, body, foot, pending: "" });
    write(body, message.text);
    this.update(message);
    this.#list.insertBefore(root, (before && this.#shown.get(before)?.root) ?? null);
    this.#keepUp();
  }

  /** @param {Message} message */
  remove(message) {
    this.#shown.get(message)?.root.remove();
    this.#shown.delete(message);
  }

  /** @param {Message} message @param {string} delta */
  append(message, delta) {
    const shown = this.#shown.get(message);
    if (!shown) return;
    shown.pending += delta;
    this.#growing.add(message);
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  /** Everything but growing text. @param {Message} message */
  update(message) {
    const shown = this.#shown.get(message);
    if (!shown) return;
    this.#flushOne(message, shown);
    // Only after an expired event log, where the final text is all that comes.
    if (shown.body.textContent !== message.text && message.status !== "streaming") {
      shown.body.replaceChildren();
      write(shown.body, message.text);
    }
    shown.root.dataset.status = message.status;
    shown.foot.textContent = footFor(message);
    shown.foot.hidden = shown.foot.textContent === "";
    this.#keepUp();
  }

  /** Goes to the end and stays there. */
  follow() {
    this.#following = true;
    this.#keepUp();
  }

  #flush() {
    this.#frame = 0;
    for (const message of this.#growing) {
      const shown = this.#shown.get(message);
      if (shown) this.#flushOne(message, shown);
    }
    this.#growing.clear();
    this.#keepUp();
  }

  /** @param {Message} message @param {Shown} shown */
  #flushOne(message, shown) {
    if (shown.pending) write(shown.body, shown.pending);
    shown.pending = "";
    this.#growing.delete(message);
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
    this.#following = scrollHeight - scrollTop - clientHeight < FOLLOW_PX;
    this.#latest.hidden = this.#following;
  }

  #keepUp() {
    if (this.#following) this.#scroll.scrollTop = this.#scroll.scrollHeight;
    else this.#scrolled();
  }
}

/**
 * Appends text, as text, in blocks. All line ends are kept: the blocks joined are the text.
 * @param {HTMLElement} body
 * @param {string} text
 */
function write(body, text) {
  if (text === "") return; // an empty body shows that it waits (style.css)
  for (const piece of text.split(/(?<=\n)/)) {
    const last = body.lastElementChild;
    const node = last?.firstChild;
    if (!(node instanceof Text) || isFull(node.data)) body.append(element("div", { class: "block" }, piece));
    else node.appendData(piece);
  }
}

/** @param {string} text */
function isFull(text) {
  return text.endsWith("\n\n") || (text.length > BLOCK_CHARS && text.endsWith("\n"));
}

/** @param {Message} message */
function footFor(message) {
  if (message.status === "failed") return message.problem ?? "The answer failed.";
  if (message.role === "user") return message.status === "sending" ? "Sending…" : "";
  if (message.status === "waiting") return waitingText(message.waiting);
  return FOOT[message.status] ?? "";
}

/**
 * Why an answer waits, in words.
 * @param {Waiting | null} waiting
 */
export function waitingText(waiting) {
  if (!waiting) return "Thinking";
  const left = waiting.estimated_wait_ms ? `, about ${seconds(waiting.estimated_wait_ms)}` : "";
  if (waiting.reason === "model_loading") {
    const part = waiting.progress === undefined ? "" : ` ${Math.round(waiting.progress * 100)} %`;
    return `Loading the model${part}${left}`;
  }
  if (waiting.reason === "conversation") return "Waiting for the turn before this one to end";
  const place = waiting.position ? `, number ${waiting.position}` : "";
  return `Waiting in line${place}${left}`;
}

/** @param {number} ms */
function seconds(ms) {
  const whole = Math.max(1, Math.round(ms / 1000));
  return whole < 90 ? `${whole} s` : `${Math.round(whole / 60)} min`;
}
