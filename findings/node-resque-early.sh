#!/bin/sh
# node-resque 9.7.1 (npm) runs a job up to a second before its time.
#
# Both the time of a job and the time of a look are rounded to the nearest second. So a job at .4 of a second is found
# at .5 of the second before. A second call with the same arguments, half a second later, is the same second, and an
# error. At the default of a look every 5 s, one in ten jobs with random times would be early.
#
# Consequence: a job that checks its own time finds it in the future.
# Remedy: `Math.ceil(time / 1000) * 1000 + 500`.
#
# Output: Redis server v=7.0.15
#         9.7.1 Node v20.20.2
#         at .4 of a second: early by 0.9 s; the same arguments at .7 and at 1.2 s: an error
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$(dirname "$0")/redis.sh"
cd "$folder"
npm init -y >npm.log
npm install --silent node-resque@9.7.1 ioredis@5.8.2 >>npm.log
node - "$folder/redis.sock" <<'PROGRAM'
const Redis = require("ioredis");
const { Queue, Scheduler } = require("node-resque");
const { version } = require("./node_modules/node-resque/package.json");

async function main() {
  console.log(version, "Node", process.version);
  const connection = { redis: new Redis(process.argv[2]) };
  const jobs = { note: { perform: async () => true } };
  const queue = new Queue({ connection }, jobs);
  await queue.connect();
  const scheduler = new Scheduler({ connection, timeout: 20 }, jobs);
  await scheduler.connect();
  const whole = Math.ceil(Date.now() / 1000) * 1000;
  const found = new Promise((resolve) => scheduler.on("transferredJob", () => resolve(Date.now())));
  await queue.enqueueAt(whole + 3400, "queue", "note", ["first"]);
  await scheduler.start();
  const early = (whole + 3400 - (await found)) / 1000;
  await queue.enqueueAt(whole + 9700, "queue", "note", ["second"]);
  const second = await queue.enqueueAt(whole + 10200, "queue", "note", ["second"]).catch(() => "an error");
  console.log(`at .4 of a second: early by ${early.toFixed(1)} s; the same arguments at .7 and at 1.2 s: ${second}`);
  if (early < 0.4 || second !== "an error") throw new Error("changed");
  process.exit(0);
}

main();
PROGRAM
