#!/bin/sh
# croner 11.0.1 (npm) runs a job once in the night in which a clock changes, unless its minutes are a list.
#
# On 30 March 2025 Berlin leaves out the hour from 2:00 to 3:00; on 26 October it repeats it. `30 2 * * *` runs once in
# each night: at the end of the gap (1:00 UTC), and in the first pass (0:30 UTC). `15,30 2 * * *` does not run in the
# first night, and runs four times in the second. cronsim 2.8 treats the list as it treats the single time. On 55
# of 58 expressions without such a list, over 12 zones and their nights from 2011 to 2025, croner and cronsim agree. The
# others: Lord Howe's half hour (cronsim-half-hour.sh), and the day that Apia left out in 2011, whose jobs cronsim runs at
# the end of the gap and croner not at all.
#
# Consequence: to add a second minute to a nightly job changes how often it runs in two nights of a year.
# Remedy: two jobs with one time each, or hours outside the change.
#
# Output: 11.0.1 Node v20.20.2
#         30 2 * * *: March 2025-03-30T01:00Z, October 2025-10-26T00:30Z
#         15,30 2 * * *: March none, October 2025-10-26T00:15Z 2025-10-26T00:30Z 2025-10-26T01:15Z 2025-10-26T01:30Z
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent croner@11.0.1 >>npm.log
node - <<'PROGRAM'
const { Cron } = require("croner");
const { version } = require("./node_modules/croner/package.json");

const EXPECTED = {
  "30 2 * * *": ["2025-03-30T01:00Z", "2025-10-26T00:30Z"],
  "15,30 2 * * *": ["none", "2025-10-26T00:15Z 2025-10-26T00:30Z 2025-10-26T01:15Z 2025-10-26T01:30Z"],
};
console.log(version, "Node", process.version);
for (const [cron, expected] of Object.entries(EXPECTED)) {
  const found = ["2025-03-29T22:00:00Z", "2025-10-25T22:00:00Z"].map((start) => {
    const from = new Date(start);
    const times = new Cron(cron, { timezone: "Europe/Berlin" }).nextRuns(9, from);
    const night = times.filter((time) => time - from < 12 * 3600 * 1000);
    return night.map((time) => time.toISOString().slice(0, 16) + "Z").join(" ") || "none";
  });
  console.log(`${cron}: March ${found[0]}, October ${found[1]}`);
  if (String(found) !== String(expected)) throw new Error(`changed: ${found} instead of ${expected}`);
}
PROGRAM
