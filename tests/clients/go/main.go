// What RocketMQ's official Go client does with a cluster: main HOST:PORT,HOST:PORT.
// Each scenario prints its name once it has gone well. `../official.py` says what has to be there before, and which
// variables say how to connect. With CLIENTS_CA the client verifies the gateway's certificate, which it never does by
// itself.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// On a busy machine; nothing may come early, not even by a millisecond.
const lateMax = 20 * time.Second
const patience = 120 * time.Second

var ctx = context.Background()
var addresses = strings.Split(os.Args[1], ",")

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(ok bool, what ...any) {
	if !ok {
		panic(fmt.Sprint(what...))
	}
}

// verify makes all connections from now on trust this CA and no other.
func verify(caFile string) {
	ca, err := os.ReadFile(caFile)
	must(err)
	pool := x509.NewCertPool()
	check(pool.AppendCertsFromPEM(ca), "no certificate in ", caFile)
	connect := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, options ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		verifying := rmq.WithTLSConfig(&tls.Config{RootCAs: pool})
		return connect(target, append(options, rmq.WithRpcClientConnOption(verifying))...)
	}
}

func config(group string, namespace string) *rmq.Config {
	addresses = append(addresses[1:], addresses[0])
	keys := &credentials.SessionCredentials{AccessKey: os.Getenv("CLIENTS_ACCESS_KEY"), AccessSecret: os.Getenv("CLIENTS_SECRET")}
	return &rmq.Config{Endpoint: addresses[0], NameSpace: namespace, ConsumerGroup: group, Credentials: keys}
}

func producing(namespace string, use func(rmq.Producer), options ...rmq.ProducerOption) {
	producer, err := rmq.NewProducer(config("", namespace), options...)
	must(err)
	must(producer.Start())
	use(producer)
	must(producer.GracefulStop())
}

func consuming(namespace string, group string, topic string, wanted *rmq.FilterExpression, use func(rmq.SimpleConsumer)) {
	subscription := map[string]*rmq.FilterExpression{topic: wanted}
	consumer, err := rmq.NewSimpleConsumer(config(group, namespace), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(subscription))
	must(err)
	must(consumer.Start())
	use(consumer)
	must(consumer.GracefulStop())
}

func pushing(group string, topic string, consume func(*rmq.MessageView) bool, use func()) {
	listener := &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		if consume(message) {
			return rmq.SUCCESS
		}
		return rmq.FAILURE
	}}
	push, err := rmq.NewPushConsumer(config(group, ""), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(listener))
	must(err)
	must(push.Start())
	use()
	must(push.GracefulStop())
}

func send(producer rmq.Producer, topic string, body string, change func(*rmq.Message)) *rmq.SendReceipt {
	message := &rmq.Message{Topic: topic, Body: []byte(body)}
	if change != nil {
		change(message)
	}
	receipts, err := producer.Send(ctx, message)
	must(err)
	return receipts[0]
}

func lease(consumer rmq.SimpleConsumer, count int, invisible time.Duration) []*rmq.MessageView {
	var found []*rmq.MessageView
	for giveUp := time.Now().Add(patience); len(found) < count && time.Now().Before(giveUp); {
		found = append(found, poll(consumer, invisible)...)
	}
	check(len(found) == count, texts(found), " are not ", count)
	return found
}

func poll(consumer rmq.SimpleConsumer, invisible time.Duration) []*rmq.MessageView {
	some, err := consumer.Receive(ctx, 32, invisible)
	if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
		panic(err)
	}
	return some
}

func receive(consumer rmq.SimpleConsumer, count int) []*rmq.MessageView {
	found := lease(consumer, count, 60*time.Second)
	for _, one := range found {
		must(consumer.Ack(ctx, one))
	}
	return found
}

func texts(messages []*rmq.MessageView) string {
	var found []string
	for _, one := range messages {
		found = append(found, string(one.GetBody()))
	}
	sort.Strings(found)
	return strings.Join(found, " ")
}

