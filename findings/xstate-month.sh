#!/bin/sh
# XState 5.33.3 and RxJS 7.8.2 (npm): a delay of 30 days ends at once.
#
# A machine with `after: { 2592000000: "expired" }` is expired a few milliseconds after its start, and so are a
# `timer` of 30 days and one with the date in 30 days. All three use a timer of Node, which takes at most 2^31 - 1 ms
# (24.8 days) and makes 1 ms of more, with a TimeoutOverflowWarning on stderr. A delay of 24 days waits.
#
# Consequence: invitations, trials and sessions of a month expire as soon as they are made.
# Remedy: a due time in a database, or a delay of at most 24 days that is repeated.
#
# Output: xstate 5.33.3, rxjs 7.8.2, Node v20.20.2
#         30 days: xstate ended, timer ended, timer of a date ended
#         24 days: xstate waits, timer waits, timer of a date waits
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent xstate@5.33.3 rxjs@7.8.2 >>npm.log
cat >month.js <<'PROGRAM'
const { createActor, createMachine, waitFor } = require("xstate");
const { firstValueFrom, timer } = require("rxjs");

const DAY_MS = 86_400_000;
const version = (name) => require(`./node_modules/${name}/package.json`).version;

function waits(days) {
  const states = { waiting: { after: { [days * DAY_MS]: "expired" } }, expired: {} };
  const actor = createActor(createMachine({ initial: "waiting", states })).start();
  return {
    xstate: waitFor(actor, (state) => state.matches("expired"), { timeout: Infinity }),
    timer: firstValueFrom(timer(days * DAY_MS)),
    "timer of a date": firstValueFrom(timer(new Date(Date.now() + days * DAY_MS))),
  };
}

async function outcomes(days, some_s) {
  const some = new Promise((resolve) => setTimeout(resolve, some_s * 1000, "waits"));
  const found = [];
  for (const [name, wait] of Object.entries(waits(days)))
    found.push(`${name} ${await Promise.race([wait.then(() => "ended"), some])}`);
  return found.join(", ");
}

async function main() {
  console.log(`xstate ${version("xstate")}, rxjs ${version("rxjs")}, Node ${process.version}`);
  const [month, less] = [await outcomes(30, 60), await outcomes(24, 2)];
  console.log(`30 days: ${month}\n24 days: ${less}`);
  if (month.includes("waits") || less.includes("ended")) throw new Error("changed");
  process.exit(0);
}

main();
PROGRAM
node --no-warnings month.js
