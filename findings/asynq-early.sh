#!/bin/sh
# asynq 0.26.0 (Go) runs a task up to a second before its time.
#
# `Enqueue` answers with the exact time, but Redis has it in whole seconds, cut off. A server that looks often runs a
# task for x.9 s at x.0 s. At the default of a look every 5 s, one in ten tasks with random times would be early.
#
# Consequence: a handler that checks its own due time finds it in the future, and the answer does not show it.
# Remedy: round the time up to a whole second.
#
# Output: Redis server v=7.0.15
#         0.26.0
#         answer: the same time; at .9 of a second: early by 0.5 s; at .0: not early
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$(dirname "$0")/redis.sh"
cd "$folder"
mkdir task
cd task
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
cat >go.mod <<'MANIFEST'
module early

go 1.24

require github.com/hibiken/asynq v0.26.0
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	fmt.Println("0.26.0")
	redis := asynq.RedisClientOpt{Network: "unix", Addr: "../redis.sock"}
	client := asynq.NewClient(redis)
	ran := make(chan time.Time)
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran <- time.Now()
		return nil
	})
	often := asynq.Config{LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: 20 * time.Millisecond}
	server := asynq.NewServer(redis, often)
	if err := server.Start(handler); err != nil {
		panic(err)
	}
	early := func(part time.Duration) time.Duration {
		due := time.Now().Truncate(time.Second).Add(2*time.Second + part)
		task, err := client.Enqueue(asynq.NewTask("note", nil), asynq.ProcessAt(due))
		if err != nil || !task.NextProcessAt.Equal(due) {
			panic(fmt.Sprint("changed: ", task, err))
		}
		return due.Sub(<-ran)
	}
	cut, whole := early(900*time.Millisecond), early(0)
	fmt.Printf("answer: the same time; at .9 of a second: early by %.1f s; ", cut.Seconds())
	if cut < 100*time.Millisecond || whole > 0 {
		panic(fmt.Sprint("changed: ", cut, whole))
	}
	fmt.Println("at .0: not early")
	server.Shutdown()
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go run .
