// What RocketMQ's official Java client does with a cluster: Main HOST:PORT,HOST:PORT.
// Each scenario prints its name once it has gone well. `../official.py` says what has to be there before, and which
// variables say how to connect. The client verifies no certificate, and can't be told to.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Main {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    // On a busy machine; nothing may come early, not even by a millisecond.
    static final long LATE_MS_MAX = 20_000;
    static final long PATIENCE_MS = 120_000;
    static List<String> addresses;

    interface Scenario {
        /** Null, or what there is to say. */
        String run() throws Exception;
    }

    static void check(boolean ok, Object what) {
        if (!ok) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    static ClientConfiguration configuration(String namespace) {
        Collections.rotate(addresses, 1);
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(addresses.get(0))
            .enableSsl(System.getenv("CLIENTS_TLS") != null).setRequestTimeout(Duration.ofSeconds(30))
            .setNamespace(namespace);
        String accessKey = System.getenv("CLIENTS_ACCESS_KEY");
        if (accessKey != null) {
            String secret = System.getenv("CLIENTS_SECRET");
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secret));
        }
        return builder.build();
    }

    static Producer producerOf(String namespace, TransactionChecker checker, String... topics) throws Exception {
        var builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(namespace)).setTopics(topics);
        return checker == null ? builder.build() : builder.setTransactionChecker(checker).build();
    }

    static Producer producer(String... topics) throws Exception {
        return producerOf("", null, topics);
    }

    static SimpleConsumer simple(String namespace, String group, String topic, FilterExpression wanted) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration(namespace))
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, wanted)).build();
    }

    static SimpleConsumer simple(String group, String topic) throws Exception {
        return simple("", group, topic, FilterExpression.SUB_ALL);
    }

    static PushConsumer push(String group, String topic, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration("")).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(listener).build();
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static byte[] bytes(MessageView view) {
        ByteBuffer buffer = view.getBody();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    static String text(MessageView view) {
        return new String(bytes(view), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<MessageView> views) {
        List<String> found = new ArrayList<>();
        for (MessageView view : views) {
            found.add(text(view));
        }
        Collections.sort(found);
        return found;
    }

    static List<MessageView> lease(SimpleConsumer consumer, int count, int invisibleS) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long giveUp = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < giveUp) {
            found.addAll(consumer.receive(32, Duration.ofSeconds(invisibleS)));
        }
        check(found.size() == count, texts(found));
        return found;
    }

    static List<MessageView> receive(SimpleConsumer consumer, int count) throws Exception {
        List<MessageView> found = lease(consumer, count, 60);
        for (MessageView view : found) {
            consumer.ack(view);
        }
        return found;
    }

    static void until(BooleanSupplier isTrue, Object what) throws Exception {
        for (long giveUp = System.currentTimeMillis() + PATIENCE_MS; !isTrue.getAsBoolean(); Thread.sleep(20)) {
            check(System.currentTimeMillis() < giveUp, what);
        }
    }

    // --- scenarios --------------------------------------------------------------------------------------------------

    static String normal() throws Exception {
        Set<Object> sent = new HashSet<>();
        try (Producer producer = producer("normal", "second")) {
            for (int number = 0; number < 10; number++) {
                sent.add(producer.send(message("normal", "normal-" + number).setTag("t").setKeys("k")
                    .addProperty("colour", "blue").build()).getMessageId());
            }
            check(producer.send(message("second", "second").build()).getMessageId() != null, "no id");
        }
        try (SimpleConsumer consumer = simple("normal", "normal")) {
            for (MessageView one : receive(consumer, 10)) {
                check(sent.remove(one.getMessageId()) && one.getTag().get().equals("t") && one.getKeys().contains("k")
                    && one.getProperties().get("colour").equals("blue") && one.getDeliveryAttempt() == 1, one);
            }
        }
        return null;
    }

    static String delayed() throws Exception {
        List<Long> lateness = new CopyOnWriteArrayList<>();
        MessageListener listener = view -> {
            long due = Long.parseLong(text(view));
            lateness.add(view.getDeliveryTimestamp().get() == due ? System.currentTimeMillis() - due : Long.MIN_VALUE);
            return ConsumeResult.SUCCESS;
        };
        try (PushConsumer ignored = push("delayed", "delayed", listener); Producer producer = producer("delayed")) {
            for (int number = 0; number < 20; number++) {
                long due = System.currentTimeMillis() + 500 + number * 101;
                producer.send(message("delayed", String.valueOf(due)).setDeliveryTimestamp(due).build());
            }
            until(() -> lateness.size() >= 20, lateness);
        }
        check(Collections.min(lateness) >= 0 && Collections.max(lateness) < LATE_MS_MAX, lateness);
        return Collections.min(lateness) + " to " + Collections.max(lateness) + " ms late";
    }

    static String recalls() throws Exception {
        try (Producer producer = producer("recalls"); SimpleConsumer consumer = simple("recalls", "recalls")) {
            SendReceipt later = producer.send(
                message("recalls", "later").setDeliveryTimestamp(System.currentTimeMillis() + 3_600_000).build());
            var recalled = producer.recallMessage("recalls", later.getRecallHandle());
            check(recalled.getMessageId().equals(later.getMessageId()), recalled);
            SendReceipt soon = producer.send(
                message("recalls", "soon").setDeliveryTimestamp(System.currentTimeMillis() + 500).build());
            check(texts(receive(consumer, 1)).equals(List.of("soon")), "another one came");
            try {
                producer.recallMessage("recalls", soon.getRecallHandle());
            } catch (Exception error) {
                check(String.valueOf(error).contains("has been delivered"), error);
                return null;
            }
        }
        throw new AssertionError("a delivered message was recalled");
    }

    static String transactions() throws Exception {
        List<String> asked = new CopyOnWriteArrayList<>();
        TransactionChecker checker = view -> {
            asked.add(text(view));
            return text(view).equals("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        };
        try (Producer producer = producerOf("", checker, "transactions");
            SimpleConsumer consumer = simple("transactions", "transactions")) {
            for (String end : new String[] {"commit", "rollback", "checked"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("transactions", end).build(), transaction);
                if (end.equals("commit")) {
                    transaction.commit();
                } else if (end.equals("rollback")) {
                    transaction.rollback();
                }
            }
            check(texts(receive(consumer, 2)).equals(List.of("checked", "commit")), "others came");
            check(consumer.receive(32, Duration.ofSeconds(30)).isEmpty(), "one more came");
        }
        check(asked.contains("checked"), asked);
        return null;
    }

    static String leases() throws Exception {
        try (Producer producer = producer("leases"); SimpleConsumer consumer = simple("leases", "leases")) {
            producer.send(message("leases", "lapse").build());
            lease(consumer, 1, 1);
            MessageView second = lease(consumer, 1, 60).get(0);
            check(second.getDeliveryAttempt() == 2, second);
            long began = System.currentTimeMillis();
            consumer.changeInvisibleDuration(second, Duration.ofSeconds(2));
            MessageView third = receive(consumer, 1).get(0);
            long passed = System.currentTimeMillis() - began;
            check(2_000 <= passed && passed < 2_000 + LATE_MS_MAX && third.getDeliveryAttempt() == 3, passed + " ms " + third);
        }
        return null;
    }

    static String failing() throws Exception {
        List<String> seen = new CopyOnWriteArrayList<>();
        MessageListener listener = view -> {
            seen.add(text(view) + " " + view.getDeliveryAttempt());
            return text(view).equals("bad") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
        try (PushConsumer ignored = push("failing", "failing", listener); Producer producer = producer("failing")) {
            producer.send(message("failing", "good").build());
            producer.send(message("failing", "bad").build());
            until(() -> seen.size() >= 3, seen);
        }
        List<String> sorted = new ArrayList<>(seen);
        Collections.sort(sorted);
        check(sorted.equals(List.of("bad 1", "bad 2", "good 1")), sorted);
        return null;
    }

    static String ordered() throws Exception {
        List<String> expected = new ArrayList<>(), seen = new CopyOnWriteArrayList<>();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        try (Producer producer = producer("ordered")) {
            for (int number = 0; number < 20; number++) {
                producer.send(message("ordered", String.valueOf(number)).setMessageGroup("one").build());
                expected.add(String.valueOf(number));
            }
        }
        expected.add(5, "5");
        MessageListener listener = view -> {
            seen.add(text(view));
            return text(view).equals("5") && failed.add("5") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
        try (PushConsumer ignored = push("ordered", "ordered", listener)) {
            until(() -> seen.size() >= expected.size(), seen);
        }
        check(seen.equals(expected), seen);
        return null;
    }

    static String groups() throws Exception {
        try (Producer producer = producer("groups")) {
            for (String body : List.of("a", "b", "c")) {
                producer.send(message("groups", body).build());
            }
        }
        for (String group : List.of("one", "other")) {
            try (SimpleConsumer consumer = simple(group, "groups")) {
                check(texts(receive(consumer, 3)).equals(List.of("a", "b", "c")), group);
            }
        }
        return null;
    }

    static String filters() throws Exception {
        try (Producer producer = producer("filters")) {
            for (String number : List.of("1", "2", "3")) {
                producer.send(message("filters", number).setTag("f" + number).addProperty("weight", number).build());
            }
        }
        FilterExpression sql = new FilterExpression("weight > 1 and weight is not null", FilterExpressionType.SQL92);
        try (SimpleConsumer tags = simple("", "by-tags", "filters", new FilterExpression("f1 || f3"));
            SimpleConsumer weights = simple("", "by-sql", "filters", sql)) {
            check(texts(receive(tags, 2)).equals(List.of("1", "3")), "by tags others came");
            check(texts(receive(weights, 2)).equals(List.of("2", "3")), "by weight others came");
        }
        return null;
    }

    static String namespaces() throws Exception {
        try (Producer producer = producerOf("shop", null, "normal");
            SimpleConsumer consumer = simple("shop", "normal", "normal", FilterExpression.SUB_ALL)) {
            producer.send(message("normal", "shop").build());
            MessageView one = receive(consumer, 1).get(0);
            check(one.getTopic().equals("normal") && text(one).equals("shop"), one);
        }
        return null;
    }

    static String large() throws Exception {
        byte[] body = new byte[4 * 1024 * 1024];
        Arrays.fill(body, (byte) 'x');
        try (Producer producer = producer("large"); SimpleConsumer consumer = simple("large", "large")) {
            producer.send(PROVIDER.newMessageBuilder().setTopic("large").setBody(body).build());
            check(Arrays.equals(bytes(receive(consumer, 1).get(0)), body), "another body came");
        }
        return null;
    }

    static String lites() throws Exception {
        Map<String, List<String>> seen = new ConcurrentHashMap<>();
        MessageListener listener = view -> {
            seen.computeIfAbsent(view.getLiteTopic().get(), name -> new CopyOnWriteArrayList<>()).add(text(view));
            return ConsumeResult.SUCCESS;
        };
        try (var consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration(""))
            .setConsumerGroup("lites").bindTopic("rooms").setMessageListener(listener).build();
            Producer producer = producer("rooms")) {
            consumer.subscribeLite("a");
            for (int number = 0; number < 3; number++) {
                for (String lite : List.of("a", "b")) {
                    producer.send(message("rooms", lite + number).setLiteTopic(lite).build());
                }
            }
            until(() -> seen.getOrDefault("a", List.of()).size() >= 3, seen);
            check(seen.equals(Map.of("a", List.of("a0", "a1", "a2"))), seen);
            consumer.subscribeLite("b");
            until(() -> seen.getOrDefault("b", List.of()).size() >= 3, seen);
            check(seen.get("b").equals(List.of("b0", "b1", "b2")), seen);
            consumer.unsubscribeLite("a");
        }
        return null;
    }

    static String priorities() throws Exception {
        try (Producer producer = producer("alerts"); SimpleConsumer consumer = simple("priorities", "alerts")) {
            for (int priority : new int[] {0, 2, 1}) {
                producer.send(message("alerts", String.valueOf(priority)).setPriority(priority).build());
            }
            List<String> found = new ArrayList<>();
            for (MessageView one : receive(consumer, 3)) {
                found.add(text(one) + " " + one.getPriority().get());
            }
            check(found.equals(List.of("2 2", "1 1", "0 0")), found);
        }
        return null;
    }

    public static void main(String[] args) throws Exception {
        addresses = new ArrayList<>(List.of(args[0].split(",")));
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("normal", Main::normal);
        scenarios.put("delayed", Main::delayed);
        scenarios.put("recalls", Main::recalls);
        scenarios.put("transactions", Main::transactions);
        scenarios.put("leases", Main::leases);
        scenarios.put("failing", Main::failing);
        scenarios.put("ordered", Main::ordered);
        scenarios.put("groups", Main::groups);
        scenarios.put("filters", Main::filters);
        scenarios.put("namespaces", Main::namespaces);
        scenarios.put("large", Main::large);
        scenarios.put("lites", Main::lites);
        scenarios.put("priorities", Main::priorities);
        String only = System.getenv("CLIENTS_ONLY");
        try {
            for (Map.Entry<String, Scenario> one : scenarios.entrySet()) {
                if (only != null && !only.equals(one.getKey())) {
                    continue;
                }
                long began = System.currentTimeMillis();
                String said = one.getValue().run();
                double seconds = (System.currentTimeMillis() - began) / 1000.0;
                System.out.printf("%s %.1f s %s%n", one.getKey(), seconds, said == null ? "" : said);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.out.println("all went well");
        System.exit(0);
    }
}
