// @ts-check
/**
 * What a person does with conversations as a whole: read the list, rename, delete and take that back, export, import.
 * Talks to the client, writes to the state; no DOM.
 */
import { TokenwireError } from "./client.js";
import { t } from "./words.js";

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Conversation} Conversation */
/** @typedef {import("./metadata.js").Metadata} Metadata */
/** What tabs of one browser tell each other: that the list has changed, or that a conversation is (not) about to be deleted. @typedef {{ hidden?: string, shown?: string }} News */
/**
 * What this needs of the page around it.
 * @typedef {object} Surroundings
 * @property {(id: string) => void} gone what is held of a deleted conversation can go
 * @property {(news: News) => void} tell tells other tabs of this browser
 * @property {import("./storage.js").KeptStorage} storage for this tab: keeps deletions that can still be taken back
 */
/** `usedAt`: when the server saw it used last, at the moment of deletion; null where it did not say. @typedef {{ timer: ReturnType<typeof setTimeout> | undefined, usedAt: Promise<number | null> }} Deletion */

const LIST_PAGE = 30;
/** Milliseconds without a key, after which messages are searched. */
const SEARCH_DELAY_MS = 250;
/** More than anybody looks through: a longer word finds less. */
const FOUND_MAX = 200;
const ITEMS_PAGE = 1000;
/** Milliseconds in which a deletion can be taken back. */
export const UNDO_MS = 8_000;
const DELETING = "tokenwire.deleting";

export class Conversations {
  #client;
  #state;
  #surroundings;
  /** Deletions that can still be taken back. @type {Map<string, Deletion>} */ #deleting = new Map();
  /** The last change of each conversation's metadata. @type {Map<string, Promise<void>>} */ #updates = new Map();
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #searchTimer;
  /** Counts searches: only the newest one goes on. */
  #searches = 0;

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

  async loadMore() {
    const { lastListed } = this.#state;
    try {
      const page = await this.#client.command({ type: "conversation.list", limit: LIST_PAGE, ...(lastListed && { after: lastListed }) });
      this.#state.addConversations(page.data, page.has_more);
    } catch {
      this.#state.listFailed();
    }
  }

  /** What another tab did. @param {News} news */
  heard({ hidden, shown }) {
    if (hidden) this.#state.hide(hidden, true);
    else if (shown) this.#state.hide(shown, false);
    else this.refresh();
  }

  /** Shows conversations that have these words in their title, at once, and in a message, once the server has looked. @param {string} text */
  search(text) {
    this.#state.setSearch(text);
    clearTimeout(this.#searchTimer);
    const number = ++this.#searches;
    const query = this.#state.search.text;
    if (query) this.#searchTimer = setTimeout(() => this.#searchMessages(query, number), SEARCH_DELAY_MS);
  }

  /** @param {string} query @param {number} number */
  async #searchMessages(query, number) {
    const isOld = () => number !== this.#searches;
    let found = 0;
    try {
      for (let after = {}, more = true; more && !isOld(); ) {
        const page = await this.#client.command({ type: "conversation.search", query, ...after });
        if (isOld()) return;
        found += page.data.length;
        more = page.has_more && found < FOUND_MAX;
        after = { after: page.last_id };
        this.#state.addFound(page.data, more);
      }
    } catch {
      if (!isOld()) this.#state.searchFailed();
    }
  }

  // ── changes ──

  /** @param {string} id @param {string} title */
  rename(id, title) {
    return this.update(id, (metadata) => ({ ...metadata, title }));
  }

  /**
   * Changes what is kept with a conversation; shown at once, and taken back where the server refuses it. One change after
   * the other, as each begins with what the last one left.
   * @param {string} id
   * @param {(metadata: Metadata) => Metadata} change
   */
  update(id, change) {
    const known = this.#state.conversation(id);
    if (!known) return;
    this.#state.putConversation({ ...known, metadata: change(known.metadata ?? {}) });
    const done = (this.#updates.get(id) ?? Promise.resolve()).then(() => this.#update(known, change));
    this.#updates.set(id, done);
    return done;
  }

  /** Resolves when what was changed of a conversation is with the server: until then its news may have what was before. @param {string} id */
  async settled(id) {
    await this.#updates.get(id);
  }

  /** @param {Conversation} known @param {(metadata: Metadata) => Metadata} change */
  async #update(known, change) {
    try {
      // All of it is replaced, and another device may have changed something of it since this one read it.
      const { conversation } = await this.#client.command({ type: "conversation.retrieve", conversation: known.id });
      const metadata = change(conversation.metadata ?? {});
      await this.#client.command({ type: "conversation.update", conversation: known.id, metadata });
      this.#put(known.id, metadata);
      this.#surroundings.tell({});
    } catch (error) {
      this.#put(known.id, known.metadata);
      this.#problem(error);
    }
  }

