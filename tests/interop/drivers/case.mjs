// What the Node drivers share; the same rules as in case.py: `node NAME.mjs URL CASE…`.
import { createRequire } from "node:module";
import { createInterface } from "node:readline/promises";
import { pathToFileURL } from "node:url";

export const MODEL = "echo";
export const AGENT = "agent"; // calls tools by a script: world.py
export const QUESTION = "What is the weather in Paris?"; // calls get_weather
export const WEATHER = "sunny, 21 degrees";
export const ANSWER = `It says: ${WEATHER}`;
export const LONG = Array.from({ length: 60 }, (_, number) => `w${number}`).join(" ");
const CASE_MS = 60_000;

// Clients are where the suite has installed them; these files are not inside that folder.
export const require = createRequire(pathToFileURL(`${process.env.INTEROP_MODULES}/`));

export const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);

const input = createInterface({ input: process.stdin });

/** Has the suite cut all connections; resolves when they are cut. */
export async function cut() {
  console.log("@cut");
  await new Promise((resolve) => input.once("line", resolve));
}

/** Runs the cases that the command line names. */
export async function run(cases) {
  const [url, ...names] = process.argv.slice(2);
  for (const name of names) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`${name} takes longer than ${CASE_MS} ms`)), CASE_MS);
    });
    try {
      await Promise.race([cases[name](url), late]);
      console.log(`@pass ${name}`);
    } catch (error) {
      console.log(error);
      console.log(`@fail ${name}`);
    } finally {
      clearTimeout(timer);
    }
  }
  process.exit(0); // a client that failed may have left sockets open
}
