// @ts-check
/**
 * What a person does with conversations as a whole: read the list, rename, delete and take that back, export, import.
 * Talks to the client, writes to the state; no DOM.
 */
import { TokenwireError } from "./client.js";
import { t } from "./words.js";

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./metadata.js").Metadata} Metadata */
/**
 * What this needs of the page around it.
 * @typedef {object} Surroundings
 * @property {(id: string) => void} gone what is held of a deleted conversation can go
 * @property {() => void} changed other tabs of this browser should read the list again
 * @property {Storage} storage for this tab: keeps deletions that can still be taken back
 */

const LIST_PAGE = 30;
const SEARCH_PAGE = 1000;
const ITEMS_PAGE = 1000;
/** Milliseconds in which a deletion can be taken back. */
export const UNDO_MS = 8_000;
const DELETING = "tokenwire.deleting";

export class Conversations {
  #client;
  #state;
  #surroundings;
  /** Deletions that can still be taken back. @type {Map<string, ReturnType<typeof setTimeout>>} */ #deleting = new Map();

  /** @param {TokenwireClient} client @param {ChatState} state @param {Surroundings} surroundings */
  constructor(client, state, surroundings) {
    this.#client = client;
    this.#state = state;
    this.#surroundings = surroundings;
  }

  // ── the list ──

  async refresh() {
    try {
      const page = await this.#client.command({ type: "conversation.list", limit: LIST_PAGE });
      this.#state.replaceConversations(page.data, page.has_more);
    } catch {
      this.#state.listFailed(); // the list says so itself, with a button to try again
    }
  }

  async loadMore(limit = LIST_PAGE) {
    const last = this.#state.conversations.at(-1);
    try {
      const page = await this.#client.command({ type: "conversation.list", limit, ...(last && { after: last.id }) });
      this.#state.addConversations(page.data, page.has_more);
    } catch {
      this.#state.listFailed();
    }
  }

  /** Shows conversations whose title has this; the server has no search, so all titles are read. @param {string} text */
  async search(text) {
    this.#state.setSearch(text);
    while (this.#state.search && this.#state.hasMore && this.#state.listStatus !== "failed") await this.loadMore(SEARCH_PAGE);
  }

  // ── changes ──

  /** @param {string} id @param {string} title */
  rename(id, title) {
    return this.update(id, (metadata) => ({ ...metadata, title }));
  }

  /**
   * Changes what is kept with a conversation; shown at once, and taken back where the server refuses it.
   * @param {string} id
   * @param {(metadata: Metadata) => Metadata} change
   */
  async update(id, change) {
    const known = this.#state.conversation(id);
    if (!known) return;
    const metadata = change(known.metadata ?? {});
    this.#state.putConversation({ ...known, metadata });
    try {
      await this.#client.command({ type: "conversation.update", conversation: id, metadata });
      this.#surroundings.changed();
    } catch (error) {
      this.#state.putConversation(known);
      this.#problem(error);
    }
  }

  // ── deletion ──

  /** Hides a conversation at once and deletes it a little later, so that it can be taken back. @param {string} id */
  remove(id) {
    const title = this.#state.titleOf(id);
    this.#state.hide(id, true);
    this.#deleting.set(id, setTimeout(() => this.#delete(id), UNDO_MS));
    this.#remember();
    this.#state.setToast({ text: t("deleted", { title }), action: t("undo"), act: () => this.#takeBack(id), ms: UNDO_MS });
  }

  /** @param {string} id */
  #takeBack(id) {
    clearTimeout(this.#deleting.get(id));
    if (!this.#deleting.delete(id)) return;
    this.#remember();
    this.#state.hide(id, false);
  }

  /** What could still be taken back when the page went away was not. */
  finishDeletions() {
    for (const id of new Set([...this.#deleting.keys(), ...JSON.parse(this.#surroundings.storage.getItem(DELETING) ?? "[]")])) {
      this.#state.hide(id, true);
      this.#delete(id);
    }
  }

  /** @param {string} id */
  async #delete(id) {
    clearTimeout(this.#deleting.get(id));
    try {
      await this.#client.command({ type: "conversation.delete", conversation: id });
    } catch (error) {
      if (!(error instanceof TokenwireError && error.code === "conversation_not_found")) {
        this.#takeBack(id);
        return this.#problem(error);
      }
    }
    this.#deleting.delete(id);
    this.#remember();
    this.#surroundings.gone(id);
    this.#surroundings.changed();
  }

  #remember() {
    const ids = [...this.#deleting.keys()];
    if (ids.length) this.#surroundings.storage.setItem(DELETING, JSON.stringify(ids));
    else this.#surroundings.storage.removeItem(DELETING);
  }

  // ── files ──

  /** All items of a conversation's current branch. @param {string} id @returns {Promise<any[]>} */
  async items(id) {
    const items = [];
    for (let more = true; more; ) {
      const after = items.length ? { after: items.at(-1).id } : {};
      const page = await this.#client.command({ type: "conversation.items.list", conversation: id, limit: ITEMS_PAGE, ...after });
      items.push(...page.data);
      more = page.has_more && page.data.length > 0;
    }
    return items;
  }

  /**
   * @param {{ metadata: Metadata, items: any[] }} file
   * @returns {Promise<string | null>} its id; null where the server refused it
   */
  async create({ metadata, items }) {
    try {
      const { conversation } = await this.#client.command({ type: "conversation.create", metadata, items });
      this.#state.putConversation(conversation);
      this.#surroundings.changed();
      return conversation.id;
    } catch (error) {
      this.#problem(error);
      return null;
    }
  }

  /** @param {unknown} error */
  #problem(error) {
    this.#state.setToast({ text: error instanceof Error ? error.message : t("pageError") });
  }
}
