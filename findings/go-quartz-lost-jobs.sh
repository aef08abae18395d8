#!/bin/sh
# go-quartz 0.15.2 (Go) drops a one-time job that is more than 100 ms late, without an error.
#
# Three jobs of half a second are due together and the scheduler has one worker: two run. A job that falls due before
# `Start` never runs either. In both cases `ScheduleJob` returned nil, and no job is left. The comment of
# `OutdatedThreshold`, 100 ms by default, has such jobs rescheduled; a cron or interval job waits for its next time,
# and a one-time job has none. With a threshold of an hour all run.
#
# Consequence: a busy worker, a pause of the machine or a late start loses reminders for good.
# Remedy: `WithOutdatedThreshold` longer than any delay to expect.
#
# Output: 0.15.2
#         default: 2 of 3 due together ran, 0 of 1 due before the start ran, 0 left
#         threshold of 1 h: 3 of 3 due together ran, 1 of 1 due before the start ran, 0 left
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
PATH="$PATH:/usr/local/go/bin"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module lost

go 1.25

require github.com/reugn/go-quartz v0.15.2
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-quartz/job"
	"github.com/reugn/go-quartz/quartz"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// run returns how many of some jobs, due a second after the call, ran, and how many the scheduler still has.
func run(count int, early bool, options ...quartz.SchedulerOpt) (ran, left int) {
	scheduler, err := quartz.NewStdScheduler(append(options, quartz.WithWorkerLimit(1))...)
	must(err)
	ends := make(chan int, count)
	slow := func(context.Context) (int, error) {
		time.Sleep(500 * time.Millisecond)
		ends <- 1
		return 0, nil
	}
	if early {
		scheduler.Start(context.Background())
	}
	for number := range count {
		detail := quartz.NewJobDetail(job.NewFunctionJob(slow), quartz.NewJobKey(fmt.Sprint(number)))
		must(scheduler.ScheduleJob(detail, quartz.NewRunOnceTrigger(time.Second)))
	}
	if !early {
		time.Sleep(2 * time.Second)
		scheduler.Start(context.Background())
	}
	defer scheduler.Stop()
	for ran < count {
		select {
		case <-ends:
			ran++
		case <-time.After(5 * time.Second):
			keys, err := scheduler.GetJobKeys()
			must(err)
			return ran, len(keys)
		}
	}
	return
}

func main() {
	hour := quartz.WithOutdatedThreshold(time.Hour)
	changed := false
	for _, test := range []struct {
		name    string
		options []quartz.SchedulerOpt
		all     bool
	}{
		{"default", nil, false},
		{"threshold of 1 h", []quartz.SchedulerOpt{hour}, true},
	} {
		together, left := run(3, true, test.options...)
		before, more := run(1, false, test.options...)
		fmt.Printf("%s: %d of 3 due together ran, %d of 1 due before the start ran", test.name, together, before)
		fmt.Printf(", %d left\n", left+more)
		changed = changed || (together == 3) != test.all || (before == 1) != test.all || left+more != 0
	}
	if changed {
		panic("changed")
	}
}
PROGRAM
go list -m -f '{{.Version}}' github.com/reugn/go-quartz | cut -c2-
go run .
