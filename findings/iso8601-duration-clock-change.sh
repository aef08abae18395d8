#!/bin/sh
# iso8601-duration 2.1.4 (npm): in a night in which the clock changes, half an hour is an hour and a half.
#
# `toSeconds` and `end` count on the wall clock of the process, also for hours, minutes and seconds. In Berlin
# `toSeconds` of PT30M is 5,400 half an hour before the clock goes forward, and right when it goes back. `end` of PT30M
# is right when it goes forward; in the repeated hour it is 5,400 s away. `end` of PT24H is 23 and 25 hours away.
#
# Consequence: a delay or a time limit in hours is wrong by an hour, in one direction or the other, in two nights a year.
# Remedy: the process in UTC (TZ=UTC), or the sum of the parsed fields.
#
# Output: 2.1.4 Node v20.20.2
#         Europe/Berlin 2027-03-28T00:30Z PT30M: toSeconds 5400, end 1800
#         Europe/Berlin 2027-03-28T00:30Z PT24H: toSeconds 86400, end 82800
#         Europe/Berlin 2027-10-31T00:30Z PT30M: toSeconds 1800, end 5400
#         Europe/Berlin 2027-10-31T00:30Z PT24H: toSeconds 86400, end 90000
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent iso8601-duration@2.1.4 >>npm.log
TZ=Europe/Berlin node - <<'PROGRAM'
const { parse, toSeconds, end } = require("iso8601-duration");
const { version } = require("./node_modules/iso8601-duration/package.json");

const CASES = [
  ["2027-03-28T00:30Z", "PT30M", 5400, 1800],
  ["2027-03-28T00:30Z", "PT24H", 86400, 82800],
  ["2027-10-31T00:30Z", "PT30M", 1800, 5400],
  ["2027-10-31T00:30Z", "PT24H", 86400, 90000],
];
console.log(version, "Node", process.version);
for (const [moment, text, ...expected] of CASES) {
  const start = new Date(moment);
  const found = [toSeconds(parse(text), start), (end(parse(text), start) - start) / 1000];
  console.log(`Europe/Berlin ${moment} ${text}: toSeconds ${found[0]}, end ${found[1]}`);
  if (String(found) !== String(expected)) throw new Error(`changed: ${found} instead of ${expected}`);
}
PROGRAM
