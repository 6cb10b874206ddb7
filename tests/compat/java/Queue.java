import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A queue as Java's share consumer uses it. Arguments: servers, topic, what to do; prints facts, one a line. */
public class Queue {
    static final Duration TURN = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;
    static String servers;
    static String topic;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        topic = args[1];
        configure("share.auto.offset.reset", "earliest");
        switch (args[2]) {
            case "sharing" -> sharing();
            case "answers" -> answers();
            case "timeout" -> timeout();
            default -> throw new IllegalArgumentException(args[2]);
        }
    }

    /** Two members take every record once, between them. */
    static void sharing() {
        Map<String, Integer> seen = new TreeMap<>();
        try (KafkaShareConsumer<String, String> one = consumer("implicit");
                KafkaShareConsumer<String, String> two = consumer("implicit")) {
            fill(30);
            for (long end = now() + PATIENCE_MS; seen.size() < 30 && now() < end; ) {
                one.poll(TURN).forEach(record -> seen.merge(record.value(), 1, Integer::sum));
                two.poll(TURN).forEach(record -> seen.merge(record.value(), 1, Integer::sum));
            }
            one.commitSync();
            two.commitSync();
        }
        System.out.println("seen " + seen.size() + ", at most " + seen.values().stream().max(Integer::compare) + " times");
    }

    /** Each record is answered in its own way; what comes again says how often it came. */
    static void answers() {
        fill(4);
        Map<String, List<Integer>> counts = new TreeMap<>();
        long done = 0;
        try (KafkaShareConsumer<String, String> consumer = consumer("explicit")) {
            for (long end = now() + PATIENCE_MS; done < 4 && now() < end; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(TURN)) {
                    int count = record.deliveryCount().get();
                    counts.computeIfAbsent(record.value(), value -> new ArrayList<>()).add(count);
                    AcknowledgeType answer = switch (record.value()) {
                        case "1" -> count < 2 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                        case "2" -> AcknowledgeType.REJECT;
                        case "3" -> count < 3 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                        default -> AcknowledgeType.ACCEPT;
                    };
                    done += answer == AcknowledgeType.RELEASE ? 0 : 1;
                    consumer.acknowledge(record, answer);
                }
                consumer.commitSync().values().forEach(error -> error.ifPresent(e -> System.out.println("error " + e)));
            }
        }
        System.out.println("deliveries " + counts);
    }

    /** What one member keeps without an answer goes to another when its lock is over. */
    static void timeout() throws Exception {
        configure("share.record.lock.duration.ms", "1000");
        fill(5);
        List<String> kept = new ArrayList<>();
        Map<String, Integer> counts = new TreeMap<>();
        KafkaShareConsumer<String, String> silent = consumer("explicit");
        for (long end = now() + PATIENCE_MS; kept.isEmpty() && now() < end; ) {
            silent.poll(TURN).forEach(record -> kept.add(record.value()));
        }
        try (KafkaShareConsumer<String, String> other = consumer("implicit")) {
            for (long end = now() + PATIENCE_MS; counts.size() < 5 && now() < end; ) {
                other.poll(TURN).forEach(record -> counts.put(record.value(), (int) record.deliveryCount().get()));
            }
        }
        boolean again = kept.stream().allMatch(value -> counts.get(value) == 2);
        System.out.println("kept some " + !kept.isEmpty() + ", got " + counts.size() + ", those kept again " + again);
        silent.close(Duration.ofSeconds(5));
    }

    static long now() {
        return System.currentTimeMillis();
    }

    static void configure(String name, String value) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "workers");
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.incrementalAlterConfigs(Map.of(group, List.of(change))).all().get();
        }
    }

    static void fill(int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, "" + n, "" + n));
            }
        }
    }

    static KafkaShareConsumer<String, String> consumer(String mode) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", "workers");
        settings.put("share.acknowledgement.mode", mode);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }
}
