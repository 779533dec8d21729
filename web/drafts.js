// @ts-check
/**
 * What was typed and is not at the server yet, per conversation, kept across reloads. Once a text has been sent, its
 * idempotency key is kept beside it until the server accepts it: the same text sent again is the same turn.
 */

/**
 * `sent`: the text that went out under `id`. `inFlight`: nobody has heard yet what became of it.
 * @typedef {{ text: string, id?: string, sent?: string, inFlight?: boolean }} Draft
 */

const PREFIX = "tokenwire.draft.";

export class Drafts {
  /** @type {import("./storage.js").KeptStorage} */ #storage;
  /** @type {() => string} */ #newId;

  /** @param {import("./storage.js").KeptStorage} storage @param {() => string} newId */
  constructor(storage, newId) {
    this.#storage = storage;
    this.#newId = newId;
  }

  /** The text to show when a conversation is opened. @param {string | null} conversation null: the new one @returns {string} */
  text(conversation) {
    const { text, sent, inFlight } = this.#get(conversation);
    if (!inFlight || !sent || text === sent) return text;
    return text ? `${sent}\n${text}` : sent;
  }

  /** @param {string | null} conversation @param {string} text */
  set(conversation, text) {
    this.#put(conversation, { ...this.#get(conversation), text });
  }

  /** A text goes out. @param {string | null} conversation @param {string} text @returns {string} its idempotency key */
  sending(conversation, text) {
    const draft = this.#get(conversation);
    const id = draft.id !== undefined && draft.sent === text ? draft.id : this.#newId();
    this.#put(conversation, { text, id, sent: text, inFlight: true });
    return id;
  }

  /** The server has it. @param {string | null} conversation @param {string} id */
  accepted(conversation, id) {
    const { text, sent, id: current } = this.#get(conversation);
    if (current !== id) return;
    this.#put(conversation, { text: text === sent ? "" : text });
  }

  /** A text that was not accepted is back in the text field. `sent`: how it went out. @param {string | null} conversation @param {string} text @param {{ id: string, sent: string }} sending */
  restore(conversation, text, { id, sent }) {
    this.#put(conversation, { text, id, sent });
  }

  /** The new conversation has got its name. @param {string | null} from @param {string} to */
  move(from, to) {
    this.#put(to, this.#get(from));
    this.clear(from);
  }

  /** @param {string | null} conversation */
  clear(conversation) {
    this.#storage.removeItem(PREFIX + (conversation ?? "new"));
  }

  /** @param {string | null} conversation @returns {Draft} */
  #get(conversation) {
    const stored = this.#storage.getItem(PREFIX + (conversation ?? "new"));
    return stored ? JSON.parse(stored) : { text: "" };
  }

  /** @param {string | null} conversation @param {Draft} draft */
  #put(conversation, draft) {
    if (draft.text === "" && draft.id === undefined) this.clear(conversation);
    else this.#storage.setItem(PREFIX + (conversation ?? "new"), JSON.stringify(draft));
  }
}
