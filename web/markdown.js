// @ts-check
/**
 * Answers as Markdown, while they are written. What is finished is made once and left alone; only the last block, which
 * may still change its meaning, is made again as it grows, and no oftener than a small part of the time allows. So a
 * long answer costs as much per token as a short one.
 *
 * The text is a stranger's. Markup in it is shown as text; what Markdown makes of the rest goes through DOMPurify, which
 * gives nodes; images of other hosts become links, so that reading an answer tells nobody anything.
 */
import { PlainBody } from "./body.js";
import { copyText } from "./clipboard.js";
import { element } from "./dom.js";
import { t } from "./words.js";

/** @typedef {{ marked: any, purify: any }} Libraries */
/** @typedef {{ type: string, raw: string, text?: string, lang?: string, [key: string]: any }} Token */

/** Of the time that passes, the share that growing blocks may be made again in. */
const RENDER_SHARE = 0.15;
/** Longer code stays without colours: they would hold the page up. */
const HIGHLIGHT_MAX_CHARS = 60_000;
const LINKS = /^(?:https?:\/\/|mailto:)/i;
const INLINE_IMAGES = /^data:image\/(?:png|jpe?g|gif|webp|avif);/i;
/** What models write as HTML because Markdown has no sign for it. Anything else in angle brackets is text. */
const PLAIN_TAGS = /^<\/?(?:br|sub|sup|kbd|mark|u)\s*\/?>$/i;
/** With fewer characters than this at its end, a line can still turn the paragraph above into a heading, or a list into text. */
const DECISIVE_CHARS = 4;
const COPIED_MS = 1_500;

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "mark",
    "ol", "p", "pre", "s", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
  ],
  ALLOWED_ATTR: ["align", "alt", "class", "href", "src", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"], // no addresses: without this they would have to look like ones
  ALLOWED_URI_REGEXP: new RegExp(`${LINKS.source}|${INLINE_IMAGES.source}`, "i"),
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Loads what it needs; the page is on screen by then. @returns {Promise<Markdown>} */
export async function loadMarkdown() {
  const [{ Marked, Lexer, Parser }, { default: purify }] = await Promise.all([library("marked.js"), library("purify.js")]);
  return new Markdown({ marked: { Marked, Lexer, Parser }, purify });
}

/** @param {string} file @returns {Promise<any>} */
function library(file) {
  return import(new URL(`libraries/${file}`, import.meta.url).href);
}

export class Markdown {
  #purify;
  #marked;
  #Lexer;
  #Parser;
  /** @type {Promise<any> | null} */ #highlighter = null;

  /** @param {Libraries} libraries */
  constructor({ marked, purify }) {
    this.#purify = purify;
    this.#Lexer = marked.Lexer;
    this.#Parser = marked.Parser;
    this.#marked = new marked.Marked({ gfm: true, breaks: true, renderer: RENDERER, extensions: [BLOCK_MATHS, INLINE_MATHS] });
  }

  /** @param {string} text @param {Record<string, any>} links definitions so far; new ones are added @returns {Token[]} */
  lex(text, links) {
    const lexer = new this.#Lexer(this.#marked.defaults);
    lexer.tokens.links = links;
    return lexer.lex(text);
  }

  /** Nodes of finished blocks, ready for the page. @param {Token[]} tokens @returns {DocumentFragment} */
  nodes(tokens) {
    const fragment = this.#clean(this.#Parser.parse(tokens, this.#marked.defaults));
    // Line ends between blocks: they show as nothing, and whether there are any depends on how the text came.
    for (const node of [...fragment.childNodes]) if (node instanceof Text && node.data.trim() === "") node.remove();
    for (const code of fragment.querySelectorAll("pre > code")) {
      const { figure, pre } = codeBlock(languageOf(code.className), (code.textContent ?? "").replace(/\n$/, ""));
      this.colour(pre);
      code.parentElement?.replaceWith(figure);
    }
    for (const table of fragment.querySelectorAll("table")) {
      const frame = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": t("table") });
      table.replaceWith(frame);
      frame.append(table);
    }
    for (const link of fragment.querySelectorAll("a")) {
      link.setAttribute("target", "_blank");
      link.setAttribute("rel", "noopener noreferrer nofollow");
    }
    return fragment;
  }

  /** Colours finished code. @param {HTMLElement} pre */
  async colour(pre) {
    const code = /** @type {HTMLElement} */ (pre.firstElementChild);
    const { language } = pre.dataset;
    const text = code.textContent ?? "";
    if (!language || text.length > HIGHLIGHT_MAX_CHARS) return;
    this.#highlighter ??= library("highlight.js").then(({ default: highlighter }) => highlighter, () => null);
    const highlighter = await this.#highlighter;
    if (!highlighter?.getLanguage(language)) return;
    const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
    if (code.textContent === text) code.replaceChildren(this.#clean(value));
  }

  /** @param {string} html @returns {DocumentFragment} */
  #clean(html) {
    return this.#purify.sanitize(html, ALLOWED);
  }
}

/** One answer's body. */
export class MarkdownBody {
  #root;
  #markdown;
  /** What is not finished yet. */
  #rest = "";
  /** @type {Record<string, any>} */ #links = {};
  #all = "";
  /** The unfinished block. @type {Node[]} */ #open = [];
  /** The unfinished block's code, which only grows. @type {Text | null} */ #openCode = null;
  #notBefore = 0;
  /** In the place of Markdown, where that failed. @type {PlainBody | null} */ #plain = null;

  /** @param {HTMLElement} root @param {Markdown} markdown */
  constructor(root, markdown) {
    this.#root = root;
    this.#markdown = markdown;
  }

  /** @param {string} text */
  append(text) {
    this.#rest += text;
    this.#all += text;
    this.#plain?.append(text);
  }

  /** Shows what has come, unless it is too early for that. @param {number} now milliseconds @returns {boolean} whether it did */
  flush(now) {
    if (now < this.#notBefore) return false;
    if (this.#plain) return this.#plain.flush();
    const began = performance.now();
    this.#try(() => this.#grow());
    this.#notBefore = now + (performance.now() - began) / RENDER_SHARE;
    return true;
  }

  /** Nothing more comes. */
  finish() {
    if (!this.#plain) this.#try(() => this.#end());
    this.#plain?.finish();
  }

  /** What Markdown cannot read, brackets in brackets a thousand times over, is shown as it was written. @param {() => void} deed */
  #try(deed) {
    try {
      deed();
    } catch (error) {
      console.warn(error);
      this.#drop();
      this.#root.replaceChildren();
      this.#plain = new PlainBody(this.#root);
      this.#plain.append(this.#all);
      this.#plain.flush();
    }
  }

  #grow() {
    const tokens = this.#markdown.lex(this.#rest, this.#links);
    const open = openFrom(tokens);
    const finished = tokens.slice(0, open);
    if (finished.some(({ type }) => type !== "space")) {
      this.#drop();
      this.#root.append(this.#markdown.nodes(finished));
    }
    this.#rest = this.#rest.slice(finished.reduce((length, { raw }) => length + raw.length, 0));
    this.#show(tokens.slice(open));
  }

  #end() {
    // A reference may stand before its definition: then all of it is read again, once.
    if (Object.keys(this.#links).length > 0) {
      this.#root.replaceChildren();
      this.#open = [];
      this.#rest = this.#all;
    } else this.#drop();
    this.#root.append(this.#markdown.nodes(this.#markdown.lex(this.#rest, this.#links)));
    this.#rest = "";
    this.#openCode = null;
  }

  /** @param {Token[]} tokens the unfinished ones */
  #show(tokens) {
    const last = tokens.at(-1);
    if (tokens.length === 1 && last?.type === "code" && this.#openCode && last.text?.startsWith(this.#openCode.data)) {
      return this.#openCode.appendData(last.text.slice(this.#openCode.data.length));
    }
    this.#drop();
    const isCode = tokens.length === 1 && last?.type === "code";
    const made = isCode ? this.#code(last) : this.#markdown.nodes(tokens);
    this.#open = [...made.childNodes];
    this.#root.append(made);
  }

  /** Code that still grows has no colours yet: its text node takes what comes. @param {Token} token */
  #code(token) {
    const fragment = document.createDocumentFragment();
    this.#openCode = document.createTextNode(token.text ?? "");
    const { figure, pre } = codeBlock(token.lang ?? "", "");
    pre.firstElementChild?.replaceChildren(this.#openCode);
    fragment.append(figure);
    return fragment;
  }

  #drop() {
    for (const node of this.#open) /** @type {ChildNode} */ (node).remove();
    this.#open = [];
    this.#openCode = null;
  }
}

/**
 * Index of the first token that may still change: the last one, and the one before it while the last line could be the
 * underline of a heading or of a table.
 * @param {Token[]} tokens
 */
function openFrom(tokens) {
  const last = tokens.findLastIndex(({ type }) => type !== "space");
  if (last <= 0) return Math.max(0, last);
  const isDecided = tokens[last].raw.trim().length >= DECISIVE_CHARS || tokens[last].raw.trimEnd().includes("\n");
  if (isDecided) return last;
  return Math.max(0, tokens.slice(0, last).findLastIndex(({ type }) => type !== "space"));
}

/** @param {string} className of Markdown's code element */
function languageOf(className) {
  return className.replace(/^language-/, "");
}

/**
 * A block of code with its head: the language, and a button that copies.
 * @param {string} info what stands behind the fence
 * @param {string} text
 */
function codeBlock(info, text) {
  const language = info.trim().split(/[\s{,:]/)[0].toLowerCase();
  const code = element("code", {}, text);
  const pre = element("pre", { tabindex: "0", "aria-label": language ? t("codeIn", { language }) : t("code") }, code);
  pre.dataset.language = language;
  const copy = element("button", { type: "button", class: "quiet copy-code" }, t("copy"));
  copy.addEventListener("click", () => copyCode(code.textContent ?? "", copy));
  const figure = element("figure", { class: "code" }, element("figcaption", {}, element("span", {}, language || t("code")), copy), pre);
  return { figure, pre };
}

/**
 * Copies, and says so on the button.
 * @param {string} text
 * @param {HTMLElement} button
 */
async function copyCode(text, button) {
  button.textContent = t((await copyText(text)) ? "copied" : "copyFailed");
  setTimeout(() => (button.textContent = t("copy")), COPIED_MS);
}

/** @param {string} text */
function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** What differs from marked's own. `this.parser` is marked's. @type {any} */
const RENDERER = {
  /** @param {Token} token */
  html({ text = "", block }) {
    if (PLAIN_TAGS.test(text.trim())) return text;
    return block ? `<p>${escaped(text.trimEnd())}</p>` : escaped(text);
  },
  /** @param {Token} token @this {any} */
  link({ href, title, tokens, raw }) {
    if (!LINKS.test(href)) return escaped(raw);
    return `<a href="${escaped(href)}"${title ? ` title="${escaped(title)}"` : ""}>${this.parser.parseInline(tokens)}</a>`;
  },
  /** @param {Token} token */
  image({ href, text = "", raw }) {
    if (INLINE_IMAGES.test(href)) return `<img src="${escaped(href)}" alt="${escaped(text)}">`;
    if (!/^https?:\/\//i.test(href) || !URL.canParse(href)) return escaped(raw);
    const label = t("image", { name: text || t("untitled"), host: new URL(href).host });
    return `<a class="image" href="${escaped(href)}">${escaped(label)}</a>`;
  },
  /** @param {Token} token */
  checkbox({ checked }) {
    return `<span class="task">${checked ? "☑" : "☐"}</span> `;
  },
};

/** Maths is left as it was written: Markdown would eat its backslashes and underscores. */
const BLOCK_MATHS = maths("blockMaths", "block", /^(?:\$\$[^]+?\$\$|\\\[[^]+?\\\])(?:\n|$)/, /\$\$|\\\[/);
const INLINE_MATHS = maths("inlineMaths", "inline", /^(?:\$\$[^\n]+?\$\$|\\\([^]+?\\\)|\\\[[^]+?\\\]|\$(?![\s\d])(?:\\.|[^$\n\\])+?(?<!\s)\$(?!\d))/, /\$|\\[([]/);

/** @param {string} name @param {"block" | "inline"} level @param {RegExp} whole @param {RegExp} first */
function maths(name, level, whole, first) {
  return {
    name,
    level,
    start: (/** @type {string} */ text) => text.match(first)?.index,
    tokenizer(/** @type {string} */ text) {
      const match = whole.exec(text);
      return match ? { type: name, raw: match[0], text: match[0].trimEnd() } : undefined;
    },
    renderer: ({ text = "" }) => (level === "block" ? `<p><span class="maths">${escaped(text)}</span></p>` : `<span class="maths">${escaped(text)}</span>`),
  };
}
