#!/bin/sh
# go-zero 1.10.3: its timing wheel runs a task up to two intervals before its time.
#
# `SetTimer` rounds the delay down to whole intervals and counts them from the last tick, so the present interval counts
# as a whole one. At an interval of 1 s a delay of 1.9 s ends at the next tick, after 0 to 1 s, and one of 3 s after 2 to
# 3 s. `collection.Cache` drops its entries by such a wheel of 1 s.
#
# Consequence: a lease or a pause of a few intervals, timed by the wheel, loses a large part of its length.
# Remedy: a delay longer by two intervals, or a finer interval.
#
# Output: 1.10.3
#         10 delays of 1.9 s: waited 0.08 to 0.95 s
#         10 delays of 3 s: waited 2.06 to 2.94 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
PATH="$PATH:/usr/local/go/bin"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module early

go 1.25

require github.com/zeromicro/go-zero v1.10.3
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"fmt"
	"time"

	"github.com/zeromicro/go-zero/core/collection"
)

const (
	count    = 10
	interval = time.Second
)

// waits returns the shortest and the longest wait of ten timers set at ten points of an interval.
func waits(delay time.Duration) (least, most time.Duration) {
	ended := make(chan time.Duration, count)
	wheel, err := collection.NewTimingWheel(interval, 300, func(_, start any) {
		ended <- time.Since(start.(time.Time))
	})
	if err != nil {
		panic(err)
	}
	defer wheel.Stop()
	for number := range count {
		time.Sleep(interval * 11 / 10)
		if err := wheel.SetTimer(number, time.Now(), delay); err != nil {
			panic(err)
		}
	}
	least = time.Hour
	for range count {
		wait := <-ended
		least, most = min(least, wait), max(most, wait)
	}
	return
}

func main() {
	least, most := waits(1900 * time.Millisecond)
	fmt.Printf("%d delays of 1.9 s: waited %.2f to %.2f s\n", count, least.Seconds(), most.Seconds())
	whole, late := waits(3 * time.Second)
	fmt.Printf("%d delays of 3 s: waited %.2f to %.2f s\n", count, whole.Seconds(), late.Seconds())
	if least > 500*time.Millisecond || whole > 2500*time.Millisecond {
		panic("changed")
	}
}
PROGRAM
go list -m -f '{{.Version}}' github.com/zeromicro/go-zero | cut -c2-
go run .
