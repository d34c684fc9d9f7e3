import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * What an application in Java does with Pulsar, step by step, on topics of its own for each step.
 *
 * <p>Prints a line for each: `ok NAME` or `FAIL NAME: why`. Each step below is a test of its own.
 */
public final class ClientTour {
    private static final int WAIT_S = 10;
    private static final int STEP_S = 60;
    private static final int STEPS_AT_ONCE = 4;
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static final Map<String, Step> STEPS = new java.util.LinkedHashMap<>();

    interface Step {
        void run() throws Exception;
    }

    /** What schemas are derived from. */
    public static class Reading {
        public String sensor;
        public int value;

        public Reading() {}

        Reading(String sensor, int value) {
            this.sensor = sensor;
            this.value = value;
        }
    }

    private final String webUrl;
    private final String binaryUrl;
    private final PulsarClient client;

    private ClientTour(String webUrl, String binaryUrl) throws Exception {
        this.webUrl = webUrl;
        this.binaryUrl = binaryUrl;
        this.client =
                PulsarClient.builder().serviceUrl(binaryUrl).operationTimeout(20, TimeUnit.SECONDS).build();
    }

    public static void main(String[] arguments) throws Exception {
        ClientTour tour = new ClientTour(arguments[0], arguments[1]);
        tour.collect();
        ExecutorService pool = Executors.newFixedThreadPool(STEPS_AT_ONCE);
        Map<String, Future<?>> running = new HashMap<>();
        STEPS.forEach((name, body) -> running.put(name, pool.submit(() -> report(name, body))));
        for (Map.Entry<String, Future<?>> each : running.entrySet()) {
            try {
                each.getValue().get(STEP_S * 3L, TimeUnit.SECONDS);
            } catch (java.util.concurrent.TimeoutException late) {
                System.out.println("FAIL " + each.getKey() + ": it did not end");
            }
        }
        System.out.flush();
        System.exit(0); // Whatever hangs, hangs no longer.
    }

    private static void report(String name, Step body) {
        try {
            body.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            String where = Arrays.stream(trace.toString().split("\n"))
                    .filter(line -> line.contains("ClientTour") || line.contains("Caused by"))
                    .limit(4)
                    .reduce("", (a, b) -> a + " | " + b.strip());
            System.out.println("FAIL " + name + ": " + error + where);
        }
    }

