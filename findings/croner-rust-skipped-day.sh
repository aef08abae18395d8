#!/bin/sh
# croner 4.0.3 (Rust) has no further time after the day that a clock skips. It gives 55 of the 60 cases of our table.
#
# Pacific/Apia left out 30 December 2011. Before it, `0 0 * * *` has the time of 29 December (10:00 UTC), and the search
# for the next one fails with TimeSearchLimitExceeded. From a moment after the skipped day it succeeds. The npm package of the same name and version 11 continues on 31 December. The two other differences are
# those of the npm package: lists of minutes (croner-minute-lists.sh). The table is CASES in tests/core/test_cron.py.
#
# Consequence: a loop that asks for the next time after the last one stops for good.
# Remedy: on an error, ask again from a day later.
#
# Output: 4.0.3
#         Europe/Berlin 2025-03-29 22:00 0,30 2 * * *: 03-31 00:00, 03-31 00:30, 04-01 00:00, 04-01 00:30
#         Europe/Berlin 2025-10-25 22:00 15,45 2 * * *: 10-26 00:15, 10-26 00:45, 10-26 01:15, 10-26 01:45
#         Pacific/Apia 2011-12-29 05:00 0 0 * * *: 12-29 10:00, TimeSearchLimitExceeded
#         Pacific/Apia 2011-12-29 05:00 30 12 * * *: 12-29 22:30, TimeSearchLimitExceeded
#         Pacific/Apia 2011-12-29 05:00 0 9 30 12 *: TimeSearchLimitExceeded
#         55 of 60
#         after the day: 2011-12-31 10:00
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
mkdir src
cat >Cargo.toml <<'MANIFEST'
[package]
name = "agreement"
version = "0.0.0"
edition = "2021"

[dependencies]
chrono = "=0.4.45"
chrono-tz = "=0.10.4"
croner = "=4.0.3"
serde_json = "=1.0.154"
MANIFEST
cat >src/main.rs <<'PROGRAM'
use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;
use croner::parser::CronParser;

const DIFFERENT: [&str; 5] = ["0,30 2 * * *", "15,45 2 * * *", "0 0 * * *", "30 12 * * *", "0 9 30 12 *"];

fn main() {
    println!("4.0.3");
    let cases: Vec<[String; 4]> = serde_json::from_str(include_str!("../cases.json")).unwrap();
    let mut others = Vec::new();
    for [zone, moment, cron, expected] in &cases {
        let zone: Tz = zone.parse().unwrap();
        let wall = NaiveDateTime::parse_from_str(&format!("{moment}:00"), "%Y-%m-%d %H:%M:%S").unwrap();
        let mut at: DateTime<Tz> = Utc.from_utc_datetime(&wall).with_timezone(&zone);
        let rule = CronParser::new().parse(cron).unwrap();
        let mut found: Vec<String> = Vec::new();
        while found.len() < 4 {
            match rule.find_next_occurrence(&at, false) {
                Ok(next) => {
                    at = next;
                    let text = at.with_timezone(&Utc).format("%Y-%m-%d %H:%M").to_string();
                    found.push(text.replace(&moment[..5], ""));
                }
                Err(error) => {
                    found.push(format!("{error:?}"));
                    break;
                }
            }
        }
        let found = found.join(", ");
        if &found != expected {
            println!("{zone} {moment} {cron}: {found}");
            others.push(cron.as_str());
        }
    }
    println!("{} of {}", cases.len() - others.len(), cases.len());
    assert_eq!(others, DIFFERENT, "changed");
    let zone: Tz = "Pacific/Apia".parse().unwrap();
    let after = Utc.with_ymd_and_hms(2011, 12, 31, 0, 0, 0).unwrap().with_timezone(&zone);
    let rule = CronParser::new().parse("0 0 * * *").unwrap();
    let next = rule.find_next_occurrence(&after, false).unwrap().with_timezone(&Utc);
    println!("after the day: {}", next.format("%Y-%m-%d %H:%M"));
}
PROGRAM
cargo run --quiet
