package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// What `../killed.py` does, by this client: main HOST:PORT ROLE COUNT SEED. Due times are milliseconds.

const (
	killsTopic  = "kills"
	workers     = 8
	leased      = 15 * time.Second
	delayMsMax  = 10_000
	forgetful   = 0.02
	rest        = 200 * time.Millisecond
	normalKind  = "normal"
	delayedKind = "delayed"
	commitKind  = "committed"
	rollKind    = "rolled back"
	checkedKind = "checked"
)

var out sync.Mutex

func say(what ...any) {
	line, err := json.Marshal(what)
	must(err)
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}

// started is a client, once its gateway lets it start.
func started[T interface{ Start() error }](make func() (T, error)) T {
	for {
		client, err := make()
		if err == nil {
			err = client.Start()
		}
		if err == nil {
			return client
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(rest)
	}
}

func kindOf(dice *rand.Rand) string {
	switch number := dice.Intn(100); {
	case number < 40:
		return normalKind
	case number < 90:
		return delayedKind
	case number < 96:
		return commitKind
	case number < 98:
		return rollKind
	}
	return checkedKind
}

// decisionOf is where all producers find what was decided of a transaction.
func decisionOf(body string) string {
	return filepath.Join(os.Getenv("CLIENTS_DECISIONS"), body)
}

func decide(body string, what string) {
	must(os.WriteFile(decisionOf(body), []byte(what), 0o600))
}

// killedProducer sends `count` messages, each again and again until it is sent, with another body for each try.
func killedProducer(count int, seed int64) {
	checker := &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		switch decision, _ := os.ReadFile(decisionOf(string(message.GetBody()))); string(decision) {
		case "commit":
			return rmq.COMMIT
		case "rollback":
			return rmq.ROLLBACK
		}
		return rmq.UNKNOWN
	}}
	producer := started(func() (rmq.Producer, error) {
		return rmq.NewProducer(config("", ""), rmq.WithTopics(killsTopic), rmq.WithTransactionChecker(checker))
	})
	try := func(body string, kind string, delay time.Duration) bool {
		message := &rmq.Message{Topic: killsTopic, Body: []byte(body)}
		var due int64
		if kind == delayedKind {
			at := time.UnixMilli(time.Now().Add(delay).UnixMilli())
			message.SetDelayTimestamp(at)
			due = at.UnixMilli()
		}
		if kind == normalKind || kind == delayedKind {
			_, err := producer.Send(ctx, message)
			say(body, due, kind, err == nil, "sent")
			return err == nil
		}
		transaction := producer.BeginTransaction()
		if _, err := producer.SendWithTransaction(ctx, message, transaction); err != nil {
			// It was not begun, whatever the store has of it.
			decide(body, "rollback")
			say(body, due, kind, false, "sent")
			return false
		}
		// What fails here, a check asks for.
		switch kind {
		case rollKind:
			decide(body, "rollback")
			_ = transaction.RollBack()
		case commitKind:
			decide(body, "commit")
			_ = transaction.Commit()
		default:
			decide(body, "commit")
		}
		say(body, due, kind, true, "sent")
		return true
	}
	var all sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			dice := rand.New(rand.NewSource(seed + int64(worker)))
			for number := worker; number < count; number += workers {
				kind, delay := kindOf(dice), time.Duration(1+dice.Intn(delayMsMax))*time.Millisecond
				for attempt := 0; !try(fmt.Sprintf("%d-%d.%d", seed, number, attempt), kind, delay); attempt++ {
					time.Sleep(rest)
				}
			}
		}()
	}
	all.Wait()
	say("done")
	select {}
}

func killedSimple(seed int64) {
	dice := rand.New(rand.NewSource(seed))
	subscription := map[string]*rmq.FilterExpression{killsTopic: rmq.SUB_ALL}
	consumer := started(func() (rmq.SimpleConsumer, error) {
		return rmq.NewSimpleConsumer(config("simple", ""), rmq.WithSimpleAwaitDuration(5*time.Second),
			rmq.WithSimpleSubscriptionExpressions(subscription))
	})
	for {
		messages, err := consumer.Receive(ctx, 32, leased)
		if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
			time.Sleep(rest)
		}
		// All at this moment: by the time that one is settled, its lease may be over.
		at := time.Now().UnixMilli()
		for _, message := range messages {
			say("simple", string(message.GetBody()), message.GetDeliveryAttempt(), at, "got")
		}
		for _, message := range messages {
			if message.GetDeliveryAttempt() == 1 && dice.Float64() < forgetful {
				continue
			}
			// Its Ack is nil whatever the gateway's status says, so that nothing may be concluded from it.
			_ = consumer.Ack(ctx, message)
		}
	}
}

func killedPush() {
	subscription := map[string]*rmq.FilterExpression{killsTopic: rmq.SUB_ALL}
	listener := &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		say("push", string(message.GetBody()), message.GetDeliveryAttempt(), time.Now().UnixMilli(), "got")
		return rmq.SUCCESS
	}}
	started(func() (rmq.PushConsumer, error) {
		return rmq.NewPushConsumer(config("push", ""), rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(subscription), rmq.WithPushMessageListener(listener))
	})
	select {}
}

func killed(role string, arguments []string) {
	count, err := strconv.Atoi(arguments[0])
	must(err)
	seed, err := strconv.ParseInt(arguments[1], 10, 64)
	must(err)
	switch role {
	case "produce":
		killedProducer(count, seed)
	case "simple":
		killedSimple(seed)
	case "push":
		killedPush()
	}
}
