#!/bin/sh
# nsqd 1.3.0 delivers delayed messages at once after a clean restart, and those beyond its memory at once without one.
#
# The delay is kept in memory only. A message that waits when nsqd exits is written to disk without it. A message of a
# topic without a channel, beyond `mem-queue-size` (10,000; 10 here), goes to disk too. The sender has the answer OK, and
# the log only counts the deferred messages that are written.
#
# Consequence: a restart for an update delivers each delayed and each requeued message early, all at the same time.
# Remedy: the due time in the message, and a consumer that requeues what is early.
#
# Output: 1.3.0
#         delay 1 h, clean restart: delivered after less than 10 s
#         delay 1 h, 30 messages to a topic without a channel, memory for 10: 20 delivered after less than 10 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module restart

go 1.24

require (
	github.com/nsqio/go-nsq v1.1.0
	github.com/nsqio/nsq v1.3.0
)
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	client "github.com/nsqio/go-nsq"
	"github.com/nsqio/nsq/nsqd"
)

const limit = 10 * time.Second

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func start(folder string) *nsqd.NSQD {
	must(os.MkdirAll(folder, 0o700))
	options := nsqd.NewOptions()
	options.DataPath = folder
	options.TCPAddress, options.HTTPAddress, options.HTTPSAddress = "127.0.0.1:0", "127.0.0.1:0", ""
	options.BroadcastAddress = "127.0.0.1"
	options.MemQueueSize = 10
	options.Logger = log.New(os.Stderr, "", 0)
	options.LogLevel = nsqd.LOG_FATAL
	server, err := nsqd.New(options)
	must(err)
	go func() { must(server.Main()) }()
	return server
}

func consume(server *nsqd.NSQD, topic string) (*client.Consumer, chan string) {
	received := make(chan string, 100)
	consumer, err := client.NewConsumer(topic, "channel", client.NewConfig())
	must(err)
	consumer.SetLoggerLevel(client.LogLevelMax)
	consumer.AddHandler(client.HandlerFunc(func(message *client.Message) error {
		received <- string(message.Body)
		return nil
	}))
	must(consumer.ConnectToNSQD(server.RealTCPAddr().String()))
	return consumer, received
}

func send(server *nsqd.NSQD, topic string, count int) {
	producer, err := client.NewProducer(server.RealTCPAddr().String(), client.NewConfig())
	must(err)
	producer.SetLoggerLevel(client.LogLevelMax)
	for range count {
		must(producer.DeferredPublish(topic, time.Hour, []byte("due in an hour")))
	}
	producer.Stop()
}

// arrived counts messages until none has come for the limit.
func arrived(received chan string, most int) (count int) {
	for count < most {
		select {
		case <-received:
			count++
		case <-time.After(limit):
			return
		}
	}
	return
}

func main() {
	fmt.Println("1.3.0")
	server := start("first")
	consumer, received := consume(server, "restarted")
	send(server, "restarted", 1)
	if count := arrived(received, 1); count != 0 {
		panic("changed: delivered before the restart")
	}
	consumer.Stop()
	<-consumer.StopChan
	server.Exit()
	server = start("first")
	consumer, received = consume(server, "restarted")
	if count := arrived(received, 1); count != 1 {
		panic("changed: not delivered after the restart")
	}
	fmt.Println("delay 1 h, clean restart: delivered after less than 10 s")
	consumer.Stop()
	<-consumer.StopChan
	send(server, "many", 30)
	consumer, received = consume(server, "many")
	count := arrived(received, 30)
	fmt.Print("delay 1 h, 30 messages to a topic without a channel, memory for 10: ")
	fmt.Println(count, "delivered after less than 10 s")
	if count != 20 {
		panic("changed")
	}
	consumer.Stop()
	<-consumer.StopChan
	server.Exit()
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go run .