// notes are what listeners, which run beside each other, have seen.
type notes struct {
	lock sync.Mutex
	seen []string
}

func (n *notes) add(what string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.seen = append(n.seen, what)
}

func (n *notes) all() []string {
	n.lock.Lock()
	defer n.lock.Unlock()
	return append([]string{}, n.seen...)
}

func (n *notes) wait(count int) {
	for giveUp := time.Now().Add(patience); len(n.all()) < count; time.Sleep(20 * time.Millisecond) {
		check(time.Now().Before(giveUp), n.all(), " are less than ", count)
	}
}

// --- scenarios ------------------------------------------------------------------------------------------------------

func normal() string {
	sent := map[string]bool{}
	producing("", func(producer rmq.Producer) {
		for number := 0; number < 10; number++ {
			sent[send(producer, "normal", fmt.Sprint("normal-", number), func(message *rmq.Message) {
				message.SetTag("t")
				message.SetKeys("k")
				message.AddProperty("colour", "blue")
			}).MessageID] = true
		}
		send(producer, "second", "second", nil)
	}, rmq.WithTopics("normal", "second"))
	consuming("", "normal", "normal", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
		for _, one := range receive(consumer, 10) {
			check(sent[one.GetMessageId()] && *one.GetTag() == "t" && one.GetKeys()[0] == "k" &&
				one.GetProperties()["colour"] == "blue" && one.GetDeliveryAttempt() == 1, one)
		}
	})
	return ""
}

func delayed() string {
	var seen notes
	pushing("delayed", "delayed", func(message *rmq.MessageView) bool {
		now := time.Now().UnixMilli()
		due, err := strconv.ParseInt(string(message.GetBody()), 10, 64)
		must(err)
		check(message.GetDeliveryTimestamp().UnixMilli() == due, message.GetDeliveryTimestamp())
		seen.add(fmt.Sprint(now - due))
		return true
	}, func() {
		producing("", func(producer rmq.Producer) {
			for number := 0; number < 20; number++ {
				due := time.UnixMilli(time.Now().UnixMilli() + 500 + int64(number)*101)
				send(producer, "delayed", fmt.Sprint(due.UnixMilli()), func(message *rmq.Message) { message.SetDelayTimestamp(due) })
			}
			seen.wait(20)
		}, rmq.WithTopics("delayed"))
	})
	var lateness []int
	for _, one := range seen.all() {
		late, err := strconv.Atoi(one)
		must(err)
		lateness = append(lateness, late)
	}
	sort.Ints(lateness)
	check(lateness[0] >= 0 && int64(lateness[len(lateness)-1]) < lateMax.Milliseconds(), lateness)
	return fmt.Sprint(lateness[0], " to ", lateness[len(lateness)-1], " ms late")
}

func recalls() string {
	producing("", func(producer rmq.Producer) {
		later := send(producer, "recalls", "later", func(message *rmq.Message) { message.SetDelayTimestamp(time.Now().Add(time.Hour)) })
		recalled, err := producer.Recall(ctx, "recalls", later.RecallHandle)
		must(err)
		check(recalled == later.MessageID, recalled)
		soon := send(producer, "recalls", "soon", func(message *rmq.Message) { message.SetDelayTimestamp(time.Now().Add(500 * time.Millisecond)) })
		consuming("", "recalls", "recalls", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
			check(texts(receive(consumer, 1)) == "soon", "another one came")
		})
		_, err = producer.Recall(ctx, "recalls", soon.RecallHandle)
		check(err != nil && strings.Contains(err.Error(), "has been delivered"), err)
	}, rmq.WithTopics("recalls"))
	return ""
}

