// @ts-check
/** What the page says, in the reader's language. English is here; other languages are loaded when they are wanted. */

export const ENGLISH = {
  aboutTime: ", about {time}",
  answerCompleteSpoken: "Answer complete.",
  answerFailed: "The answer failed.",
  answeringSpoken: "Answering.",
  answerSaid: "Answer:",
  attach: "Attach a text file",
  attachedFile: "Attached file {name}",
  cancel: "Cancel",
  closed: "The server closed the connection (code {code}).",
  closeList: "Close the list",
  code: "Code",
  codeIn: "Code in {language}",
  conversation: "Conversation",
  conversationMenu: "More for “{title}”",
  conversations: "Conversations",
  copied: "Copied",
  copy: "Copy",
  copyFailed: "Copying failed",
  cutOffSpoken: "Answer cut off.",
  delete: "Delete",
  deleted: "“{title}” was deleted.",
  dismiss: "Dismiss",
  earlierConversations: "Earlier conversations",
  earlierVersion: "Earlier version",
  edit: "Edit",
  editMessage: "Edit the message",
  exportJson: "Export as JSON",
  exportMarkdown: "Export as Markdown",
  fileIsNoText: "“{name}” is not a text file.",
  fileTooBig: "“{name}” is too long to attach: {size} of {limit} kB.",
  figures: "Speed",
  figuresAll: "{tokens} tokens · {rate} tokens/s · first after {first} s",
  figuresFirst: "first after {first} s",
  hint: "Enter sends · Shift Enter new line · Esc stops · ? lists all keys",
  image: "Image “{name}” from {host}: open",
  import: "Import a conversation",
  importFailed: "“{name}” is no exported conversation.",
  laterVersion: "Later version",
  latest: "Latest",
  listEmpty: "Nothing here yet.",
  listFailed: "The list could not be read.",
  listLoading: "Reading the list…",
  loadingModel: "Loading the model",
  message: "Message",
  messages: "Messages",
  missing: "This conversation is not here (any more).",
  more: "Show more",
  newConversation: "New conversation",
  nothingFound: "No title has that.",
  offline: "You are offline. What you type is kept.",
  opening: "Opening…",
  pageError: "Something went wrong in this page. Reloading it may help.",
  placeholder: "Write a message",
  readingFile: "Reading {name}…",
  reconnecting: "The connection was lost. Reconnecting…",
  regenerate: "Answer again",
  removeFile: "Remove {name}",
  rename: "Rename",
  restarting: "The server is restarting. Reconnecting…",
  search: "Search titles",
  send: "Send",
  sending: "Sending…",
  shortened: "Cut off at the length limit",
  showConversations: "Show conversations",
  stop: "Stop the answer",
  stopped: "Stopped",
  stoppedSpoken: "Stopped.",
  table: "Table",
  thinking: "Thinking",
  isThinking: "Thinking…",
  thoughts: "Thoughts",
  title: "Title",
  tryAgain: "Try again",
  tryNow: "Try now",
  undo: "Undo",
  untitled: "Untitled",
  versionOf: "Version {index} of {count}",
  wantsSignIn: "This server wants you to sign in.",
  waits: "Waiting in line",
  waitsAt: "Waiting in line, number {position}",
  waitsForTurn: "Waiting for the turn before this one to end",
  welcome: "What’s on your mind?",
  welcomeMore: "Write a message to begin. A lost connection loses nothing.",
  youSaid: "You:",
};

/** @typedef {keyof typeof ENGLISH} Word */

/** @type {Record<Word, string>} */ let words = ENGLISH;

/**
 * One text, with its gaps filled.
 * @param {Word} word
 * @param {Record<string, string | number>} [values]
 */
export function t(word, values = {}) {
  return words[word].replace(/\{(\w+)\}/g, (gap, name) => String(values[name] ?? gap));
}

/** @param {"en" | "zh"} language */
export async function speak(language) {
  words = language === "zh" ? (await import("./words.zh.js")).CHINESE : ENGLISH;
}

/** Puts the language's words where index.html has the English ones. @param {Document} document */
export function translate(document) {
  const put = (/** @type {string} */ name, /** @type {(element: HTMLElement, text: string) => void} */ set) => {
    for (const element of document.querySelectorAll(`[data-${name}]`)) {
      if (element instanceof HTMLElement) set(element, t(/** @type {Word} */ (element.getAttribute(`data-${name}`))));
    }
  };
  put("say", (element, text) => (element.textContent = text));
  put("say-label", (element, text) => element.setAttribute("aria-label", text));
  put("say-placeholder", (element, text) => element.setAttribute("placeholder", text));
}
