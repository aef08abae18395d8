#!/bin/sh
# axios-retry 4.5.0 and got 14.6.6 (npm) retry at once when a server asks them to wait for a month.
#
# Both sleep for `Retry-After` with a timer of Node, which takes at most 2^31 - 1 ms (24.8 days) and makes 1 ms of more.
# So an answer 429 with 2,592,000 s (30 days) has all three retries within a second, and then the error. ky 1.14.3 waits.
# Node prints a TimeoutOverflowWarning without the name of the library.
#
# Consequence: a client that has used up a quota of the month sends four times as many requests as one that has not.
# Remedy: a longest wait beyond which the client does not retry (got: `maxRetryAfter`).
#
# Output: Node v20.20.2
#         axios-retry 4.5.0: Retry-After 2 s: 1 request in 1 s; 30 days: 4 requests, then the error 429
#         got 14.6.6: Retry-After 2 s: 1 request in 1 s; 30 days: 4 requests, then the error 429
#         ky 1.14.3: Retry-After 2 s: 1 request in 1 s; 30 days: 1 request in 1 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent axios@1.13.2 axios-retry@4.5.0 got@14.6.6 ky@1.14.3 >>npm.log
cat >retries.mjs <<'PROGRAM'
import { once } from "node:events";
import http from "node:http";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";

const ONCE = "1 request in 1 s";
const ALL = "4 requests, then the error 429";
const requests = new Map();
const server = http.createServer((request, response) => {
  requests.set(request.url, (requests.get(request.url) ?? 0) + 1);
  response.writeHead(429, { "retry-after": request.url.split("/")[2] }).end();
});
server.listen(0, "127.0.0.1");
await once(server, "listening");
const retrying = axios.create();
axiosRetry(retrying, { retries: 3, retryCondition: () => true });
const CLIENTS = [
  ["axios-retry", (url) => retrying.get(url), ALL],
  ["got", (url) => got(url, { retry: { limit: 3 } }), ALL],
  ["ky", (url) => ky(url, { retry: { limit: 3 } }), ONCE],
];

async function answer(get, path) {
  const ended = get(`http://127.0.0.1:${server.address().port}${path}`).then(
    () => "an answer",
    (error) => `then the error ${error.response?.status ?? error.response?.statusCode}`,
  );
  const found = await Promise.race([ended, sleep(1000, "in 1 s")]);
  const count = requests.get(path);
  return `${count} request${count === 1 ? " " : "s, "}${found}`;
}

console.log("Node", process.version);
for (const [name, get, expected] of CLIENTS) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  const short = await answer(get, `/${name}/2`);
  const long = await answer(get, `/${name}/2592000`);
  console.log(`${name} ${version}: Retry-After 2 s: ${short}; 30 days: ${long}`);
  if (short !== ONCE || long !== expected) throw new Error("changed");
}
process.exit(0);
PROGRAM
node --no-warnings retries.mjs