func transactions() string {
	var asked notes
	checker := &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		asked.add(string(message.GetBody()))
		if string(message.GetBody()) == "rollback" {
			return rmq.ROLLBACK
		}
		return rmq.COMMIT
	}}
	producing("", func(producer rmq.Producer) {
		for _, end := range []string{"commit", "rollback", "checked"} {
			transaction := producer.BeginTransaction()
			_, err := producer.SendWithTransaction(ctx, &rmq.Message{Topic: "transactions", Body: []byte(end)}, transaction)
			must(err)
			switch end {
			case "commit":
				must(transaction.Commit())
			case "rollback":
				must(transaction.RollBack())
			}
		}
		consuming("", "transactions", "transactions", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
			found := texts(receive(consumer, 2))
			check(found == "checked commit", found)
			check(len(poll(consumer, 30*time.Second)) == 0, "one more came")
		})
	}, rmq.WithTopics("transactions"), rmq.WithTransactionChecker(checker))
	check(slices.Contains(asked.all(), "checked"), asked.all())
	return ""
}

func leases() string {
	producing("", func(producer rmq.Producer) { send(producer, "leases", "lapse", nil) }, rmq.WithTopics("leases"))
	consuming("", "leases", "leases", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
		lease(consumer, 1, time.Second)
		second := lease(consumer, 1, 60*time.Second)[0]
		check(second.GetDeliveryAttempt() == 2, second.GetDeliveryAttempt())
		began := time.Now()
		must(consumer.ChangeInvisibleDuration(second, 2*time.Second))
		third := receive(consumer, 1)[0]
		passed := time.Since(began)
		check(passed >= 2*time.Second && passed < 2*time.Second+lateMax && third.GetDeliveryAttempt() == 3, passed)
	})
	return ""
}

func failing() string {
	var seen notes
	pushing("failing", "failing", func(message *rmq.MessageView) bool {
		seen.add(fmt.Sprint(string(message.GetBody()), " ", message.GetDeliveryAttempt()))
		return string(message.GetBody()) != "bad"
	}, func() {
		producing("", func(producer rmq.Producer) {
			send(producer, "failing", "good", nil)
			send(producer, "failing", "bad", nil)
			seen.wait(3)
		}, rmq.WithTopics("failing"))
	})
	found := seen.all()
	sort.Strings(found)
	check(strings.Join(found, ",") == "bad 1,bad 2,good 1", found)
	return ""
}

// None of them fails: the client goes on behind a failed message of its batch.
func ordered() string {
	var expected []string
	producing("", func(producer rmq.Producer) {
		for number := 0; number < 20; number++ {
			send(producer, "ordered", fmt.Sprint(number), func(message *rmq.Message) { message.SetMessageGroup("one") })
			expected = append(expected, fmt.Sprint(number))
		}
	}, rmq.WithTopics("ordered"))
	var seen notes
	pushing("ordered", "ordered", func(message *rmq.MessageView) bool {
		seen.add(string(message.GetBody()))
		return true
	}, func() { seen.wait(len(expected)) })
	check(strings.Join(seen.all(), " ") == strings.Join(expected, " "), seen.all())
	return ""
}

func groups() string {
	producing("", func(producer rmq.Producer) {
		for _, body := range []string{"a", "b", "c"} {
			send(producer, "groups", body, nil)
		}
	}, rmq.WithTopics("groups"))
	for _, group := range []string{"one", "other"} {
		consuming("", group, "groups", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
			check(texts(receive(consumer, 3)) == "a b c", group)
		})
	}
	return ""
}

func filters() string {
	producing("", func(producer rmq.Producer) {
		for _, number := range []string{"1", "2", "3"} {
			send(producer, "filters", number, func(message *rmq.Message) {
				message.SetTag("f" + number)
				message.AddProperty("weight", number)
			})
		}
	}, rmq.WithTopics("filters"))
	wanted := func(group string, filter *rmq.FilterExpression, expected string) {
		consuming("", group, "filters", filter, func(consumer rmq.SimpleConsumer) {
			found := texts(receive(consumer, 2))
			check(found == expected, found)
		})
	}
	wanted("by-tags", rmq.NewFilterExpression("f1 || f3"), "1 3")
	wanted("by-sql", rmq.NewFilterExpressionWithType("weight > 1 and weight is not null", rmq.SQL92), "2 3")
	return ""
}

