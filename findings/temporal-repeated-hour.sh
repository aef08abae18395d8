#!/bin/sh
# Temporal's schedules (server 1.31.0) treat a repeated hour by zone: Berlin runs once, in the second pass; New York twice.
#
# The server's package that computes times is asked itself; calendar.go is the same in 1.32.2, which needs a newer Go. It
# makes wall times by time.Date, whose choice between two passes the zone decides. In the hour that a clock skips nothing
# runs. Asked from within Berlin's second pass, a rule for each quarter of an hour is silent until that hour has ended.
# `#` begins a comment in a cron text, so `mon#1` means each Monday, not the first of a month.
#
# Consequence: a nightly job runs twice, or once, or not at all, by its zone and without an error.
# Remedy: hours from 4 to 22, or UTC. The build takes three minutes of processor time.
#
# Output: 1.31.0
#         Berlin, gap, 30 2 * * *: 2025-03-31 00:30, 2025-04-01 00:30
#         Berlin, fold, 30 2 * * *: 2025-10-26 01:30, 2025-10-27 01:30
#         New York, fold, 30 1 * * *: 2025-11-02 05:30, 2025-11-02 06:30
#         Berlin, second pass, */15 * * * *: 2025-10-26 02:15, 2025-10-26 02:30
#         Tokyo, first Monday, 0 12 * * mon#1: 2025-03-03 03:00, 2025-03-10 03:00
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
cat >go.mod <<'MANIFEST'
module repeated

go 1.26

require (
	go.temporal.io/api v1.62.8
	go.temporal.io/server v1.31.0
)
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"fmt"
	"time"

	schedulepb "go.temporal.io/api/schedule/v1"
	"go.temporal.io/server/service/worker/scheduler"
)

const minute = "2006-01-02 15:04"

// Name, zone, rule, the moment before, and the two next times.
var cases = [][6]string{
	{"Berlin, gap", "Europe/Berlin", "30 2 * * *", "2025-03-29 22:00", "2025-03-31 00:30", "2025-04-01 00:30"},
	{"Berlin, fold", "Europe/Berlin", "30 2 * * *", "2025-10-25 22:00", "2025-10-26 01:30", "2025-10-27 01:30"},
	{"New York, fold", "America/New_York", "30 1 * * *", "2025-11-02 03:00", "2025-11-02 05:30", "2025-11-02 06:30"},
	{"Berlin, second pass", "Europe/Berlin", "*/15 * * * *", "2025-10-26 01:10", "2025-10-26 02:15", "2025-10-26 02:30"},
	{"Tokyo, first Monday", "Asia/Tokyo", "0 12 * * mon#1", "2025-02-27 12:00", "2025-03-03 03:00", "2025-03-10 03:00"},
}

func main() {
	fmt.Println("1.31.0")
	for _, one := range cases {
		spec := &schedulepb.ScheduleSpec{TimezoneName: one[1], CronString: []string{one[2]}}
		compiled, err := scheduler.NewSpecBuilder().NewCompiledSpec(spec)
		if err != nil {
			panic(err)
		}
		at, err := time.Parse(minute, one[3])
		if err != nil {
			panic(err)
		}
		first := compiled.GetNextTime("", at).Next
		second := compiled.GetNextTime("", first).Next
		found := [2]string{first.UTC().Format(minute), second.UTC().Format(minute)}
		fmt.Printf("%s, %s: %s, %s\n", one[0], one[2], found[0], found[1])
		if found != [2]string{one[4], one[5]} {
			panic("changed")
		}
	}
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go run . 2>go.log || { cat go.log; exit 1; }
