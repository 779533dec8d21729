// @ts-check
/** Asks for a key where the server wants one, and forgets it on sign-out. */

/** @typedef {import("./client.js").TokenwireClient} TokenwireClient */
/** @typedef {import("./preferences.js").Preferences} Preferences */

/** Close codes that say: not signed in, and: too late. A refused handshake has none. */
const WANTS_KEY = new Set([4401, 4408]);
const UNAUTHORIZED = 401;

export class SignIn {
  #client;
  #preferences;
  #dialogs;
  #isAsking = false;
  /** Whether this key has worked: then a lost connection says nothing about it. */
  #isProven = false;

  /**
   * @param {TokenwireClient} client
   * @param {Preferences} preferences
   * @param {() => Promise<typeof import("./dialogs.js")>} dialogs
   */
  constructor(client, preferences, dialogs) {
    this.#client = client;
    this.#preferences = preferences;
    this.#dialogs = dialogs;
    client.onConnection((connection) => this.#heard(connection));
  }

  /** @param {import("./client.js").Connection} connection */
  async #heard({ status, code }) {
    if (status === "open") this.#isProven = true;
    if (code !== undefined && WANTS_KEY.has(code)) return this.#ask();
    // A browser is not told why a handshake was refused: ask over HTTP, which says so.
    if (status === "waiting" && !this.#isProven && (await this.#isRefused())) this.#ask();
  }

  /** @returns {Promise<boolean>} */
  async #isRefused() {
    const { key } = this.#preferences;
    try {
      const reply = await fetch("v1/models", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
      return reply.status === UNAUTHORIZED;
    } catch {
      return false; // no server, either: the banner says so
    }
  }

  async #ask() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    const isRefused = this.#preferences.key !== null;
    this.#preferences.forget();
    const { askKey } = await this.#dialogs();
    const { key, stays } = await askKey(isRefused);
    this.#preferences.keep(key, stays);
    if (this.#preferences.keyLasts) return location.reload(); // what was typed stays, and answers catch up
    this.#isAsking = this.#isProven = false;
    this.#client.signIn(key); // the browser keeps nothing: a reload would ask again
  }

  /** Forgets the key and all that is on screen. */
  signOut() {
    this.#preferences.signOut();
    location.replace(location.pathname); // nothing of the account stays in memory
  }

  /** Another tab has signed out; this one goes along unless it has a key of its own. */
  heardSignOut() {
    if (!this.#preferences.hasOwnKey) this.signOut();
  }
}
