// What an application in Go does with Pulsar, step by step, on topics of its own for each step.
//
// Prints a line for each: "ok NAME" or "FAIL NAME: why". Each step below is a test of its own.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const wait = 10 * time.Second

type tour struct {
	web, binary string
	log         plog.Logger
	client      pulsar.Client
	numbers     atomic.Int64
}

func main() {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	t := &tour{web: os.Args[1], binary: os.Args[2], log: plog.NewLoggerWithLogrus(quiet)}
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: t.binary, OperationTimeout: 20 * time.Second, EnableTransaction: true,
		Logger: t.log,
	})
	if err != nil {
		fmt.Println("FAIL connecting:", err)
		os.Exit(1)
	}
	t.client = client
	t.producing()
	t.subscribing()
	t.readingAgain()
	t.schemas()
	t.transactions()
	client.Close()
}

// step runs one of them; what it refuses with must* arrives here as a panic.
func step(name string, body func()) {
	defer func() {
		if failed := recover(); failed != nil {
			fmt.Println("FAIL", name+":", strings.ReplaceAll(fmt.Sprint(failed), "\n", " "))
		} else {
			fmt.Println("ok", name)
		}
	}()
	body()
}

func check(holds bool, otherwise string) {
	if !holds {
		panic(otherwise)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func done(err error) {
	if err != nil {
		panic(err)
	}
}

func (t *tour) topic(stem string) string {
	return fmt.Sprintf("persistent://public/default/go-%d-%s-%d", os.Getpid(), stem, t.numbers.Add(1))
}

func (t *tour) consumer(topic string, kind pulsar.SubscriptionType) pulsar.Consumer {
	return must(t.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:         100 * time.Millisecond,
	}))
}

func next(consumer pulsar.Consumer) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return must(consumer.Receive(ctx))
}

func nothing(consumer pulsar.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := consumer.Receive(ctx)
	check(errors.Is(err, context.DeadlineExceeded), "something came that should not have")
}

func (t *tour) publish(topic string, count int) []pulsar.MessageID {
	producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true}))
	defer producer.Close()
	var ids []pulsar.MessageID
	for number := 0; number < count; number++ {
		ids = append(ids, must(producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte{byte(number)}, Key: fmt.Sprintf("k%d", number%5),
		})))
	}
	return ids
}

func (t *tour) rest(method, path, body string) string {
	request := must(http.NewRequest(method, t.web+"/admin/v2/"+path, strings.NewReader(body)))
	request.Header.Set("Content-Type", "application/json")
	answer := must(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	told := string(must(io.ReadAll(answer.Body)))
	check(answer.StatusCode < 300, fmt.Sprint(method, path, answer.Status, told))
	return told
}

func (t *tour) producing() {
	step("batches, compressed", func() {
		for _, compression := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD} {
			topic := t.topic("batches")
			consumer := t.consumer(topic, pulsar.Exclusive)
			producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, CompressionType: compression}))
			for number := 0; number < 50; number++ {
				text := fmt.Sprint(number, strings.Repeat("x", 200))
				producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(text)},
					func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
			}
			done(producer.Flush())
			for number := 0; number < 50; number++ {
				message := next(consumer)
				check(string(message.Payload()) == fmt.Sprint(number, strings.Repeat("x", 200)), "out of order")
				done(consumer.Ack(message))
			}
		}
	})
	step("chunks", func() {
		topic := t.topic("chunks")
		consumer := t.consumer(topic, pulsar.Exclusive)
		producer := must(t.client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100_000,
		}))
		large := make([]byte, 3_000_000)
		rand.New(rand.NewSource(1)).Read(large)
		must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: large}))
		check(bytes.Equal(next(consumer).Payload(), large), "other bytes came")
	})
	step("delivered later", func() {
		topic := t.topic("later")
		consumer := t.consumer(topic, pulsar.Shared)
		producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic}))
		sent := time.Now()
		must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte{1}, DeliverAfter: 1500 * time.Millisecond}))
		must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte{2}}))
		check(next(consumer).Payload()[0] == 2, "what was not delayed came second")
		next(consumer)
		check(time.Since(sent) > 1300*time.Millisecond, "it came too early")
	})
	step("exclusive producers", func() {
		topic := t.topic("access")
		first := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive}))
		_, err := t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
		check(err != nil, "a second one was let in")
		first.Close()
		must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive}))
	})
	step("partitions", func() {
		topic := t.topic("partitions")
		t.rest("PUT", strings.Replace(topic, "://", "/", 1)+"/partitions", "3")
		check(len(must(t.client.TopicPartitions(topic))) == 3, "partitions")
		consumer := t.consumer(topic, pulsar.Shared)
		t.publish(topic, 30)
		places := map[string]int32{}
		for number := 0; number < 30; number++ {
			message := next(consumer)
			before, known := places[message.Key()]
			check(!known || before == message.ID().PartitionIdx(), "a key in two partitions")
			places[message.Key()] = message.ID().PartitionIdx()
			done(consumer.Ack(message))
		}
	})
}