  /** @param {string} id of a conversation that may be gone by now @param {Metadata} [metadata] */
  #put(id, metadata) {
    const known = this.#state.conversation(id);
    if (known) this.#state.putConversation({ ...known, metadata });
  }

  /** An answer is over, and so is what the list knew of it. @param {string} id @param {string} responseId @param {boolean} isOwn whether this tab asked for it: then other tabs hear of it, too */
  ended(id, responseId, isOwn) {
    this.#state.endRunning(id, responseId);
    if (isOwn) this.#surroundings.tell({});
  }

  // ── deletion ──

  /** Hides a conversation at once, in all tabs, and deletes it a little later, so that it can be taken back. @param {string} id */
  remove(id) {
    const title = this.#state.titleOf(id);
    this.#hide(id, true);
    this.#deleting.set(id, { usedAt: this.#usedAt(id), timer: undefined });
    for (const [other, deletion] of this.#deleting) {
      clearTimeout(deletion.timer); // one notice for all of them, which ends for all at once
      deletion.timer = setTimeout(() => this.#deleteUnlessUsed(other), UNDO_MS);
    }
    this.#remember();
    const count = this.#deleting.size;
    const text = count === 1 ? t("deleted", { title }) : t("deletedMany", { count });
    this.#state.setToast({ text, action: t("undo"), act: () => [...this.#deleting.keys()].forEach((id) => this.#takeBack(id)), ms: UNDO_MS });
  }

  /** @param {string} id @param {boolean} isHidden */
  #hide(id, isHidden) {
    this.#state.hide(id, isHidden);
    this.#surroundings.tell(isHidden ? { hidden: id } : { shown: id });
  }

  /** @param {string} id */
  #takeBack(id) {
    clearTimeout(this.#deleting.get(id)?.timer);
    if (!this.#deleting.delete(id)) return;
    this.#remember();
    this.#hide(id, false);
  }

  /** What could still be taken back when the page went away was not. */
  finishDeletions() {
    for (const id of new Set([...this.#deleting.keys(), ...JSON.parse(this.#surroundings.storage.getItem(DELETING) ?? "[]")])) {
      this.#state.hide(id, true);
      this.#delete(id);
    }
  }

  /** When a conversation was used last, in the server's seconds; null where that cannot be known. @param {string} id @returns {Promise<number | null>} */
  async #usedAt(id) {
    try {
      return (await this.#client.command({ type: "conversation.retrieve", conversation: id })).conversation.updated_at;
    } catch {
      return null; // gone, or the server is: the deletion itself will tell
    }
  }

  /** Whoever has gone on with it meanwhile, in another tab or on another device, wants to keep it. @param {string} id */
  async #deleteUnlessUsed(id) {
    const [before, now] = [await this.#deleting.get(id)?.usedAt, await this.#usedAt(id)];
    if (!this.#deleting.has(id)) return; // taken back while the server was asked
    if (before == null || now === null || before === now) return this.#delete(id);
    this.#takeBack(id);
    this.#state.setToast({ text: t("usedMeanwhile", { title: this.#state.titleOf(id) }) });
  }

  /** @param {string} id */
  async #delete(id) {
    clearTimeout(this.#deleting.get(id)?.timer);
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
    this.#surroundings.tell({});
  }

  #remember() {
    const ids = [...this.#deleting.keys()];
    if (ids.length) this.#surroundings.storage.setItem(DELETING, JSON.stringify(ids));
    else this.#surroundings.storage.removeItem(DELETING);
  }

  // ── files ──

  /** All items of a conversation's current branch. @param {string} id @returns {Promise<any[] | null>} null where they cannot be read */
  async items(id) {
    try {
      return await this.#items(id);
    } catch (error) {
      this.#problem(error);
      return null;
    }
  }

  /** @param {string} id @returns {Promise<any[]>} */
  async #items(id) {
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
      this.#surroundings.tell({});
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
