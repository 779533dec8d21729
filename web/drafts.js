// @ts-check
/**
 * What was typed and attached and is not at the server yet, per conversation, kept across reloads. Once a text has been
 * sent, its idempotency key is kept beside it until the server accepts it: the same text sent again is the same turn.
 */
import { parse } from "./attachments.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("./metadata.js").Metadata} Metadata */
/**
 * `sent`: the text that went out under `id`, with its files in it. `inFlight`: nobody has heard yet what became of it.
 * @typedef {{ text: string, id?: string, sent?: string, inFlight?: boolean }} Draft
 */

/** All that is kept under names that begin like this is forgotten on sign-out. */
export const DRAFTS = "tokenwire.draft.";

export class Drafts {
  /** @type {import("./storage.js").KeptStorage} */ #storage;
  /** @type {() => string} */ #newId;

  /** @param {import("./storage.js").KeptStorage} storage @param {() => string} newId */
  constructor(storage, newId) {
    this.#storage = storage;
    this.#newId = newId;
  }

  /** What stands in the text field and is attached there. @param {string | null} conversation null: the new one @returns {{ text: string, files: Attachment[] }} */
  typed(conversation) {
    return { text: this.#get(conversation).text, files: this.#files(conversation) };
  }

  /** The same when a conversation is opened: with what was sent and of which nobody has heard. @param {string | null} conversation null: the new one @returns {{ text: string, files: Attachment[] }} */
  shown(conversation) {
    const { sent, inFlight } = this.#get(conversation);
    const { text, files } = this.typed(conversation);
    if (!inFlight || !sent || text === sent) return { text, files };
    const said = parse(sent);
    return { text: text ? `${said.text}\n${text}` : said.text, files: [...said.files, ...files] };
  }

  /** @param {string | null} conversation @param {string} text */
  set(conversation, text) {
    this.#put(conversation, { ...this.#get(conversation), text });
  }

  /** Apart from the text, which is written with each key. @param {string | null} conversation @param {Attachment[]} files */
  setFiles(conversation, files) {
    this.#keep(`${nameOf(conversation)}.files`, files.length > 0 ? files : null);
  }

  /** A text goes out, and leaves the text field. @param {string | null} conversation @param {string} text with its files @returns {string} its idempotency key */
  sending(conversation, text) {
    const { id, sent } = this.#get(conversation);
    return this.#sending(conversation, { text: "", id: id !== undefined && sent === text ? id : this.#newId(), sent: text });
  }

  /** Another version of a message goes out; what stands in the text field stays there. @param {string} conversation @param {string} text @returns {string} its idempotency key */
  rewriting(conversation, text) {
    return this.#sending(conversation, { text: this.#get(conversation).text, id: this.#newId(), sent: text });
  }

  /** @param {string | null} conversation @param {{ text: string, id: string, sent: string }} draft */
  #sending(conversation, draft) {
    this.#put(conversation, { ...draft, inFlight: true });
    return draft.id;
  }

  /** The server has it. @param {string | null} conversation @param {string} id */
  accepted(conversation, id) {
    const { text, id: current } = this.#get(conversation);
    if (current === id) this.#put(conversation, { text });
  }

  /** A text that was not accepted is back in the text field. `sent`: how it went out. @param {string | null} conversation @param {string} text @param {{ id: string, sent: string }} sending */
  restore(conversation, text, { id, sent }) {
    this.#put(conversation, { text, id, sent });
  }

  /** The new conversation has got its name; or a conversation is gone, and what was typed in it can begin a new one. @param {string | null} from @param {string | null} to */
  move(from, to) {
    const [kept, moved] = [this.typed(to), this.shown(from)];
    if (this.#get(to).id === undefined && kept.text === "" && kept.files.length === 0) {
      this.#put(to, this.#get(from));
      this.setFiles(to, this.#files(from));
    } else {
      this.set(to, [kept.text, moved.text].filter(Boolean).join("\n"));
      this.setFiles(to, [...kept.files, ...moved.files]);
    }
    this.clear(from);
  }

  /** @param {string | null} conversation */
  clear(conversation) {
    for (const suffix of ["", ".files", ".metadata"]) this.#storage.removeItem(nameOf(conversation) + suffix);
  }

  // ── how a conversation that is not made yet is to be answered ──

  /** @returns {Metadata} */
  get metadata() {
    return this.#read(`${nameOf(null)}.metadata`) ?? {};
  }

  set metadata(metadata) {
    this.#keep(`${nameOf(null)}.metadata`, metadata);
  }

  // ── messages that are being edited ──

  /** What stands in the text field in a message's place; null: it is not being edited. @param {string} turn @returns {string | null} */
  edit(turn) {
    return this.#read(`${DRAFTS}edit.${turn}`);
  }

  /** @param {string} turn @param {string | null} typed */
  setEdit(turn, typed) {
    this.#keep(`${DRAFTS}edit.${turn}`, typed);
  }

  // ── the storage ──

  /** @param {string | null} conversation @returns {Draft} */
  #get(conversation) {
    return this.#read(nameOf(conversation)) ?? { text: "" };
  }

  /** @param {string | null} conversation @returns {Attachment[]} */
  #files(conversation) {
    return this.#read(`${nameOf(conversation)}.files`) ?? [];
  }

  /** @param {string | null} conversation @param {Draft} draft */
  #put(conversation, draft) {
    this.#keep(nameOf(conversation), draft.text === "" && draft.id === undefined ? null : draft);
  }

  /** @param {string} name @returns {any} null: nothing is kept */
  #read(name) {
    return JSON.parse(this.#storage.getItem(name) ?? "null");
  }

  /** @param {string} name @param {unknown} value null: nothing */
  #keep(name, value) {
    if (value === null) this.#storage.removeItem(name);
    else this.#storage.setItem(name, JSON.stringify(value));
  }
}

/** @param {string | null} conversation */
function nameOf(conversation) {
  return DRAFTS + (conversation ?? "new");
}
