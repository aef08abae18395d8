#!/bin/sh
# croner 11.0.1 (npm) gives the times of our table in 56 of its 60 cases.
#
# The table is CASES in tests/core/test_cron.py: 12 zones and their nights from 2011 to 2025, four times each. The four
# others are lists of minutes in a night in which a clock changes (croner-minute-lists.sh), and the day that Apia left
# out in 2011: croner runs no job of that day, and we run them at the end of the gap, as cronsim does.
#
# Consequence: a schedule of a Node program with croner keeps its times as a schedule of the server, but for these.
#
# Output: 11.0.1 Node v20.20.2
#         Europe/Berlin 2025-03-29 22:00 0,30 2 * * *: 03-31 00:00, 03-31 00:30, 04-01 00:00, 04-01 00:30
#         Europe/Berlin 2025-10-25 22:00 15,45 2 * * *: 10-26 00:15, 10-26 00:45, 10-26 01:15, 10-26 01:45
#         Pacific/Apia 2011-12-29 05:00 30 12 * * *: 12-29 22:30, 12-30 22:30, 12-31 22:30, 2012-01-01 22:30
#         Pacific/Apia 2011-12-29 05:00 0 9 30 12 *: 2012-12-29 19:00, 2013-12-29 19:00, 2014-12-29 19:00, 2015-12-29 19:00
#         56 of 60
set -eu
table=$(cd "$(dirname "$0")/.." && pwd)/tests/core/test_cron.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 - "$table" >cases.json <<'PROGRAM'
import ast, json, pathlib, sys

nodes = ast.parse(pathlib.Path(sys.argv[1]).read_text()).body
print(json.dumps(next(ast.literal_eval(one.value) for one in nodes if ast.unparse(one).startswith("CASES = "))))
PROGRAM
npm init -y >npm.log
npm install --silent croner@11.0.1 >>npm.log
node - <<'PROGRAM'
const { Cron } = require("croner");
const { version } = require("./node_modules/croner/package.json");

const DIFFERENT = ["0,30 2 * * *", "15,45 2 * * *", "30 12 * * *", "0 9 30 12 *"];
console.log(version, "Node", process.version);
const cases = require("./cases.json");
const others = [];
for (const [zone, moment, cron, expected] of cases) {
  const text = (time) => time.toISOString().slice(0, 16).replace("T", " ").replace(moment.slice(0, 5), "");
  const from = new Date(moment.replace(" ", "T") + ":00Z");
  const found = new Cron(cron, { timezone: zone }).nextRuns(4, from).map(text).join(", ");
  if (found !== expected) {
    others.push(cron);
    console.log(`${zone} ${moment} ${cron}: ${found}`);
  }
}
console.log(`${cases.length - others.length} of ${cases.length}`);
if (String(others) !== String(DIFFERENT)) throw new Error(`changed: ${others} instead of ${DIFFERENT}`);
PROGRAM
