#!/bin/sh
# NATS 2.15.3: after a restart, messages that were refused with a delay return up to a second early.
#
# The server writes the times of a consumer's pending messages in whole seconds. `NakWithDelay` is exact while the server
# runs. After a clean restart each of ten delays with parts of a second ends too early.
#
# Consequence: a consumer that checks the time of its retry finds it in the future, after an update of the server only.
# Remedy: another `NakWithDelay` for the rest.
#
# Output: 2.15.3
#         without a restart: 0 of 10 early
#         with a restart: 10 of 10 early, up to 1.0 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module early

go 1.25

require (
	github.com/nats-io/nats-server/v2 v2.15.3
	github.com/nats-io/nats.go v1.55.0
)
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const count = 10

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func start(folder string) (*server.Server, *nats.Conn, nats.JetStreamContext) {
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: folder, NoSigs: true})
	must(err)
	broker.Start()
	if !broker.ReadyForConnections(30 * time.Second) {
		panic("no server")
	}
	connection, err := nats.Connect(broker.ClientURL())
	must(err)
	js, err := connection.JetStream()
	must(err)
	return broker, connection, js
}

// run returns how many messages came before their time, and the earliest.
func run(folder string, restart bool) (early int, most time.Duration) {
	broker, connection, js := start(folder)
	_, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s"}})
	must(err)
	consumer, err := js.PullSubscribe("s", "c", nats.AckExplicit())
	must(err)
	for number := range count {
		_, err := js.Publish("s", []byte{byte(number)})
		must(err)
	}
	var due [count]time.Time
	messages, err := consumer.Fetch(count)
	must(err)
	for number, message := range messages {
		delay := 8*time.Second + time.Duration(number)*370*time.Millisecond
		due[message.Data[0]] = time.Now().Add(delay)
		must(message.NakWithDelay(delay))
	}
	must(connection.Flush())
	if restart {
		// The server has read all before it ends.
		_, err = js.ConsumerInfo("S", "c")
		must(err)
		connection.Close()
		broker.Shutdown()
		broker.WaitForShutdown()
		broker, connection, js = start(folder)
		consumer, err = js.PullSubscribe("s", "c", nats.Bind("S", "c"))
		must(err)
	}
	for range count {
		messages, err := consumer.Fetch(1, nats.MaxWait(60*time.Second))
		must(err)
		if before := time.Until(due[messages[0].Data[0]]); before > 0 {
			early++
			most = max(most, before)
		}
		must(messages[0].AckSync())
	}
	connection.Close()
	broker.Shutdown()
	return
}

func main() {
	fmt.Println(server.VERSION)
	early, _ := run("first", false)
	fmt.Printf("without a restart: %d of %d early\n", early, count)
	after, most := run("second", true)
	fmt.Printf("with a restart: %d of %d early, up to %.1f s\n", after, count, most.Seconds())
	if early != 0 || after < 3 || most < 300*time.Millisecond {
		panic("changed")
	}
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go run .
