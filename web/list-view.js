// @ts-check
/** The list of conversations. */
import { byId, element, icon } from "./dom.js";
import { toggleMenu } from "./menu.js";
import { titleOf } from "./titles.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Conversation} Conversation */

/**
 * @typedef {object} ListActions
 * @property {(id: string) => void} open
 * @property {() => void} loadMore
 * @property {(text: string) => void} search
 * @property {(id: string) => import("./menu.js").MenuItem[]} conversationMenu
 */

export class ListView {
  /** @type {ChatState} */ #state;
  /** @type {ListActions} */ #actions;
  #list;
  #note;
  #more;
  #search;
  /** Rows by conversation, kept while the list changes around them, so that focus stays. @type {Map<string, HTMLLIElement>} */ #rows = new Map();

  /**
   * @param {Document} document
   * @param {ChatState} state
   * @param {ListActions} actions
   */
  constructor(document, state, actions) {
    this.#state = state;
    this.#actions = actions;
    this.#list = byId(document, "conversations", HTMLOListElement);
    this.#note = byId(document, "list-note", HTMLParagraphElement);
    this.#more = byId(document, "list-more", HTMLButtonElement);
    this.#search = byId(document, "search", HTMLInputElement);
    this.#more.addEventListener("click", () => actions.loadMore());
    this.#search.addEventListener("input", () => actions.search(this.#search.value));
    this.#search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#search.value === "") return;
      event.stopPropagation();
      this.#search.value = "";
      actions.search("");
    });
  }

  /** Puts the cursor into the search field. */
  find() {
    this.#search.focus();
    this.#search.select();
  }

  render() {
    const { current, hasMore, listed, listStatus, search } = this.#state;
    const rows = listed.map((conversation) => this.#row(conversation));
    // Only what moved is touched: replaceChildren would drop the focus.
    rows.forEach((row, index) => {
      if (this.#list.children[index] !== row) this.#list.insertBefore(row, this.#list.children[index] ?? null);
    });
    while (this.#list.children.length > rows.length) this.#list.lastElementChild?.remove();
    for (const conversation of listed) this.#update(conversation, conversation.id === current.id);
    this.#note.textContent = search.text ? searchNote(search.status, listed.length) : listNote(listStatus, listed.length);
    this.#more.hidden = search.text !== "" || !(hasMore || listStatus === "failed");
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
    const link = element("a", { dir: "auto", href: `#${encodeURIComponent(id)}` });
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // a new tab or window, as everywhere
      event.preventDefault();
      this.#actions.open(id);
    });
    const more = element("button", { type: "button", class: "tool", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("more"));
    more.addEventListener("click", () => toggleMenu(more, this.#actions.conversationMenu(id), this.#state.titleOf(id)));
    return element("li", {}, link, more);
  }

  /** @param {Conversation} conversation @param {boolean} isCurrent */
  #update(conversation, isCurrent) {
    const row = this.#row(conversation);
    const [link, more] = /** @type {[HTMLAnchorElement, HTMLButtonElement]} */ (/** @type {unknown} */ (row.children));
    const title = titleOf(conversation);
    const { search } = this.#state;
    const excerpt = search.excerptOf(conversation.id, title);
    const said = `${title}\n${excerpt ?? ""}\n${search.text}`;
    if (link.dataset.said !== said) {
      link.dataset.said = said; // what it shows, so that it is made anew only when that changes
      link.replaceChildren(element("span", {}, title), ...(excerpt === null ? [] : [element("small", {}, ...marked(excerpt, search.words))]));
    }
    link.title = title;
    more.setAttribute("aria-label", t("conversationMenu", { title }));
    row.toggleAttribute("data-running", this.#state.isActive(conversation.id) || Boolean(conversation.running_response));
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** @param {ChatState["listStatus"]} status @param {number} count */
function listNote(status, count) {
  if (status === "failed") return t("listFailed");
  if (count) return "";
  return t(status === "loading" ? "listLoading" : "listEmpty");
}

/** @param {import("./search.js").Search["status"]} status @param {number} count */
function searchNote(status, count) {
  if (status === "failed") return t("searchFailed");
  if (status === "searching") return t("searching");
  return count ? "" : t("nothingFound");
}

/** A text whose places that have a word are marked. @param {string} text @param {string[]} words in small letters */
function marked(text, words) {
  const places = new RegExp(`(${words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|")})`, "giu");
  return text.split(places).map((part, index) => (index % 2 ? element("mark", {}, part) : part));
}
