#!/bin/sh
# Agenda 6.2.6 (npm) runs "tomorrow at 9" at once, and "in half an hour" in 12 hours.
#
# `schedule` gives the text to `new Date` first, for which words before a number are a comment: "tomorrow at 9" is
# 1 September 2001. Other texts go to date.js 0.3.3, which ignores words that it does not know: "end of month" and
# "first of april" are now, "in half an hour" and "in 1.5 hours" have 12 hours too many. None is an error. "in 5 minutes",
# "tomorrow at noon" and "tomorrow at 9:00" are right. The time is computed without a database.
#
# Consequence: a job with a time in words may run at the time of its call.
# Remedy: a Date, or a check of `job.attrs.nextRunAt` before `save`.
#
# Output: 6.2.6 date.js 0.3.3 Node v20.20.2
#         on 2027-03-10 12:00
#         in 5 minutes: 2027-03-10 12:05
#         tomorrow at 9:00: 2027-03-11 09:00
#         tomorrow at 9: 2001-09-01 00:00
#         on 20 march: 2001-03-20 00:00
#         in half an hour: 2027-03-11 00:05
#         in 1.5 hours: 2027-03-11 01:05
#         end of month: 2027-03-10 12:00
#         first of april: 2027-03-10 12:00
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent agenda@6.2.6 date.js@0.3.3 >>npm.log
cat >times.mjs <<'PROGRAM'
import { readFileSync } from "node:fs";
import { mock } from "node:test";
import { Job } from "agenda";

const EXPECTED = {
  "in 5 minutes": "2027-03-10 12:05",
  "tomorrow at 9:00": "2027-03-11 09:00",
  "tomorrow at 9": "2001-09-01 00:00",
  "on 20 march": "2001-03-20 00:00",
  "in half an hour": "2027-03-11 00:05",
  "in 1.5 hours": "2027-03-11 01:05",
  "end of month": "2027-03-10 12:00",
  "first of april": "2027-03-10 12:00",
};
const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
const shown = (date) => date.toISOString().slice(0, 16).replace("T", " ");
console.log(version("agenda"), "date.js", version("date.js"), "Node", process.version);
mock.timers.enable({ apis: ["Date"], now: Date.parse("2027-03-10T12:00Z") });
console.log("on", shown(new Date()));
for (const [text, expected] of Object.entries(EXPECTED)) {
  const job = new Job({}, { name: "job", type: "normal" }).schedule(text);
  const found = shown(job.attrs.nextRunAt);
  console.log(`${text}: ${found}`);
  if (found !== expected) throw new Error(`changed: ${found} instead of ${expected}`);
}
PROGRAM
TZ=UTC node --no-warnings times.mjs
