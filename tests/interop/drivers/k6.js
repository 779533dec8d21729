// k6's WebSocket, with one virtual user: `k6 run -e URL=… -e CASES=happy,turns k6.js`; the rules are those of case.py.
import { WebSocket } from "k6/experimental/websockets";
import { plainCases } from "./plain.js";

export const options = { vus: 1, iterations: 1 };

const cases = plainCases(
  () => new WebSocket(`${__ENV.URL.replace("http", "ws")}/v1/responses`),
  () => console.log("@cut"),
);

export default async function () {
  for (const name of __ENV.CASES.split(",")) {
    try {
      await cases[name]();
      console.log(`@pass ${name}`);
    } catch (error) {
      console.log(String(error));
      console.log(`@fail ${name}`);
    }
  }
}
