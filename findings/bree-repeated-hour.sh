#!/bin/sh
# Bree 9.2.9 (npm) starts a job of "every 30 mins" without a pause in the hour that a clock repeats.
#
# Its library @breejs/later 4.2.0 counts on local wall time, which is Bree's default. On 31 October 2027 Berlin repeats
# the hour from 2:00 to 3:00. After 2:30 of the first pass (0:30 UTC) the next time is the present one, so each timer fires
# at once, until 2:30 of the second pass. Here the job is stopped after 100 starts, during which the clock (Node's mock
# timers) has not moved. On the day before, 4 hours have 8 starts.
#
# Consequence: a machine with local time runs such jobs in a loop for an hour, once a year.
# Remedy: the process in UTC (TZ=UTC), or a number of milliseconds for the interval.
#
# Output: 9.2.9, later 4.2.0, Node v20.20.2
#         10-30: 8 starts in 4 hours: 00:00 00:30 01:00 01:30 02:00 02:30 03:00 03:30
#         10-31: 100 starts until 00:30: 00:00 00:30 00:30 00:30 00:30 00:30 00:30 00:30
#         next times after 10-30 23:50 UTC: 00:00 00:30 00:00 00:30 00:00 00:30
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent bree@9.2.9 @breejs/later@4.2.0 >>npm.log
cat >repeated.js <<'PROGRAM'
const { mock } = require("node:test");
const Bree = require("bree");
const later = require("@breejs/later");

const EXPECTED = { "2027-10-30": 8, "2027-10-31": 100 };
const clock = (date) => date.toISOString().slice(11, 16);

class Counting extends Bree {
  starts = [];

  async run(name) {
    this.starts.push(clock(new Date()));
    if (this.starts.length === 100) this.stop();
  }
}

async function starts(day) {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.parse(`${day}T00:00Z`) - 600_000 });
  const bree = new Counting({
    logger: false,
    root: false,
    doRootCheck: false,
    jobs: [{ name: "job", path: () => {}, interval: "every 30 mins" }],
  });
  await bree.start();
  for (let second = 0; second < 4 * 3600 && bree.starts.length < 100; second++) mock.timers.tick(1000);
  mock.timers.reset();
  return bree.starts;
}

async function main() {
  const version = (name) => require(`./node_modules/${name}/package.json`).version;
  console.log(`${version("bree")}, later ${version("@breejs/later")}, Node ${process.version}`);
  for (const [day, expected] of Object.entries(EXPECTED)) {
    const found = await starts(day);
    const span = found.length === 8 ? "in 4 hours" : `until ${found.at(-1)}`;
    console.log(`${day.slice(5)}: ${found.length} starts ${span}: ${found.slice(0, 8).join(" ")}`);
    if (found.length !== expected) throw new Error("changed");
  }
  const times = later.schedule(later.parse.text("every 30 mins")).next(6, new Date("2027-10-30T23:50Z")).map(clock);
  console.log("next times after 10-30 23:50 UTC:", times.join(" "));
  if (times.join(" ") !== "00:00 00:30 00:00 00:30 00:00 00:30") throw new Error("changed");
  process.exit(0);
}

main();
PROGRAM
TZ=Europe/Berlin node --no-warnings repeated.js