func namespaces() string {
	producing("shop", func(producer rmq.Producer) { send(producer, "normal", "shop", nil) }, rmq.WithTopics("normal"))
	consuming("shop", "normal", "normal", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
		one := receive(consumer, 1)[0]
		check(one.GetTopic() == "normal" && string(one.GetBody()) == "shop", one.GetTopic())
	})
	return ""
}

func large() string {
	body := bytes.Repeat([]byte("x"), 4*1024*1024)
	producing("", func(producer rmq.Producer) { send(producer, "large", string(body), nil) }, rmq.WithTopics("large"))
	consuming("", "large", "large", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
		check(bytes.Equal(receive(consumer, 1)[0].GetBody(), body), "another body came")
	})
	return ""
}

func lites() string {
	var seen notes
	listener := &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		check(strings.HasPrefix(string(message.GetBody()), message.GetLiteTopic()), message.GetLiteTopic())
		seen.add(string(message.GetBody()))
		return rmq.SUCCESS
	}}
	consumer, err := rmq.NewLitePushConsumer(config("lites", ""), rmq.NewLitePushConsumerConfig("rooms", 30*time.Second),
		rmq.WithPushAwaitDuration(5*time.Second), rmq.WithPushMessageListener(listener))
	must(err)
	must(consumer.Start())
	must(consumer.SubscribeLite("a"))
	producing("", func(producer rmq.Producer) {
		for number := 0; number < 3; number++ {
			for _, lite := range []string{"a", "b"} {
				send(producer, "rooms", fmt.Sprint(lite, number), func(message *rmq.Message) { message.SetLiteTopic(lite) })
			}
		}
	}, rmq.WithTopics("rooms"))
	seen.wait(3)
	check(strings.Join(seen.all(), " ") == "a0 a1 a2", seen.all())
	must(consumer.SubscribeLite("b"))
	seen.wait(6)
	check(strings.Join(seen.all(), " ") == "a0 a1 a2 b0 b1 b2", seen.all())
	must(consumer.UnSubscribeLite("a"))
	must(consumer.GracefulStop())
	return ""
}

// A received message does not tell its priority.
func priorities() string {
	producing("", func(producer rmq.Producer) {
		for _, priority := range []int32{0, 2, 1} {
			send(producer, "alerts", fmt.Sprint(priority), func(message *rmq.Message) { must(message.SetPriority(priority)) })
		}
	}, rmq.WithTopics("alerts"))
	consuming("", "priorities", "alerts", rmq.SUB_ALL, func(consumer rmq.SimpleConsumer) {
		var found []string
		for _, one := range receive(consumer, 3) {
			found = append(found, string(one.GetBody()))
		}
		check(strings.Join(found, " ") == "2 1 0", found)
	})
	return ""
}

func main() {
	rmq.EnableSsl = os.Getenv("CLIENTS_TLS") != ""
	if caFile := os.Getenv("CLIENTS_CA"); caFile != "" {
		verify(caFile)
	}
	if len(os.Args) > 2 {
		killed(os.Args[2], os.Args[3:])
	}
	scenarios := []struct {
		name string
		run  func() string
	}{
		{"normal", normal}, {"delayed", delayed}, {"recalls", recalls}, {"transactions", transactions},
		{"leases", leases}, {"failing", failing}, {"ordered", ordered}, {"groups", groups}, {"filters", filters},
		{"namespaces", namespaces}, {"large", large}, {"lites", lites}, {"priorities", priorities},
	}
	for _, one := range scenarios {
		if only := os.Getenv("CLIENTS_ONLY"); only == "" || only == one.name {
			began := time.Now()
			said := one.run()
			fmt.Printf("%s %.1f s %s\n", one.name, time.Since(began).Seconds(), said)
		}
	}
	fmt.Println("all went well")
}
