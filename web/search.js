// @ts-check
/** What is searched for among the conversations, and what was found: titles at once, messages once the server has looked. No DOM. */

/** @typedef {import("./state.js").Conversation} Conversation */
/** What the server tells of a conversation. `item_id`: the message; null where the title has it. @typedef {{ conversation: Conversation, item_id: string | null, excerpt: string }} Found */

export class Search {
  /** In small letters; empty: nothing is searched for. */
  text = "";
  status = /** @type {"searching" | "over" | "failed"} */ ("over");
  /** By conversation. @type {Map<string, Found>} */ #found = new Map();

  /** @param {string} text */
  begin(text) {
    this.text = text.trim().toLowerCase();
    this.status = this.text ? "searching" : "over";
    this.#found.clear();
  }

  /** @param {Found[]} rows @param {boolean} hasMore whether it goes on */
  add(rows, hasMore) {
    for (const row of rows) this.#found.set(row.conversation.id, row);
    this.status = hasMore ? "searching" : "over";
  }

  fail() {
    this.status = "failed";
  }

  /** @param {string} id of a conversation that is gone */
  forget(id) {
    this.#found.delete(id);
  }

  /** All of them must be in one text. */
  get words() {
    return this.text.split(/\s+/).filter(Boolean);
  }

  /** What the server found. */
  get found() {
    return [...this.#found.values()].map(({ conversation }) => conversation);
  }

  /** @param {string} id of a conversation @param {string} title */
  fits(id, title) {
    return this.#found.has(id) || this.#isIn(title);
  }

  /** What was said of it in a conversation; null where the title has it already. @param {string} id @param {string} title @returns {string | null} */
  excerptOf(id, title) {
    const found = this.#found.get(id);
    return found?.item_id && !this.#isIn(title) ? found.excerpt : null;
  }

  /** @param {string} title */
  #isIn(title) {
    const lower = title.toLowerCase();
    return this.words.every((word) => lower.includes(word));
  }
}