func (t *tour) subscribing() {
	step("exclusive and failover", func() {
		topic := t.topic("exclusive")
		t.consumer(topic, pulsar.Exclusive)
		_, err := t.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
		check(err != nil, "a second consumer was let in")
		topic = t.topic("failover")
		first, second := t.consumer(topic, pulsar.Failover), t.consumer(topic, pulsar.Failover)
		t.publish(topic, 2)
		active, other := first, second
		select {
		case message := <-first.Chan():
			done(first.Ack(message.Message))
		case message := <-second.Chan():
			done(second.Ack(message.Message))
			active, other = second, first
		case <-time.After(wait):
			panic("nothing came")
		}
		active.Close()
		check(next(other).Payload()[0] == 1, "the other goes on where the first stood")
	})
	step("shared, refused and given again", func() {
		topic := t.topic("nack")
		consumer := t.consumer(topic, pulsar.Shared)
		t.publish(topic, 5)
		for again := 0; again < 5; {
			message := next(consumer)
			if message.RedeliveryCount() == 0 {
				consumer.Nack(message)
			} else {
				done(consumer.Ack(message))
				again++
			}
		}
	})
	step("key shared", func() {
		topic := t.topic("keyshared")
		consumers := []pulsar.Consumer{t.consumer(topic, pulsar.KeyShared), t.consumer(topic, pulsar.KeyShared)}
		t.publish(topic, 50)
		owner, last := map[string]int{}, map[string]byte{}
		for total := 0; total < 50; total++ {
			number := 0
			var message pulsar.ConsumerMessage
			select {
			case message = <-consumers[0].Chan():
			case message = <-consumers[1].Chan():
				number = 1
			case <-time.After(wait):
				panic(fmt.Sprint(total, " came"))
			}
			before, known := owner[message.Key()]
			check(!known || before == number, "a key of two consumers")
			check(!known || last[message.Key()] < message.Payload()[0], "a key out of order")
			owner[message.Key()], last[message.Key()] = number, message.Payload()[0]
			done(consumers[number].Ack(message.Message))
		}
	})
	step("dead letters and retries", func() {
		topic := t.topic("dead")
		consumer := must(t.client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "s", Type: pulsar.Shared, RetryEnable: true,
			NackRedeliveryDelay: 50 * time.Millisecond,
			DLQ:                 &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead", RetryLetterTopic: topic + "-retry"},
		}))
		dead := t.consumer(topic+"-dead", pulsar.Exclusive)
		t.publish(topic, 1)
		consumer.ReconsumeLater(next(consumer), 100*time.Millisecond)
		again := next(consumer)
		check(strings.HasSuffix(again.Topic(), "-retry"), again.Topic())
		consumer.ReconsumeLater(again, 100*time.Millisecond)
		buried := make(chan struct{})
		go func() {
			for message := range consumer.Chan() {
				consumer.ReconsumeLater(message.Message, 100*time.Millisecond)
			}
			close(buried)
		}()
		next(dead)
		consumer.Close()
	})
	step("patterns", func() {
		stem := t.topic("pattern")
		for number := 0; number < 3; number++ {
			t.publish(fmt.Sprint(stem, "-", number), 1)
		}
		consumer := must(t.client.Subscribe(pulsar.ConsumerOptions{
			TopicsPattern: stem + "-.*", SubscriptionName: "s", AutoDiscoveryPeriod: time.Second,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		}))
		for number := 0; number < 3; number++ {
			next(consumer)
		}
		t.publish(stem+"-new", 1)
		next(consumer)
	})
	step("looked up over HTTP", func() {
		other := must(pulsar.NewClient(pulsar.ClientOptions{URL: t.web, Logger: t.log}))
		defer other.Close()
		topic := t.topic("http")
		consumer := must(other.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"}))
		t.publish(topic, 1)
		next(consumer)
	})
}

