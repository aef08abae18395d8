#!/bin/sh
# NATS 2.15.3 accepts a scheduled message that it will never deliver.
#
# The message waits in its stream, so each limit of the stream removes it like any other: `max_age` before its time,
# `max_msgs` after newer messages, its own `Nats-TTL`. A message without a schedule on the same subject replaces it. A
# consumer of the whole work queue receives the schedule at once, and its acknowledgement removes it. The publisher has
# the same acknowledgement in each case.
#
# Consequence: a stream that keeps messages for a day loses each one that is scheduled for later.
# Remedy: schedules in a stream of their own without limits, and a consumer with a filter for the targets.
#
# Output: 2.15.3
#         due in 3 s, no limit: accepted, delivered
#         due in 3 s, max_age 1 s: accepted, lost
#         due in 3 s, max_msgs 5 and 5 newer messages: accepted, lost
#         due in 3 s, Nats-TTL 1 s: accepted, lost
#         due in 3 s, a newer message on the same subject: accepted, lost
#         due in 3 s, a work queue and a consumer of all: accepted, lost
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module lost

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

type test struct {
	text, settings, ttl string
	then                func(js nats.JetStreamContext, stream string)
	delivered           bool
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func publish(js nats.JetStreamContext, subject string, count int) {
	for range count {
		_, err := js.Publish(subject, nil)
		must(err)
	}
}

var tests = []test{
	{text: "no limit", delivered: true},
	{text: "max_age 1 s", settings: `,"max_age":1000000000`},
	{text: "max_msgs 5 and 5 newer messages", settings: `,"max_msgs":5`,
		then: func(js nats.JetStreamContext, stream string) { publish(js, stream+".other", 5) }},
	{text: "Nats-TTL 1 s", ttl: "1s"},
	{text: "a newer message on the same subject",
		then: func(js nats.JetStreamContext, stream string) { publish(js, stream+".schedule", 1) }},
	{text: "a work queue and a consumer of all", settings: `,"retention":"workqueue"`,
		then: func(js nats.JetStreamContext, stream string) {
			consumer, err := js.PullSubscribe("", "all", nats.BindStream(stream))
			must(err)
			messages, err := consumer.Fetch(1)
			must(err)
			must(messages[0].AckSync())
		}},
}

func main() {
	fmt.Println(server.VERSION)
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: "data", NoSigs: true})
	must(err)
	broker.Start()
	if !broker.ReadyForConnections(30 * time.Second) {
		panic("no server")
	}
	connection, err := nats.Connect(broker.ClientURL())
	must(err)
	js, err := connection.JetStream()
	must(err)
	for number, one := range tests {
		stream := fmt.Sprintf("S%d", number)
		settings := fmt.Sprintf(`{"name":"%s","subjects":["%s.>"],"allow_msg_schedules":true,"allow_msg_ttl":true%s}`,
			stream, stream, one.settings)
		_, err = connection.Request("$JS.API.STREAM.CREATE."+stream, []byte(settings), 30*time.Second)
		must(err)
		message := nats.NewMsg(stream + ".schedule")
		message.Header.Set("Nats-Schedule", "@at "+time.Now().Add(3*time.Second).UTC().Format(time.RFC3339Nano))
		message.Header.Set("Nats-Schedule-Target", stream+".target")
		if one.ttl != "" {
			message.Header.Set("Nats-TTL", one.ttl)
		}
		_, err = js.PublishMsg(message)
		must(err)
		if one.then != nil {
			one.then(js, stream)
		}
		time.Sleep(8 * time.Second)
		found, err := js.StreamInfo(stream, &nats.StreamInfoRequest{SubjectsFilter: stream + ".target"})
		must(err)
		delivered := found.State.Subjects[stream+".target"] == 1
		fmt.Printf("due in 3 s, %s: accepted, %s\n", one.text, map[bool]string{true: "delivered", false: "lost"}[delivered])
		if delivered != one.delivered {
			panic("changed")
		}
	}
	broker.Shutdown()
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go run .
