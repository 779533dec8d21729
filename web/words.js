// @ts-check
/** What the page says, in the reader's language. English is here; other languages are loaded when they are wanted. */

export const ENGLISH = {
  aboutTime: ", about {time}",
  answer: "Answer",
  answerCompleteSpoken: "Answer complete.",
  answerFailed: "The answer failed.",
  answeringSpoken: "Answering.",
  answerSaid: "Answer:",
  asTheModel: "the model’s",
  asTheSystem: "Like the system",
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
  dark: "Dark",
  defaultModel: "Default model",
  delete: "Delete",
  deleted: "“{title}” was deleted.",
  deletedMany: "{count} conversations were deleted.",
  dismiss: "Dismiss",
  done: "Done",
  earlierConversations: "Earlier conversations",
  earlierVersion: "Earlier version",
  edit: "Edit",
  editMessage: "Edit the message",
  exportJson: "Export as JSON",
  exportMarkdown: "Export as Markdown",
  figures: "Speed",
  figuresAll: "{tokens} tokens · {rate} tokens/s · first after {first} s",
  figuresFirst: "first after {first} s",
  fileIsNoText: "“{name}” is not a text file.",
  fileTooBig: "“{name}” is too long to attach: {size} of {limit} kB.",
  hint: "Enter sends · Shift Enter new line · Esc stops · Ctrl / lists all keys",
  image: "Image “{name}” from {host}: open",
  import: "Import a conversation",
  importFailed: "“{name}” is no exported conversation.",
  instructions: "System prompt",
  instructionsHint: "What the model is told before everything else",
  instructionsLimit: "up to {limit} characters",
  isThinking: "Thinking…",
  keepKey: "Stay signed in on this computer",
  key: "API key",
  keyEdit: "Edit your last message",
  keyLine: "New line",
  keyRefused: "The server does not accept this key.",
  keys: "Keys",
  keySearch: "Search conversations",
  keySend: "Send",
  keyStop: "Stop the answer",
  language: "Language",
  laterVersion: "Later version",
  latest: "Latest",
  light: "Light",
  listEmpty: "Nothing here yet.",
  listFailed: "The list could not be read.",
  listLoading: "Reading the list…",
  loadingModel: "Loading the model",
  maxTokens: "Longest answer",
  maxTokensHint: "in tokens",
  message: "Message",
  messages: "Messages",
  missing: "This conversation is not here (any more).",
  model: "Model",
  modelAsleep: "asleep",
  modelClosed: "closed",
  modelDraining: "making room",
  modelFailed: "failed",
  modelLoading: "loading",
  modelMissing: "not there any more",
  modelReady: "ready",
  modelUnloaded: "loaded when needed",
  more: "Show more",
  newConversation: "New conversation",
  nothingFound: "Nothing found.",
  offline: "You are offline. What you type is kept.",
  opening: "Opening…",
  options: "How it answers",
  pageError: "Something went wrong in this page. Reloading it may help.",
  partsDone: "{done} of {parts} parts are summarised",
  placeholder: "Write a message",
  progress: "Progress",
  readingFile: "Reading {name}…",
  reconnecting: "The connection was lost. Reconnecting…",
  regenerate: "Answer again",
  removeFile: "Remove {name}",
  rename: "Rename",
  restarting: "The server is restarting. Reconnecting…",
  save: "Save",
  search: "Search conversations",
  searchFailed: "The search broke off.",
  searching: "Searching…",
  send: "Send",
  sending: "Sending…",
  settings: "Settings",
  shortened: "Cut off at the length limit",
  showConversations: "Show conversations",
  signIn: "Sign in",
  signOut: "Sign out",
  stop: "Stop the answer",
  stopped: "Stopped",
  stoppedSpoken: "Stopped.",
  summarise: "Summarise this.",
  table: "Table",
  temperature: "Temperature",
  temperatureHint: "0 to 2; more is bolder",
  theme: "Appearance",
  thinking: "Thinking",
  thoughts: "Thoughts",
  title: "Title",
  topPHint: "above 0, to 1",
  tryAgain: "Try again",
  tryNow: "Try now",
  undo: "Undo",
  untitled: "Untitled",
  usedMeanwhile: "“{title}” is kept: it was gone on with elsewhere.",
  versionOf: "Version {index} of {count}",
  waits: "Waiting in line",
  waitsAt: "Waiting in line, number {position}",
  waitsForTurn: "Waiting for the turn before this one to end",
  wantsSignIn: "This server wants you to sign in.",
  welcome: "What’s on your mind?",
  welcomeMore: "Write a message to begin. A lost connection loses nothing.",
  you: "You",
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
