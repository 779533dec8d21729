// @ts-check
/** Shows the state and turns what a person does into actions. All knowledge is in the state; all effects are actions. */
import { byId } from "./dom.js";
import { ListView } from "./list-view.js";
import { MessagesView } from "./messages-view.js";
import { canSend, titleFrom, titleOf } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Change} Change */
/** @typedef {import("./state.js").Connection} Connection */
/**
 * @typedef {object} Actions
 * @property {() => void} send
 * @property {() => void} stop
 * @property {(text: string) => void} type
 * @property {(id: string | null) => void} open
 * @property {(id: string) => void} remove
 * @property {() => void} loadMore
 * @property {() => void} reconnect
 * @property {import("./message-tools.js").MessageActions} message
 */

/** A connection that is back within this time is not worth a banner. */
const BANNER_DELAY_MS = 400;

export class View {
  /** @type {Document} */ #document;
  /** @type {ChatState} */ #state;
  /** @type {Actions} */ #actions;
  #list;
  #messages;
  #input;
  #ids;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #bannerTimer;
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
    this.#actions = actions;
    this.#messages = new MessagesView(document, actions.message);
    this.#list = new ListView(document, state, { ...actions, open: (id) => this.#open(id) });
    this.#input = byId(document, "input", HTMLTextAreaElement);
    const get = (/** @type {string} */ id) => byId(document, id, HTMLElement);
    this.#ids = {
      announcer: get("announcer"), backdrop: get("backdrop"), banner: get("banner"), bannerRetry: get("banner-retry"),
      bannerText: get("banner-text"), main: get("main"), menu: get("menu"), model: get("model"), notice: get("notice"),
      problem: get("problem"), sidebar: get("sidebar"), stop: get("stop"), title: get("title"), welcome: get("welcome"),
      send: byId(document, "send", HTMLButtonElement),
    };
  }

  /** Shows the state as it is, and every change from now on. */
  start() {
    this.#listen();
    this.#drawer(false);
    this.#state.subscribe((change) => this.#changed(change));
    this.#renderCurrent();
    this.#list.render();
  }

  /** Shows answers as Markdown from now on. @param {import("./markdown.js").Markdown} markdown */
  setMarkdown(markdown) {
    return this.#messages.setMarkdown(markdown);
  }

  #listen() {
    const { backdrop, bannerRetry, menu, stop } = this.#ids;
    const on = (/** @type {string} */ id, /** @type {() => void} */ action) => byId(this.#document, id, HTMLElement).addEventListener("click", action);
    byId(this.#document, "composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#input.addEventListener("input", () => this.#typed());
    this.#input.addEventListener("keydown", (event) => this.#inputKey(event));
    this.#document.addEventListener("keydown", (event) => event.key === "Escape" && this.#escape());
    stop.addEventListener("click", () => this.#stop());
    bannerRetry.addEventListener("click", () => this.#actions.reconnect());
    menu.addEventListener("click", () => this.#drawer(true));
    backdrop.addEventListener("click", () => this.#drawer(false));
    on("sidebar-close", () => this.#drawer(false));
    on("new", () => this.#open(null));
    on("bar-new", () => this.#open(null));
    this.#narrow.addEventListener("change", () => this.#drawer(false));
  }

  // ── what a person does ──

  /** @param {string | null} id */
  #open(id) {
    this.#drawer(false);
    this.#actions.open(id);
    this.#focusInput();
  }

  #send() {
    this.#messages.follow();
    this.#actions.send();
  }

  #stop() {
    this.#actions.stop();
    this.#input.focus();
  }

  #typed() {
    this.#fitInput();
    this.#actions.type(this.#input.value);
    this.#renderButtons();
  }

  /** @param {KeyboardEvent} event */
  #inputKey(event) {
    // Enter also ends the choice of a Chinese or Japanese word: that one must not send. Safari tells it by code 229 only.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.#send();
  }

  #escape() {
    if (this.#ids.sidebar.classList.contains("open")) this.#drawer(false);
    else if (this.#state.current.active) this.#stop();
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

  /** Not on touch screens, where it would bring up the keyboard unasked. */
  #focusInput() {
    if (matchMedia("(hover: hover)").matches) this.#input.focus();
  }

  // ── what changed ──

  /** @param {Change} change */
  #changed(change) {
    if (change.kind === "connection") return this.#renderConnection();
    if (change.kind === "model") return this.#renderModel();
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
        this.#messages.replace(change.thread.messages);
        return this.#renderThread();
      case "draft":
        return this.#renderDraft();
      case "thread":
        return this.#renderThread();
    }
  }

  #renderCurrent() {
    this.#messages.replace(this.#state.current.messages);
    this.#renderDraft();
    this.#renderThread();
    this.#list.render();
    this.#focusInput();
  }

  #renderList() {
    this.#list.render();
    this.#renderTitle();
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
    this.#renderTitle();
    this.#renderButtons();
  }

  #renderTitle() {
    const { id, messages } = this.#state.current;
    const known = id === null ? undefined : this.#state.conversation(id);
    const first = messages[0] ? titleFrom(messages[0].text) : t("newConversation");
    const title = known ? titleOf(known) : first;
    this.#ids.title.textContent = title;
    this.#document.title = id === null ? "Tokenwire" : `${title} · Tokenwire`;
  }

  #renderButtons() {
    const { active, draft } = this.#state.current;
    const canGo = draft.trim() !== "" && canSend(this.#state.current);
    // One place for both: what was typed goes out also while somebody else is being answered.
    const stops = active !== null && !canGo;
    this.#ids.send.hidden = stops;
    this.#ids.stop.hidden = !stops;
    this.#ids.send.disabled = !canGo;
  }

  #renderDraft() {
    if (this.#input.value !== this.#state.current.draft) this.#input.value = this.#state.current.draft;
    this.#fitInput();
    this.#renderButtons();
  }

  /** Where the browser cannot do it in CSS. */
  #fitInput() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }

  #renderModel() {
    this.#ids.model.textContent = this.#state.model;
    this.#ids.model.hidden = this.#state.model === "";
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