func (t *tour) readingAgain() {
	step("readers and seeking", func() {
		topic := t.topic("reader")
		ids := t.publish(topic, 20)
		reader := must(t.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
		read := 0
		for reader.HasNext() {
			must(reader.Next(context.Background()))
			read++
		}
		check(read == 20, fmt.Sprint(read, " were read"))
		done(reader.Seek(ids[10]))
		check(must(reader.Next(context.Background())).Payload()[0] >= 10, "not from there")
		consumer := t.consumer(topic, pulsar.Exclusive)
		for number := 0; number < 20; number++ {
			done(consumer.Ack(next(consumer)))
		}
		done(consumer.SeekByTime(time.Now().Add(-time.Hour)))
		check(next(consumer).Payload()[0] == 0, "by time")
	})
	step("table view", func() {
		topic := t.topic("table")
		text := new(string)
		schema := pulsar.NewStringSchema(nil)
		producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema}))
		for number := 0; number < 10; number++ {
			must(producer.Send(context.Background(), &pulsar.ProducerMessage{Key: fmt.Sprint(number % 3), Value: fmt.Sprint(number)}))
		}
		view := must(t.client.CreateTableView(pulsar.TableViewOptions{Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf(text)}))
		defer view.Close()
		check(view.Size() == 3, fmt.Sprint(view.Size(), " keys"))
	})
}

type reading struct {
	Sensor string `json:"sensor" avro:"sensor"`
	Value  int    `json:"value" avro:"value"`
}

const definition = `{"type":"record","name":"Reading","fields":[{"name":"sensor","type":"string"},{"name":"value","type":"int"}]}`

func (t *tour) schemas() {
	step("schemas", func() {
		for _, schema := range []pulsar.Schema{pulsar.NewJSONSchema(definition, nil), pulsar.NewAvroSchema(definition, nil)} {
			topic := t.topic("schema")
			producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema}))
			consumer := must(t.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", Schema: schema}))
			must(producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &reading{"x", 7}}))
			var got reading
			done(next(consumer).GetSchemaValue(&got))
			check(got == reading{"x", 7}, fmt.Sprint(got))
			_, err := t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewStringSchema(nil)})
			check(err != nil, "another schema was taken")
		}
	})
}

func (t *tour) transactions() {
	step("transactions: committed and aborted", func() {
		in, out := t.topic("in"), t.topic("out")
		inputs, outputs := t.consumer(in, pulsar.Shared), t.consumer(out, pulsar.Exclusive)
		t.publish(in, 1)
		producer := must(t.client.CreateProducer(pulsar.ProducerOptions{Topic: out, SendTimeout: -1}))
		for _, commit := range []bool{false, true} {
			transaction := must(t.client.NewTransaction(time.Minute))
			must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(commit)), Transaction: transaction}))
			done(inputs.AckWithTxn(next(inputs), transaction))
			nothing(outputs)
			if commit {
				done(transaction.Commit(context.Background()))
			} else {
				done(transaction.Abort(context.Background()))
			}
		}
		check(string(next(outputs).Payload()) == "true", "what was aborted came")
		nothing(inputs)
	})
}