    private static void step(String name, Step body) {
        STEPS.put(name, body);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    private static String topic(String stem) {
        return "persistent://public/default/java-" + stem + "-" + NUMBERS.incrementAndGet();
    }

    private Consumer<byte[]> consumer(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        check(message != null, "nothing came from " + consumer.getTopic());
        return message;
    }

    private static void nothing(Consumer<?> consumer) throws Exception {
        Message<?> message = consumer.receive(300, TimeUnit.MILLISECONDS);
        check(message == null, "something came that should not have");
    }

    private void publish(String topic, int count) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int number = 0; number < count; number++) {
                producer.send(new byte[] {(byte) number});
            }
        }
    }

    private void collect() {
        producing();
        subscribing();
        redelivering();
        readingAgain();
        finding();
        schemas();
        transactions();
    }

    private void producing() {
        for (CompressionType compression : CompressionType.values()) {
            step("batches compressed by " + compression, () -> {
                String topic = topic("compressed");
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
                Producer<byte[]> producer =
                        client.newProducer().topic(topic).compressionType(compression).create();
                for (int number = 0; number < 50; number++) {
                    producer.sendAsync((number + "x".repeat(200)).getBytes());
                }
                producer.flush();
                for (int number = 0; number < 50; number++) {
                    String text = new String(next(consumer).getData());
                    check(text.equals(number + "x".repeat(200)), "out of order at " + number);
                }
            });
        }
        step("chunks", () -> {
            String topic = topic("chunks");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
            Producer<byte[]> producer = client.newProducer()
                    .topic(topic)
                    .enableBatching(false)
                    .enableChunking(true)
                    .chunkMaxMessageSize(100_000)
                    .create();
            byte[] large = new byte[7_000_000];
            new Random(1).nextBytes(large);
            producer.send(large);
            Message<byte[]> message = next(consumer);
            check(Arrays.equals(message.getData(), large), "other bytes came");
            consumer.acknowledge(message);
        });
        step("access modes", () -> {
            String topic = topic("access");
            Producer<byte[]> first =
                    client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
            try {
                client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
                check(false, "a second exclusive producer was let in");
            } catch (PulsarClientException.ProducerFencedException
                    | PulsarClientException.ProducerBusyException expected) {
                check(true, "");
            }
            CompletableFuture<Producer<byte[]>> waiting = client.newProducer()
                    .topic(topic)
                    .accessMode(ProducerAccessMode.WaitForExclusive)
                    .createAsync();
            first.send(new byte[1]);
            check(!waiting.isDone(), "it did not wait");
            first.close();
            Producer<byte[]> second = waiting.get(WAIT_S, TimeUnit.SECONDS);
            second.send(new byte[1]);
            Producer<byte[]> third = client.newProducer()
                    .topic(topic)
                    .accessMode(ProducerAccessMode.ExclusiveWithFencing)
                    .create();
            third.send(new byte[1]);
            try {
                second.send(new byte[1]);
                check(false, "the fenced one could still send");
            } catch (PulsarClientException expected) {
                check(true, "");
            }
        });
        step("delivered later", () -> {
            String topic = topic("later");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared);
            Producer<byte[]> producer = client.newProducer().topic(topic).create();
            long sent = System.nanoTime();
            producer.newMessage().value(new byte[] {1}).deliverAfter(1500, TimeUnit.MILLISECONDS).send();
            producer.newMessage().value(new byte[] {2}).send();
            check(next(consumer).getData()[0] == 2, "what was not delayed came second");
            next(consumer);
            long tookMs = (System.nanoTime() - sent) / 1_000_000;
            check(tookMs >= 1300, "it came after " + tookMs + " ms");
        });
        step("properties, keys, times and sequence ids", () -> {
            String topic = topic("properties");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
            Producer<byte[]> producer = client.newProducer().topic(topic).producerName("me").create();
            producer.newMessage()
                    .key("k")
                    .orderingKey("o".getBytes())
                    .property("a", "b")
                    .eventTime(123)
                    .sequenceId(77)
                    .value(new byte[] {1})
                    .send();
            Message<byte[]> message = next(consumer);
            check(message.getKey().equals("k") && new String(message.getOrderingKey()).equals("o"), "keys");
            check(message.getProperties().equals(Map.of("a", "b")), "properties");
            check(message.getEventTime() == 123 && message.getSequenceId() == 77, "numbers");
            check(message.getProducerName().equals("me"), "name");
            check(producer.getLastSequenceId() == 77, "last sequence id");
        });
        step("partitions by key and in turns", () -> {
            String topic = partitioned("partitions", 3);
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
            Producer<byte[]> producer = client.newProducer().topic(topic).create();
            for (int number = 0; number < 30; number++) {
                producer.newMessage().key("k" + number % 6).value(new byte[] {(byte) number}).sendAsync();
            }
            producer.flush();
            Map<String, String> places = new HashMap<>();
            for (int number = 0; number < 30; number++) {
                Message<byte[]> message = next(consumer);
                String before = places.put(message.getKey(), message.getTopicName());
                check(before == null || before.equals(message.getTopicName()), "a key in two partitions");
                consumer.acknowledge(message);
            }
            check(client.getPartitionsForTopic(topic).get().size() == 3, "partitions");
        });
        step("a hundred thousand without waiting for each", () -> {
            String topic = topic("many");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
            Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true).create();
            for (int number = 0; number < 100_000; number++) {
                producer.sendAsync(new byte[100]);
            }
            producer.flush();
            for (int number = 0; number < 100_000; number++) {
                consumer.acknowledgeAsync(next(consumer));
            }
        });
    }

    private void subscribing() {
        step("exclusive", () -> {
            String topic = topic("exclusive");
            consumer(topic, SubscriptionType.Exclusive);
            try {
                consumer(topic, SubscriptionType.Exclusive);
                check(false, "a second consumer was let in");
            } catch (PulsarClientException.ConsumerBusyException expected) {
                check(true, "");
            }
        });
        step("shared", () -> {
            String topic = topic("shared");
            Consumer<byte[]> one = consumer(topic, SubscriptionType.Shared);
            Consumer<byte[]> two = consumer(topic, SubscriptionType.Shared);
            publish(topic, 20);
            Set<Byte> seen = new TreeSet<>();
            AtomicInteger byTwo = new AtomicInteger();
            for (Consumer<byte[]> each : List.of(one, two)) {
                Message<byte[]> message;
                while ((message = each.receive(1, TimeUnit.SECONDS)) != null) {
                    check(seen.add(message.getData()[0]), "delivered twice");
                    each.acknowledge(message);
                    byTwo.addAndGet(each == two ? 1 : 0);
                }
            }
            check(seen.size() == 20 && byTwo.get() > 0 && byTwo.get() < 20, seen.size() + ", " + byTwo);
        });
        step("failover", () -> {
            String topic = topic("failover");
            Consumer<byte[]> first = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .consumerName("a")
                    .subscriptionType(SubscriptionType.Failover)
                    .subscribe();
            CountDownLatch active = new CountDownLatch(1);
            Consumer<byte[]> second = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .consumerName("b")
                    .subscriptionType(SubscriptionType.Failover)
                    .consumerEventListener(new ConsumerEventListener() {
                        @Override
                        public void becameActive(Consumer<?> consumer, int partition) {
                            active.countDown();
                        }

                        @Override
                        public void becameInactive(Consumer<?> consumer, int partition) {}
                    })
                    .subscribe();
            publish(topic, 10);
            for (int number = 0; number < 5; number++) {
                first.acknowledge(next(first));
            }
            nothing(second);
            first.close();
            check(active.await(WAIT_S, TimeUnit.SECONDS), "the second was not told");
            Set<Byte> rest = new TreeSet<>();
            while (rest.size() < 5) {
                rest.add(next(second).getData()[0]);
            }
            check(rest.containsAll(List.of((byte) 5, (byte) 9)), "rest " + rest);
        });
        step("key shared", () -> {
            String topic = topic("keyshared");
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (int number = 0; number < 3; number++) {
                consumers.add(consumer(topic, SubscriptionType.Key_Shared));
            }
            Producer<byte[]> producer =
                    client.newProducer().topic(topic).batcherBuilder(BatcherBuilder.KEY_BASED).create();
            for (int number = 0; number < 300; number++) {
                producer.newMessage().key("k" + number % 30).value(new byte[] {(byte) (number / 30)}).sendAsync();
            }
            producer.flush();
            inOrderByOneEach(consumers, 300);
        });
        step("key shared, ranges of one's own", () -> {
            String topic = topic("sticky");
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (Range range : List.of(Range.of(0, 32767), Range.of(32768, 65535))) {
                consumers.add(client.newConsumer()
                        .topic(topic)
                        .subscriptionName("s")
                        .subscriptionType(SubscriptionType.Key_Shared)
                        .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range))
                        .subscribe());
            }
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create();
            for (int number = 0; number < 60; number++) {
                producer.newMessage().key("k" + number % 20).value(new byte[] {(byte) (number / 20)}).send();
            }
            inOrderByOneEach(consumers, 60);
        });
        step("listener and whole batches", () -> {
            String topic = topic("listener");
            CountDownLatch heard = new CountDownLatch(100);
            Consumer<byte[]> listener = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("l")
                    .messageListener((consumer, message) -> {
                        consumer.acknowledgeAsync(message);
                        heard.countDown();
                    })
                    .subscribe();
            Consumer<byte[]> batches = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("b")
                    .batchReceivePolicy(BatchReceivePolicy.builder()
                            .maxNumMessages(10)
                            .timeout(500, TimeUnit.MILLISECONDS)
                            .build())
                    .subscribe();
            publish(topic, 100);
            check(heard.await(WAIT_S, TimeUnit.SECONDS), heard.getCount() + " were not heard");
            for (int got = 0; got < 100; ) {
                Messages<byte[]> messages = batches.batchReceive();
                check(messages.size() > 0, "an empty batch after " + got);
                got += messages.size();
                batches.acknowledge(messages);
            }
            listener.unsubscribe();
        });
        step("non-persistent", () -> {
            String topic = topic("np").replace("persistent://", "non-persistent://");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared);
            publish(topic, 1);
            next(consumer);
        });
    }

    private static void inOrderByOneEach(List<Consumer<byte[]>> consumers, int expected) throws Exception {
        Map<String, Integer> owner = new HashMap<>();
        Map<String, Byte> last = new HashMap<>();
        int total = 0;
        for (int number = 0; number < consumers.size(); number++) {
            Message<byte[]> message;
            while ((message = consumers.get(number).receive(1, TimeUnit.SECONDS)) != null) {
                Integer before = owner.putIfAbsent(message.getKey(), number);
                check(before == null || before == number, "a key of two consumers");
                Byte value = last.put(message.getKey(), message.getData()[0]);
                check(value == null || value < message.getData()[0], "a key out of order");
                consumers.get(number).acknowledge(message);
                total++;
            }
        }
        check(total == expected, total + " came");
    }

    private void redelivering() {
        step("negative acknowledgements", () -> {
            String topic = topic("nack");
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                    .subscribe();
            publish(topic, 10);
            Set<Byte> again = new HashSet<>();
            while (again.size() < 10) {
                Message<byte[]> message = next(consumer);
                if (message.getRedeliveryCount() == 0) {
                    consumer.negativeAcknowledge(message);
                } else {
                    again.add(message.getData()[0]);
                    consumer.acknowledge(message);
                }
            }
        });
        step("acknowledgement time-out", () -> {
            String topic = topic("timeout");
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .ackTimeout(1, TimeUnit.SECONDS)
                    .subscribe();
            publish(topic, 1);
            next(consumer);
            check(next(consumer).getRedeliveryCount() == 1, "it is not counted");
        });
        step("dead letters", () -> {
            String topic = topic("dead");
            Consumer<byte[]> dead = client.newConsumer().topic(topic + "-s-DLQ").subscriptionName("d").subscribe();
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS)
                    .deadLetterPolicy(DeadLetterPolicy.builder()
                            .maxRedeliverCount(2)
                            .initialSubscriptionName("kept")
                            .build())
                    .messageListener((each, message) -> each.negativeAcknowledge(message))
                    .subscribe();
            publish(topic, 5);
            Set<Byte> buried = new HashSet<>();
            while (buried.size() < 5) {
                Message<byte[]> message = next(dead);
                buried.add(message.getData()[0]);
                dead.acknowledge(message);
            }
            consumer.close();
        });
        step("retry topic", () -> {
            String topic = topic("retry");
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .enableRetry(true)
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(3).build())
                    .subscribe();
            publish(topic, 1);
            consumer.reconsumeLater(next(consumer), 300, TimeUnit.MILLISECONDS);
            Message<byte[]> again = next(consumer);
            check(again.getTopicName().contains("RETRY"), again.getTopicName());
            consumer.acknowledge(again);
        });
        step("parts of batches acknowledged, with receipts", () -> {
            String topic = topic("batchindex");
            Consumer<byte[]> consumer = indexed(topic);
            Producer<byte[]> producer = client.newProducer()
                    .topic(topic)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS)
                    .create();
            for (int number = 0; number < 10; number++) {
                producer.sendAsync(new byte[] {(byte) number});
            }
            producer.flush();
            for (int number = 0; number < 10; number++) {
                Message<byte[]> message = next(consumer);
                if (number % 2 == 0) {
                    consumer.acknowledge(message);
                }
            }
            consumer.close();
            consumer = indexed(topic);
            for (int number = 1; number < 10; number += 2) {
                check(next(consumer).getData()[0] == number, "others came than those not acknowledged");
            }
            nothing(consumer);
        });
        step("cumulative acknowledgements", () -> {
            String topic = topic("cumulative");
            Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive);
            publish(topic, 10);
            for (int number = 0; number < 10; number++) {
                Message<byte[]> message = next(consumer);
                if (number == 6) {
                    consumer.acknowledgeCumulative(message);
                }
            }
            consumer.close();
            check(next(consumer(topic, SubscriptionType.Exclusive)).getData()[0] == 7, "not from there");
        });
    }

    private Consumer<byte[]> indexed(String topic) throws Exception {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscribe();
    }

    private void readingAgain() {
        step("readers and seeking", () -> {
            String topic = topic("reader");
            List<MessageId> ids = new ArrayList<>();
            Producer<byte[]> producer = client.newProducer().topic(topic).create();
            for (int number = 0; number < 20; number++) {
                ids.add(producer.send(new byte[] {(byte) number}));
            }
            Reader<byte[]> reader =
                    client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
            int read = 0;
            while (reader.hasMessageAvailable()) {
                reader.readNext(WAIT_S, TimeUnit.SECONDS);
                read++;
            }
            check(read == 20, read + " were read");
            reader.seek(ids.get(10));
            check(reader.readNext(WAIT_S, TimeUnit.SECONDS).getData()[0] == 11, "a seek is exclusive");
            Reader<byte[]> inclusive = client.newReader()
                    .topic(topic)
                    .startMessageId(ids.get(5))
                    .startMessageIdInclusive()
                    .create();
            check(inclusive.readNext(WAIT_S, TimeUnit.SECONDS).getData()[0] == 5, "inclusive");
            Reader<byte[]> latest = client.newReader()
                    .topic(topic)
                    .startMessageId(MessageId.latest)
                    .startMessageIdInclusive()
                    .create();
            check(latest.hasMessageAvailable(), "the last one is there");
            check(latest.readNext(WAIT_S, TimeUnit.SECONDS).getData()[0] == 19, "latest");
            Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("z").subscribe();
            consumer.seek(System.currentTimeMillis() - 3_600_000);
            check(next(consumer).getData()[0] == 0, "by time");
            check(consumer.getLastMessageIds().size() == 1, "last message id");
        });
        step("table view", () -> {
            String topic = topic("table");
            Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create();
            for (int number = 0; number < 20; number++) {
                producer.newMessage().key("k" + number % 5).value("v" + number).send();
            }
            TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create();
            check(view.size() == 5 && view.get("k4").equals("v19"), "view " + view.size());
            CountDownLatch told = new CountDownLatch(1);
            view.listen((key, value) -> told.countDown());
            producer.newMessage().key("k9").value("new").send();
            check(told.await(WAIT_S, TimeUnit.SECONDS), "it was not told of the new one");
            view.close();
        });
        step("compacted", () -> {
            String topic = topic("compacted");
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create();
            for (int number = 0; number < 20; number++) {
                producer.newMessage().key("k" + number % 4).value(new byte[] {(byte) number}).send();
            }
            http("PUT", topic.replace("://", "/") + "/compaction", null);
            for (long end = System.nanoTime() + WAIT_S * 1_000_000_000L; ; Thread.sleep(50)) {
                if (http("GET", topic.replace("://", "/") + "/compaction", null).contains("SUCCESS")) {
                    break;
                }
                check(System.nanoTime() < end, "it was not compacted");
            }
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("c")
                    .readCompacted(true)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe();
            for (int number = 16; number < 20; number++) {
                check(next(consumer).getData()[0] == number, "others than the last of each key");
            }
            nothing(consumer);
        });
    }

    private void finding() {
        step("patterns and lists of topics", () -> {
            String stem = topic("pattern");
            for (int number = 0; number < 3; number++) {
                publish(stem + "-" + number, 1);
            }
            Consumer<byte[]> consumer = client.newConsumer()
                    .topicsPattern(stem + "-.*")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscriptionName("s")
                    .subscribe();
            for (int number = 0; number < 3; number++) {
                next(consumer);
            }
            publish(stem + "-new", 1);
            next(consumer);
            Consumer<byte[]> several = client.newConsumer()
                    .topics(List.of(stem + "-0", stem + "-1"))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscriptionName("m")
                    .subscribe();
            next(several);
            next(several);
        });
        step("looked up over HTTP", () -> {
            try (PulsarClient other = PulsarClient.builder().serviceUrl(webUrl).build()) {
                String topic = topic("http");
                Consumer<byte[]> consumer = other.newConsumer().topic(topic).subscriptionName("s").subscribe();
                other.newProducer().topic(topic).create().send(new byte[1]);
                next(consumer);
            }
        });
        step("more partitions while in use", () -> {
            String topic = partitioned("growing", 2);
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName("s")
                    .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                    .subscribe();
            http("POST", topic.replace("://", "/") + "/partitions", "4");
            publish(topic + "-partition-3", 1);
            check(next(consumer).getTopicName().endsWith("-3"), "from another");
        });
    }

    private void schemas() {
        step("schemas: JSON and whatever comes", () -> {
            String topic = topic("json");
            Producer<Reading> producer = client.newProducer(Schema.JSON(Reading.class)).topic(topic).create();
            Consumer<Reading> consumer =
                    client.newConsumer(Schema.JSON(Reading.class)).topic(topic).subscriptionName("s").subscribe();
            Consumer<GenericRecord> any =
                    client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("g").subscribe();
            producer.send(new Reading("x", 3));
            check(next(consumer).getValue().value == 3, "value");
            check(next(any).getValue().getField("sensor").equals("x"), "field");
        });
        step("schemas: Avro, bytes that fit it, and what does not", () -> {
            String topic = topic("avro");
            Producer<Reading> producer = client.newProducer(Schema.AVRO(Reading.class)).topic(topic).create();
            Consumer<Reading> consumer =
                    client.newConsumer(Schema.AVRO(Reading.class)).topic(topic).subscriptionName("s").subscribe();
            producer.send(new Reading("y", 4));
            check(next(consumer).getValue().sensor.equals("y"), "value");
            Producer<byte[]> bytes = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create();
            bytes.send(Schema.AVRO(Reading.class).encode(new Reading("z", 5)));
            check(next(consumer).getValue().value == 5, "bytes");
            try {
                client.newProducer(Schema.STRING).topic(topic).create();
                check(false, "another schema was taken");
            } catch (PulsarClientException.IncompatibleSchemaException expected) {
                check(true, "");
            }
        });
        step("schemas: keys and values", () -> {
            for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
                String topic = topic("keyvalue");
                Schema<KeyValue<String, Integer>> schema =
                        Schema.KeyValue(Schema.STRING, Schema.INT32, encoding);
                Producer<KeyValue<String, Integer>> producer = client.newProducer(schema).topic(topic).create();
                Consumer<KeyValue<String, Integer>> consumer =
                        client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                producer.send(new KeyValue<>("k", 7));
                KeyValue<String, Integer> pair = next(consumer).getValue();
                check(pair.getKey().equals("k") && pair.getValue() == 7, encoding.name());
            }
        });
    }

    private void transactions() {
        step("transactions: committed and aborted", () -> {
            try (PulsarClient own = transactional()) {
                String in = topic("in");
                String out = topic("out");
                publish(in, 2);
                Consumer<byte[]> inputs = own.newConsumer()
                        .topic(in)
                        .subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe();
                Consumer<byte[]> outputs = consumer(out, SubscriptionType.Exclusive);
                Producer<byte[]> producer =
                        own.newProducer().topic(out).sendTimeout(0, TimeUnit.SECONDS).create();
                Transaction aborted = begin(own);
                MessageId input = next(inputs).getMessageId();
                producer.newMessage(aborted).value("never".getBytes()).send();
                inputs.acknowledgeAsync(input, aborted).get(WAIT_S, TimeUnit.SECONDS);
                nothing(outputs);
                aborted.abort().get(WAIT_S, TimeUnit.SECONDS);
                Transaction committed = begin(own);
                producer.newMessage(committed).value("now".getBytes()).send();
                nothing(outputs);
                committed.commit().get(WAIT_S, TimeUnit.SECONDS);
                check(new String(next(outputs).getData()).equals("now"), "what was aborted came");
                Set<Byte> all = new HashSet<>();
                for (int number = 0; number < 2; number++) { // The other one, and the one given back.
                    all.add(next(inputs).getData()[0]);
                }
                check(all.size() == 2, "inputs " + all);
            }
        });
    }

    private PulsarClient transactional() throws Exception {
        return PulsarClient.builder().serviceUrl(binaryUrl).enableTransaction(true).build();
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction()
                .withTransactionTimeout(1, TimeUnit.MINUTES)
                .build()
                .get(WAIT_S, TimeUnit.SECONDS);
    }

    private String partitioned(String stem, int partitions) throws Exception {
        String topic = topic(stem);
        http("PUT", topic.replace("://", "/") + "/partitions", String.valueOf(partitions));
        return topic;
    }

    private String http(String method, String path, String body) throws Exception {
        java.net.http.HttpRequest request = java.net.http.HttpRequest.newBuilder(
                        java.net.URI.create(webUrl + "/admin/v2/" + path))
                .method(
                        method,
                        body == null
                                ? java.net.http.HttpRequest.BodyPublishers.noBody()
                                : java.net.http.HttpRequest.BodyPublishers.ofString(body))
                .build();
        java.net.http.HttpResponse<String> answer = java.net.http.HttpClient.newHttpClient()
                .send(request, java.net.http.HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + answer.body());
        return answer.body();
    }
}
