// @ts-check
/** The list of conversations. */
import { byId, element } from "./dom.js";
import { titleOf } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Conversation} Conversation */

/** How long the second click of a deletion is waited for. */
const CONFIRM_MS = 4_000;

export class ListView {
  /** @type {ChatState} */ #state;
  /** @type {{ open: (id: string) => void, remove: (id: string) => void, loadMore: () => void }} */ #actions;
  #list;
  #note;
  #more;
  /** Rows by conversation, kept while the list changes around them, so that focus stays. @type {Map<string, HTMLLIElement>} */ #rows = new Map();

  /**
   * @param {Document} document
   * @param {ChatState} state
   * @param {{ open: (id: string) => void, remove: (id: string) => void, loadMore: () => void }} actions
   */
  constructor(document, state, actions) {
    this.#state = state;
    this.#actions = actions;
    this.#list = byId(document, "conversations", HTMLOListElement);
    this.#note = byId(document, "list-note", HTMLParagraphElement);
    this.#more = byId(document, "list-more", HTMLButtonElement);
    this.#more.addEventListener("click", () => actions.loadMore());
  }

  render() {
    const { conversations, current, hasMore, listStatus } = this.#state;
    const rows = conversations.map((conversation) => this.#row(conversation));
    // Only what moved is touched: replaceChildren would drop the focus.
    rows.forEach((row, index) => {
      if (this.#list.children[index] !== row) this.#list.insertBefore(row, this.#list.children[index] ?? null);
    });
    while (this.#list.children.length > rows.length) this.#list.lastElementChild?.remove();
    for (const conversation of conversations) this.#update(conversation, conversation.id === current.id);
    this.#note.textContent = noteFor(listStatus, conversations.length);
    this.#more.hidden = !(hasMore || listStatus === "failed");
    this.#more.textContent = listStatus === "failed" ? t("tryAgain") : t("more");
  }

  /** @param {Conversation} conversation */
  #row(conversation) {
    const known = this.#rows.get(conversation.id);
    if (known) return known;
    const row = this.#makeRow(conversation.id);
    this.#rows.set(conversation.id, row);
    return row;
  }

  /** @param {string} id */
  #makeRow(id) {
    const link = element("a", { href: `#${encodeURIComponent(id)}` });
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // a new tab or window, as everywhere
      event.preventDefault();
      this.#actions.open(id);
    });
    const remove = element("button", { type: "button", class: "remove" });
    remove.addEventListener("click", () => this.#askAndRemove(remove, id));
    remove.addEventListener("blur", () => delete remove.dataset.asking);
    return element("li", {}, link, remove);
  }

  /** The first click asks, the second within some seconds deletes. @param {HTMLButtonElement} button @param {string} id */
  #askAndRemove(button, id) {
    if (button.dataset.asking) return this.#actions.remove(id);
    button.dataset.asking = "true";
    setTimeout(() => delete button.dataset.asking, CONFIRM_MS);
  }

  /** @param {Conversation} conversation @param {boolean} isCurrent */
  #update(conversation, isCurrent) {
    const row = this.#row(conversation);
    const [link, remove] = /** @type {[HTMLAnchorElement, HTMLButtonElement]} */ (/** @type {unknown} */ (row.children));
    const title = titleOf(conversation);
    if (link.textContent !== title) link.textContent = title;
    link.title = title;
    remove.setAttribute("aria-label", `Delete “${title}”`);
    row.toggleAttribute("data-running", this.#state.isActive(conversation.id) || Boolean(conversation.running_response));
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** @param {ChatState["listStatus"]} status @param {number} count */
function noteFor(status, count) {
  if (status === "failed") return t("listFailed");
  if (status === "loading") return count ? "" : t("listLoading");
  return count ? "" : t("listEmpty");
}
