import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Two members of a group share three partitions, one leaves, the other takes over and goes on at what is committed.
 * Arguments: servers, topic, protocol (consumer or classic); prints facts, one a line.
 */
public class Members {
    static final Duration TURN = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;
    static final Map<String, Integer> seen = new HashMap<>();
    static String servers;
    static String topic;
    static String protocol;

    public static void main(String[] args) {
        servers = args[0];
        topic = args[1];
        protocol = args[2];
        KafkaConsumer<String, String> stays = consumer();
        try (KafkaConsumer<String, String> leaves = consumer()) {
            for (long end = now() + PATIENCE_MS; !shared(stays, leaves) && now() < end; ) {
                poll(stays);
                poll(leaves);
            }
            System.out.println("shared " + shared(stays, leaves));
            fill(0, 30);
            for (long end = now() + PATIENCE_MS; seen.size() < 30 && now() < end; ) {
                poll(stays);
                poll(leaves);
            }
            stays.commitSync();
            leaves.commitSync();
        }
        for (long end = now() + PATIENCE_MS; stays.assignment().size() < 3 && now() < end; ) {
            poll(stays);
        }
        System.out.println("taken over " + (stays.assignment().size() == 3));
        fill(30, 60);
        for (long end = now() + PATIENCE_MS; seen.size() < 60 && now() < end; ) {
            poll(stays);
        }
        stays.commitSync();
        stays.close();
        System.out.println("seen " + seen.size() + ", at most " + seen.values().stream().max(Integer::compare).get() + " times");
    }

    static boolean shared(KafkaConsumer<String, String> one, KafkaConsumer<String, String> two) {
        int first = one.assignment().size();
        int second = two.assignment().size();
        return first > 0 && second > 0 && first + second == 3;
    }

    static void poll(KafkaConsumer<String, String> consumer) {
        consumer.poll(TURN).forEach(record -> seen.merge(record.value(), 1, Integer::sum));
    }

    static long now() {
        return System.currentTimeMillis();
    }

    static void fill(int from, int to) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int n = from; n < to; n++) {
                producer.send(new ProducerRecord<>(topic, n % 3, "key", "" + n));
            }
        }
    }

    static KafkaConsumer<String, String> consumer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", "readers");
        settings.put("group.protocol", protocol);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }
}
