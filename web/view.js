// @ts-check
/** Shows the state and turns what a person does into actions. All knowledge is in the state; all effects are actions. */
import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { Header } from "./header.js";
import { ListView } from "./list-view.js";
import { MessagesView } from "./messages-view.js";
import { ToastView } from "./toast.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Change} Change */
/** @typedef {import("./state.js").Connection} Connection */
/**
 * @typedef {object} OwnActions
 * @property {(id: string | null) => void} open
 * @property {() => void} reconnect
 * @property {() => void} showSettings
 * @property {() => void} showKeys
 * @property {import("./message-tools.js").MessageActions} message
 */
/** @typedef {OwnActions & Omit<import("./composer.js").ComposerActions, "editLast"> & import("./list-view.js").ListActions & import("./header.js").HeaderActions} Actions */

/** A connection that is back within this time is not worth a banner. */
const BANNER_DELAY_MS = 400;

export class View {
  /** @type {Document} */ #document;
  /** @type {ChatState} */ #state;
  /** @type {Actions} */ #actions;
  #list;
  #messages;
  #composer;
  #header;
  #toast;
  #ids;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #bannerTimer;
  /** Words that the conversation on screen was found by, until its messages are there. @type {string[]} */ #sought = [];
  /** The sidebar is a drawer there (style.css has the same width). */
  #narrow = matchMedia("(max-width: 820px)");

