// @ts-check
/** The browser's storage, which may be forbidden, full or emptied: what it does not take lasts as long as the page. */

export class KeptStorage {
  #real;
  /** What the browser did not take. @type {Map<string, string>} */ #held = new Map();

  /** @param {() => Storage} [get] may throw; none: all of it lasts as long as the page */
  constructor(get) {
    this.#real = available(get);
  }

  /** @param {string} name @returns {string | null} */
  getItem(name) {
    return this.#held.get(name) ?? this.#real?.getItem(name) ?? null;
  }

  /** @param {string} name @param {string} value */
  setItem(name, value) {
    this.removeItem(name); // an old value must not come back after a reload in the place of one that had no room
    try {
      if (!this.#real) this.#held.set(name, value);
      this.#real?.setItem(name, value);
    } catch {
      this.#held.set(name, value);
    }
  }

  /** @param {string} name */
  removeItem(name) {
    this.#held.delete(name);
    this.#real?.removeItem(name);
  }

  /** Whether it is there after a reload, too. @param {string} name */
  lasts(name) {
    return !this.#held.has(name);
  }

  /** @returns {string[]} */
  names() {
    return [...this.#held.keys(), ...Object.keys(this.#real ?? {})];
  }
}

/** @param {(() => Storage) | undefined} get */
function available(get) {
  try {
    return get?.() ?? null;
  } catch {
    return null;
  }
}
