// @ts-check
/** Tells a model's thoughts from its answer where they come in one text: `<think>…</think>` at its very beginning. */

const OPEN = "<think>";
const CLOSE = "</think>";

/** Takes a text in pieces of any size. */
export class ThinkingSplitter {
  /** What may be the beginning of a tag. */
  #held = "";
  /** @type {"start" | "lead" | "thinking" | "gap" | "answer"} */ #state = "start";

  /** Whether the thoughts have not ended yet. */
  get isThinking() {
    return this.#state === "lead" || this.#state === "thinking";
  }

  /** @param {string} text @returns {{ thinking: string, answer: string }} what is certain now */
  feed(text) {
    this.#held += text;
    const told = { thinking: "", answer: "" };
    if (this.#state === "start") this.#begin();
    if (this.#state === "lead") this.#skip("thinking");
    if (this.#state === "thinking") told.thinking = this.#think();
    if (this.#state === "gap") this.#skip("answer");
    if (this.#state === "answer") told.answer = this.#take(this.#held.length);
    return told;
  }

  /** Nothing more comes. @returns {{ thinking: string, answer: string }} */
  end() {
    const rest = this.#take(this.#held.length);
    return this.#state === "thinking" ? { thinking: rest, answer: "" } : { thinking: "", answer: this.#state === "gap" ? "" : rest };
  }

  #begin() {
    const text = this.#held.trimStart();
    if (text.startsWith(OPEN)) {
      this.#held = text.slice(OPEN.length);
      this.#state = "lead";
    } else if (!OPEN.startsWith(text)) this.#state = "answer";
  }

  #think() {
    const end = this.#held.indexOf(CLOSE);
    if (end < 0) return this.#take(this.#held.length - heldBack(this.#held));
    const thinking = this.#take(end).trimEnd();
    this.#take(CLOSE.length);
    this.#state = "gap";
    return thinking;
  }

  /** Passes over the empty lines around the tags. @param {"thinking" | "answer"} next */
  #skip(next) {
    this.#held = this.#held.trimStart();
    if (this.#held) this.#state = next;
  }

  /** @param {number} length */
  #take(length) {
    const taken = this.#held.slice(0, length);
    this.#held = this.#held.slice(length);
    return taken;
  }
}

/** @param {string} text @returns {{ thinking: string, answer: string }} */
export function splitThinking(text) {
  const splitter = new ThinkingSplitter();
  const [first, last] = [splitter.feed(text), splitter.end()];
  return { thinking: first.thinking + last.thinking, answer: first.answer + last.answer };
}

/** How many characters at the end may be the beginning of the closing tag. @param {string} text */
function heldBack(text) {
  for (let length = Math.min(CLOSE.length - 1, text.length); length > 0; length--) if (CLOSE.startsWith(text.slice(-length))) return length;
  return 0;
}
