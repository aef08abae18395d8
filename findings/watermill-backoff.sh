#!/bin/sh
# Watermill 1.5.1: `DelayOnError` with a multiplier of 1.5 never backs off.
#
# The middleware documents an exponential backoff with a float64 `Multiplier`. It drops the fraction: 1.5 keeps the
# interval as it is, and 2.5 is 2. Without `MaxInterval` the second and all further delays are 0. It takes the last delay from
# the message, so the delay with which a message was published, 20 min here, counts as a first interval.
#
# Consequence: consumers retry at the first rate for as long as an outage lasts, or without a pause.
# Remedy: a whole multiplier, `MaxInterval`, and no published delay on messages with this middleware.
#
# Output: 1.5.1
#         multiplier 1.5: 1s 1s 1s 1s 1s 1s
#         multiplier 2.5: 1s 2s 4s 8s 16s 32s
#         multiplier 2, no MaxInterval: 1s 0s 0s 0s 0s 0s
#         multiplier 2, published with 20 min: 40m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
PATH="$PATH:/usr/local/go/bin"
mkdir program
cd program
cat >go.mod <<'MANIFEST'
module backoff

go 1.25

require github.com/ThreeDotsLabs/watermill v1.5.1
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

func fail(*message.Message) ([]*message.Message, error) {
	return nil, errors.New("unavailable")
}

func main() {
	changed := false
	for _, test := range []struct {
		name       string
		multiplier float64
		most       time.Duration
		published  time.Duration
		expected   string
	}{
		{"1.5", 1.5, time.Hour, 0, "1s 1s 1s 1s 1s 1s"},
		{"2.5", 2.5, time.Hour, 0, "1s 2s 4s 8s 16s 32s"},
		{"2, no MaxInterval", 2, 0, 0, "1s 0s 0s 0s 0s 0s"},
		{"2, published with 20 min", 2, time.Hour, 20 * time.Minute, "40m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s"},
	} {
		backoff := middleware.DelayOnError{InitialInterval: time.Second, MaxInterval: test.most, Multiplier: test.multiplier}
		failing := message.NewMessage("1", nil)
		if test.published > 0 {
			delay.Message(failing, delay.For(test.published))
		}
		var delays []string
		for range 6 {
			if _, err := backoff.Middleware(fail)(failing); err == nil {
				panic("no error")
			}
			delays = append(delays, failing.Metadata.Get(delay.DelayedForKey))
		}
		found := strings.Join(delays, " ")
		fmt.Printf("multiplier %s: %s\n", test.name, found)
		changed = changed || found != test.expected
	}
	if changed {
		panic("changed")
	}
}
PROGRAM
go list -m -f '{{.Version}}' github.com/ThreeDotsLabs/watermill | cut -c2-
go run .
