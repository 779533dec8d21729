// @ts-check
/** A message's text as text: what users write, and answers until Markdown is there. */
import { element } from "./dom.js";

/**
 * `flush` shows what has come, or says that it is too early; `finish`: nothing more comes.
 * @typedef {{ append: (text: string) => void, flush: (now: number) => boolean, finish: () => void }} Body
 */

/** A text without empty lines is cut into blocks all the same, at the next line's end: layout costs by block. */
const BLOCK_CHARS = 4_000;

/** Appends to one text node, in blocks. All line ends are kept: the blocks joined are the text. @implements {Body} */
export class PlainBody {
  #root;
  #pending = "";

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#root = root;
  }

  /** @param {string} text */
  append(text) {
    this.#pending += text;
  }

  flush() {
    const text = this.#pending;
    this.#pending = "";
    if (text === "") return true; // an empty body shows that it waits (style.css)
    for (const piece of text.split(/(?<=\n)/)) {
      const last = this.#root.lastElementChild;
      const node = last?.firstChild;
      if (!(node instanceof Text) || isFull(node.data)) this.#root.append(element("div", { class: "block" }, piece));
      else node.appendData(piece);
    }
    return true;
  }

  finish() {
    this.flush();
  }
}

/** @param {string} text */
function isFull(text) {
  return text.endsWith("\n\n") || (text.length > BLOCK_CHARS && text.endsWith("\n"));
}
