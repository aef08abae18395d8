#!/bin/sh
# Watermill 1.5.1 with watermill-sql 4.1.2 delivers delayed messages up to a second early.
#
# The publisher stores the end of a delay as text in whole seconds, and PostgreSQL compares it with the exact time. So a
# delay of less than a second may be none: here each ends at .9 of a second. The other field, with the length of the delay,
# is exact but not used. The subscriber looks each 20 ms here, by default each second.
#
# Consequence: a consumer that checks the time of its message finds it in the future.
# Remedy: a delay longer by a second.
#
# Output: postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
#         1.5.1, watermill-sql 4.1.2
#         delay 900ms: 5 of 5 early, up to 0.90 s
#         delay 2.9s: 5 of 5 early, up to 0.90 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts=$(cd "$(dirname "$0")" && pwd)
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
PATH="$PATH:/usr/local/go/bin"
mkdir "$folder/program"
cd "$folder/program"
cat >go.mod <<'MANIFEST'
module early

go 1.25

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/ThreeDotsLabs/watermill-sql/v4 v4.1.2
	github.com/lib/pq v1.10.9
)
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watersql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
)

const count = 5

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	connections, err := sql.Open("postgres", "sslmode=disable user=postgres host="+os.Args[1])
	must(err)
	database := watersql.BeginnerFromStdSQL(connections)
	publisher, err := watersql.NewDelayedPostgreSQLPublisher(database, watersql.DelayedPostgreSQLPublisherConfig{})
	must(err)
	subscriber, err := watersql.NewDelayedPostgreSQLSubscriber(database, watersql.DelayedPostgreSQLSubscriberConfig{
		DeleteOnAck: true,
		OverrideSubscriberConfig: func(config *watersql.SubscriberConfig) error {
			config.PollInterval = 20 * time.Millisecond
			return nil
		},
	})
	must(err)
	messages, err := subscriber.Subscribe(context.Background(), "topic")
	must(err)
	for _, length := range []time.Duration{900 * time.Millisecond, 2900 * time.Millisecond} {
		var early int
		var most time.Duration
		for range count {
			delayed := message.NewMessage(watermill.NewUUID(), []byte("{}"))
			// Both delays that begin with a second end at .9 of one.
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
			due := time.Now().Add(length)
			delayed.SetContext(delay.WithContext(context.Background(), delay.Until(due)))
			must(publisher.Publish("topic", delayed))
			received := <-messages
			if before := time.Until(due); before > 0 {
				early++
				most = max(most, before)
			}
			received.Ack()
		}
		fmt.Printf("delay %s: %d of %d early, up to %.2f s\n", length, early, count, most.Seconds())
		if early < 3 || most < 300*time.Millisecond {
			panic("changed")
		}
	}
}
PROGRAM
go build -o "$folder/early" . 2>"$folder/build.log" || { cat "$folder/build.log"; exit 1; }
versions=$(go list -m -f '{{.Version}}' github.com/ThreeDotsLabs/watermill github.com/ThreeDotsLabs/watermill-sql/v4)
. "$scripts/postgresql.sh"
echo "$versions" | tr '\n' ' ' | sed 's/v\([^ ]*\) v\([^ ]*\) /\1, watermill-sql \2\n/'
"$folder/early" "$folder"
