// @ts-check
/** Puts the page together: client, state, deeds, view, and the address bar. */
import { Chat } from "./chat.js";
import { TokenwireClient, randomId } from "./client.js";
import { Conversations } from "./conversations.js";
import { Drafts } from "./drafts.js";
import { figuresOf } from "./figures.js";
import { optionsOf } from "./metadata.js";
import { Preferences } from "./preferences.js";
import { SignIn } from "./sign-in.js";
import { ChatState } from "./state.js";
import { KeptStorage } from "./storage.js";
import { splitThinking } from "./thinking.js";
import { View } from "./view.js";
import { speak, t, translate } from "./words.js";

/** The server's socket beside this page, also when a proxy serves both under a path. */
function socketUrl() {
  const url = new URL("v1/responses", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

/** The conversation that the address names; anybody may have written it. @returns {string | null} */
function conversationInAddress() {
  const [id] = /^conv_[\w.-]+$/.exec(location.hash.slice(1)) ?? [null];
  return id;
}

/** Another entry for a conversation that was gone to; the same entry when a new one gets its name. @param {string | null} id @param {"push" | "replace"} how */
function putInAddress(id, how) {
  if (id === conversationInAddress()) return;
  const url = id === null ? location.pathname + location.search : `#${encodeURIComponent(id)}`;
  if (how === "push") history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}

const forTab = new KeptStorage(() => sessionStorage);
const preferences = new Preferences(new KeptStorage(() => localStorage), forTab);
const language = preferences.spoken(navigator.languages);
if (language !== "en") {
  await speak(language);
  document.documentElement.lang = language;
  translate(document);
}

/** Other tabs of this browser. */
const tabs = "BroadcastChannel" in window ? new BroadcastChannel("tokenwire") : null;
const { key } = preferences;
const client = new TokenwireClient({ url: socketUrl(), token: key ?? undefined });
const state = new ChatState();
const conversations = new Conversations(client, state, {
  storage: forTab,
  gone: (id) => chat.gone(id),
  tell: (news) => tabs?.postMessage(news),
});
// Per tab, so that two tabs do not write into each other's text field.
const drafts = new Drafts(forTab, randomId);
const chat = new Chat(client, state, drafts, conversations);
const signIn = new SignIn(client, preferences, () => import("./dialogs.js"));

/** @param {string} id @returns {import("./menu.js").MenuItem[]} */
function conversationMenu(id) {
  return [
    { label: t("rename"), action: () => rename(id) },
    { label: t("exportMarkdown"), action: () => save(id, "md") },
    { label: t("exportJson"), action: () => save(id, "json") },
    { label: t("delete"), danger: true, action: () => remove(id) },
  ];
}

/** @param {string} id */
async function rename(id) {
  const { askTitle } = await import("./dialogs.js");
  const title = await askTitle(state.titleOf(id));
  if (title) conversations.rename(id, title);
}

/** @param {string} id */
function remove(id) {
  if (state.current.id === id) open(null);
  conversations.remove(id);
  view.focus(); // the notice with its "Undo" comes next
}

/** @param {string} id @param {"md" | "json"} suffix */
async function save(id, suffix) {
  const { save } = await import("./files.js");
  const known = state.conversation(id);
  const items = known && (await conversations.items(id));
  if (items) save(known, items, suffix);
}

async function importFile() {
  const { choose } = await import("./files.js");
  const { name, file } = await choose();
  if (!file) return state.setToast({ text: t("importFailed", { name }) });
  const id = await chat.import(file);
  if (id) open(id);
}

async function showOptions() {
  const thread = state.current;
  const { askOptions } = await import("./dialogs.js");
  const options = await askOptions(optionsOf(state.metadataOf(thread)));
  if (options && thread === state.current) chat.setOptions(options);
}

async function showKeys() {
  (await import("./dialogs.js")).showKeys();
}

function signOut() {
  tabs?.postMessage({ isSignedOut: true });
  signIn.signOut();
}

async function showSettings() {
  const { askSettings } = await import("./dialogs.js");
  const { theme, language } = preferences;
  const chosen = await askSettings({ theme, language, isSignedIn: preferences.key !== null, importFile, showKeys, signOut });
  if (!chosen) return;
  document.documentElement.dataset.theme = preferences.theme = chosen.theme;
  preferences.language = chosen.language;
  if (chosen.language !== language) location.reload(); // drafts stay, and answers catch up
}

/** @param {string | null} id */
function open(id) {
  putInAddress(id, "push");
  chat.open(id);
}

const view = new View(document, state, {
  send: () => chat.send(),
  stop: () => chat.stop(),
  type: (text) => chat.type(text),
  attach: (thread, files) => chat.attach(thread, files),
  problem: (message) => state.setProblem(state.current, { code: "page", message }),
  open,
  loadMore: () => (state.listStatus === "failed" ? conversations.refresh() : conversations.loadMore()),
  search: (text) => conversations.search(text),
  reconnect: () => client.connect(),
  conversationMenu,
  rename,
  chooseModel: (model) => chat.setOptions({ ...optionsOf(state.metadataOf(state.current)), model }),
  refreshModels: () => chat.refreshModels(),
  showOptions,
  showSettings,
  showKeys,
  message: {
    textOf: ({ role, text }) => (role === "assistant" ? splitThinking(text).answer : text),
    canRewrite: (message) => chat.canRewrite(message),
    regenerate: (message) => chat.regenerate(message),
    rewrite: (message, text) => chat.rewrite(message, text),
    edited: ({ responseId }) => responseId && drafts.edit(responseId),
    editing: ({ responseId }, typed) => responseId && drafts.setEdit(responseId, typed),
    keepTyped: (text) => chat.typeMore(text),
    versions: (message) => chat.versions(message),
    showVersion: (message, step) => chat.showVersion(message, step),
    figures: ({ timing }) => figuresOf(timing),
  },
});

state.subscribe((change) => {
  if (change.kind === "thread" && change.thread === state.current && change.thread.id) putInAddress(change.thread.id, "replace");
  if (change.kind === "current") putInAddress(state.current.id, "replace");
});

window.addEventListener("popstate", () => chat.open(conversationInAddress()));
window.addEventListener("hashchange", () => {
  if (conversationInAddress() !== state.current.id) chat.open(conversationInAddress());
});
/** Other tabs and devices may have made, renamed or deleted conversations meanwhile. */
function lookedAt() {
  client.wake();
  if (state.connection.status === "open") conversations.refresh();
}

for (const change of ["online", "offline"]) window.addEventListener(change, () => client.wake());
document.addEventListener("resume", () => client.wake()); // a tab that the browser had put to sleep
window.addEventListener("pagehide", () => conversations.finishDeletions());
window.addEventListener("pageshow", ({ persisted }) => {
  if (persisted && preferences.key !== key) location.reload(); // signed out meanwhile: what was on screen is nobody's any more
  else if (persisted) client.wake();
});
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && lookedAt());
tabs?.addEventListener("message", ({ data }) => (data.isSignedOut ? signIn.heardSignOut() : conversations.heard(data)));

chat.open(conversationInAddress());
view.start();
conversations.finishDeletions();
client.connect();

/** What answers look better with comes when the page is on screen. Without it (no set-up for the page) they are plain text. */
async function loadMarkdown() {
  const { loadMarkdown } = await import("./markdown.js");
  await view.setMarkdown(await loadMarkdown());
  document.documentElement.dataset.markdown = "ready";
}

function tryMarkdown() {
  loadMarkdown().catch(() => (document.documentElement.dataset.markdown = "missing")).finally(loadDialogs);
}

/** Before somebody wants them: the line may be gone by then. */
function loadDialogs() {
  for (const module of [import("./dialogs.js"), import("./files.js")]) module.catch(() => {}); // asked for again when they are wanted
}

requestAnimationFrame(() => setTimeout(tryMarkdown));
client.onConnection(({ status }) => status === "open" && document.documentElement.dataset.markdown === "missing" && tryMarkdown()); // the line may have been gone
