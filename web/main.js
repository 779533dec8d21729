// @ts-check
/** Puts the page together: client, state, view, and the address bar. */
import { Chat } from "./chat.js";
import { TokenwireClient, randomId } from "./client.js";
import { Drafts, memoryStorage } from "./drafts.js";
import { ChatState } from "./state.js";
import { figuresOf } from "./figures.js";
import { splitThinking } from "./thinking.js";
import { View } from "./view.js";

/** The server's socket beside this page, also when a proxy serves both under a path. */
function socketUrl() {
  const url = new URL("v1/responses", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

/** Per tab, so that two tabs do not write into each other's text field. */
function draftStorage() {
  try {
    return window.sessionStorage;
  } catch {
    return memoryStorage(); // the browser forbids storage
  }
}

/** The conversation that the address names. @returns {string | null} */
function conversationInAddress() {
  const hash = decodeURIComponent(location.hash.slice(1));
  return hash.startsWith("conv_") ? hash : null;
}

/** Another entry for a conversation that was gone to; the same entry when a new one gets its name. @param {string | null} id @param {"push" | "replace"} how */
function putInAddress(id, how) {
  if (id === conversationInAddress()) return;
  const url = id === null ? location.pathname + location.search : `#${encodeURIComponent(id)}`;
  if (how === "push") history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}

const client = new TokenwireClient({ url: socketUrl() });
const state = new ChatState();
const chat = new Chat(client, state, new Drafts(draftStorage(), randomId));

const view = new View(document, state, {
  send: () => chat.send(),
  stop: () => chat.stop(),
  type: (text) => chat.type(text),
  open: (id) => {
    putInAddress(id, "push");
    chat.open(id);
  },
  remove: (id) => chat.remove(id),
  loadMore: () => (state.listStatus === "failed" ? chat.refreshList() : chat.loadMore()),
  reconnect: () => client.connect(),
  message: {
    textOf: ({ role, text }) => (role === "assistant" ? splitThinking(text).answer : text),
    canRewrite: () => false,
    regenerate: () => {},
    rewrite: () => {},
    versions: () => null,
    showVersion: () => {},
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
  if (state.connection.status === "open") chat.refreshList();
}

window.addEventListener("online", () => client.wake());
window.addEventListener("pageshow", (event) => event.persisted && client.wake());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && lookedAt());

chat.open(conversationInAddress());
view.start();
client.connect();

// What answers look better with comes when the page is on screen. Without it (no set-up for the page) they are plain text.
requestAnimationFrame(() => setTimeout(() => import("./markdown.js").then(({ loadMarkdown }) => loadMarkdown()).then((markdown) => view.setMarkdown(markdown), () => {})));