  /**
   * @param {Document} document
   * @param {ChatState} state
   * @param {Actions} actions
   */
  constructor(document, state, actions) {
    this.#document = document;
    this.#state = state;
    this.#actions = { ...actions, open: (id) => this.#open(id, actions) };
    this.#messages = new MessagesView(document, this.#messageActions(actions.message));
    this.#list = new ListView(document, state, this.#actions);
    this.#header = new Header(document, state, this.#actions);
    this.#toast = new ToastView(document, state, () => this.focus());
    this.#composer = new Composer(document, state, { ...actions, send: () => this.#send(), editLast: () => this.#editLast() });
    const get = (/** @type {string} */ id) => byId(document, id, HTMLElement);
    this.#ids = {
      announcer: get("announcer"), backdrop: get("backdrop"), banner: get("banner"), bannerRetry: get("banner-retry"),
      bannerText: get("banner-text"), main: get("main"), menu: get("menu"), notice: get("notice"), problem: get("problem"),
      sidebar: get("sidebar"), welcome: get("welcome"),
    };
  }

  /** Shows the state as it is, and every change from now on. */
  start() {
    this.#listen();
    this.#drawer(false);
    this.#composer.keepTyped();
    this.#state.subscribe((change) => this.#changed(change));
    this.#renderCurrent();
  }

  /** Puts the cursor into the text field. */
  focus() {
    this.#composer.focus();
  }

  /** Shows answers as Markdown from now on. @param {import("./markdown.js").Markdown} markdown */
  setMarkdown(markdown) {
    return this.#messages.setMarkdown(markdown);
  }

  #listen() {
    const { backdrop, bannerRetry, menu } = this.#ids;
    const on = (/** @type {string} */ id, /** @type {() => void} */ action) => byId(this.#document, id, HTMLElement).addEventListener("click", action);
    this.#document.addEventListener("keydown", (event) => this.#key(event));
    bannerRetry.addEventListener("click", () => this.#actions.reconnect());
    menu.addEventListener("click", () => this.#drawer(true));
    backdrop.addEventListener("click", () => this.#drawer(false));
    on("sidebar-close", () => this.#drawer(false));
    on("new", () => this.#actions.open(null));
    on("bar-new", () => this.#actions.open(null));
    on("settings", () => this.#actions.showSettings());
    this.#narrow.addEventListener("change", () => this.#drawer(false));
  }

  // ── what a person does ──

  /** @param {string | null} id @param {Actions} actions */
  #open(id, actions) {
    this.#drawer(false);
    this.#sought = id === null ? [] : this.#state.search.words;
    actions.open(id);
    this.#composer.focus();
  }

  #send() {
    this.#messages.follow();
    this.#actions.send();
  }

  /** What is said anew takes its message, and the focus in it, away: the text field gets it. @param {import("./message-tools.js").MessageActions} actions @returns {import("./message-tools.js").MessageActions} */
  #messageActions(actions) {
    return {
      ...actions,
      regenerate: (message) => {
        actions.regenerate(message);
        this.#composer.focus();
      },
      rewrite: (message, text) => {
        actions.rewrite(message, text);
        this.#composer.focus();
      },
    };
  }

  #editLast() {
    const last = this.#state.current.messages.findLast(({ role }) => role === "user");
    if (last) this.#messages.edit(last);
  }

  /** Keys that work everywhere; dialogs and menus keep theirs to themselves. @param {KeyboardEvent} event */
  #key(event) {
    if (this.#document.querySelector("dialog[open]")) return;
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    const isTyping = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    const deed =
      event.key === "Escape" && !event.isComposing ? () => this.#escape()
      : command && !event.shiftKey && key === "k" ? () => this.#find()
      : command && event.shiftKey && key === "o" ? () => this.#actions.open(null)
      : (command && key === "/") || (event.key === "?" && !isTyping) ? () => this.#actions.showKeys()
      : null;
    if (!deed) return;
    event.preventDefault();
    deed();
  }

  #escape() {
    if (this.#ids.sidebar.classList.contains("open")) this.#drawer(false);
    else if (this.#state.current.active) this.#composer.stop();
  }

  #find() {
    if (this.#narrow.matches) this.#drawer(true);
    this.#list.find();
  }

  /** @param {boolean} open the drawer of small screens; on wide ones the list always shows */
  #drawer(open) {
    const { backdrop, main, menu, sidebar } = this.#ids;
    const wasOpen = sidebar.classList.contains("open");
    sidebar.classList.toggle("open", open);
    backdrop.hidden = !open;
    menu.setAttribute("aria-expanded", String(open));
    sidebar.inert = this.#narrow.matches && !open;
    main.inert = open;
    if (open) byId(this.#document, "new", HTMLElement).focus();
    else if (wasOpen) menu.focus();
  }

  // ── what changed ──

  /** @param {Change} change */
  #changed(change) {
    if (change.kind === "connection") return this.#renderConnection();
    if (change.kind === "models") return this.#header.renderModels();
    if (change.kind === "toast") return this.#toast.render();
    if (change.kind === "list") return this.#renderList();
    if (change.kind === "current") return this.#renderCurrent();
    if ("thread" in change && change.thread === this.#state.current) this.#threadChanged(change);
  }

  /** @param {Extract<Change, { thread: any }>} change */
  #threadChanged(change) {
    switch (change.kind) {
      case "append":
        return this.#messages.append(change.message, change.delta);
      case "reasoning":
        return this.#messages.think(change.message);
      case "message":
        this.#messages.update(change.message);
        return this.#announce(change.message);
      case "added":
        this.#messages.add(change.message, change.before);
        return this.#renderThread();
      case "removed":
        this.#messages.remove(change.message);
        return this.#renderThread();
      case "messages":
        this.#replaceMessages(false);
        return this.#renderThread();
      case "draft":
        return this.#composer.render();
      case "thread":
        return this.#renderThread();
    }
  }

  /** All messages; at the one that was searched for, else at the end. @param {boolean} isOther whether another conversation is shown */
  #replaceMessages(isOther) {
    const { messages } = this.#state.current;
    this.#messages.replace(messages, isOther);
    if (this.#sought.length > 0 && messages.length > 0) this.#messages.seek(this.#sought);
    if (messages.length > 0) this.#sought = [];
  }

  #renderCurrent() {
    this.#replaceMessages(true);
    this.#composer.render();
    this.#renderThread();
    this.#list.render();
    this.#composer.focus();
  }

  #renderList() {
    this.#list.render();
    this.#header.render();
    this.#messages.updateTools();
  }

  #renderThread() {
    const { messages, problem, status } = this.#state.current;
    const { notice, welcome } = this.#ids;
    welcome.hidden = status !== "ready" || messages.length > 0 || this.#state.current.id !== null;
    notice.hidden = status === "ready" || messages.length > 0;
    notice.textContent = status === "missing" ? t("missing") : t("opening");
    this.#ids.problem.hidden = problem === null;
    this.#ids.problem.textContent = problem?.message ?? "";
    this.#messages.updateTools();
    this.#header.render();
    this.#composer.renderButtons();
  }

  #renderConnection() {
    const { status } = this.#state.connection;
    clearTimeout(this.#bannerTimer);
    if (status === "open" || status === "idle") this.#ids.banner.hidden = true;
    // While it is shown, it follows at once; a first appearance waits a little.
    else if (!this.#ids.banner.hidden || status === "closed") this.#renderBanner();
    else this.#bannerTimer = setTimeout(() => this.#renderBanner(), BANNER_DELAY_MS);
  }

  #renderBanner() {
    const { banner, bannerRetry, bannerText } = this.#ids;
    banner.hidden = false;
    bannerText.textContent = bannerFor(this.#state.connection, navigator.onLine);
    bannerRetry.hidden = this.#state.connection.status === "connecting";
  }

  /** For screen readers: how it goes, not every token. @param {import("./state.js").Message} message */
  #announce(message) {
    if (message.role !== "assistant") return;
    /** @type {Partial<Record<import("./state.js").MessageStatus, import("./words.js").Word>>} */
    const words = { streaming: "answeringSpoken", completed: "answerCompleteSpoken", stopped: "stoppedSpoken", shortened: "cutOffSpoken", failed: "answerFailed" };
    const word = words[message.status];
    if (word) this.#ids.announcer.textContent = t(word);
  }
}

/** @param {Connection} connection @param {boolean} online */
function bannerFor({ status, code, reason }, online) {
  if (status === "closed") return reason || closedText(code);
  if (!online) return t("offline");
  return code === 1012 ? t("restarting") : t("reconnecting");
}

/** @param {number | undefined} code */
function closedText(code) {
  if (code === 4401 || code === 4408) return t("wantsSignIn");
  return t("closed", { code: code ?? 0 });
}
