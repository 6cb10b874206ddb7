import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions as Java programs use them. Arguments: servers, topic, what to do; prints facts, one a line. */
public class Transactions {
    static final Duration TURN = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;
    static String servers;
    static String topic;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        topic = args[1];
        switch (args[2]) {
            case "ends" -> ends();
            case "fencing" -> fencing();
            case "offsets" -> offsets();
            default -> throw new IllegalArgumentException(args[2]);
        }
    }

    static void ends() {
        try (KafkaProducer<String, String> producer = producer("writer")) {
            producer.initTransactions();
            for (String value : List.of("committed 1", "aborted 1", "committed 2", "aborted 2")) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    producer.send(new ProducerRecord<>(topic, partition, "key", value));
                }
                producer.flush();
                if (value.startsWith("committed")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        System.out.println("read_committed " + read(topic, "read_committed"));
        System.out.println("read_uncommitted " + read(topic, "read_uncommitted"));
    }

    static void fencing() {
        KafkaProducer<String, String> zombie = producer("writer");
        zombie.initTransactions();
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, "key", "zombie"));
        zombie.flush();
        try (KafkaProducer<String, String> heir = producer("writer")) {
            heir.initTransactions();
            try {
                zombie.commitTransaction();
                System.out.println("fenced no");
            } catch (KafkaException error) {
                System.out.println("fenced " + error.getClass().getSimpleName());
            }
            zombie.close(Duration.ZERO);
            heir.beginTransaction();
            heir.send(new ProducerRecord<>(topic, 0, "key", "heir"));
            heir.commitTransaction();
        }
        System.out.println("read_committed " + read(topic, "read_committed"));
    }

    /** Copies records with their offsets in the transaction: once committed, once aborted. */
    static void offsets() {
        try (KafkaProducer<String, String> producer = producer("copier");
                KafkaConsumer<String, String> consumer = consumer("copiers", "read_committed")) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            for (boolean commits : new boolean[] {true, false}) {
                fill(5);
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                int copied = 0;
                for (long end = System.currentTimeMillis() + PATIENCE_MS; copied < 5 && now() < end; ) {
                    for (ConsumerRecord<String, String> record : consumer.poll(TURN)) {
                        producer.send(new ProducerRecord<>(topic + ".copy", "key", record.value()));
                        next.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                        copied++;
                    }
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                long sum = 0;
                for (OffsetAndMetadata offset : committed.values()) {
                    sum += offset == null ? 0 : offset.offset();
                }
                System.out.println((commits ? "after commit " : "after abort ") + copied + " read, " + sum + " committed");
            }
        }
        System.out.println("copied " + read(topic + ".copy", "read_committed").size());
    }

    static long now() {
        return System.currentTimeMillis();
    }

    static void fill(int count) {
        Properties settings = settings();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, n % 3, "key", "record " + n));
            }
        }
    }

    static List<String> read(String from, String isolation) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("readers-" + isolation, isolation)) {
            List<TopicPartition> places = new ArrayList<>();
            consumer.partitionsFor(from).forEach(p -> places.add(new TopicPartition(from, p.partition())));
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            long patience = now() + PATIENCE_MS;
            while (places.stream().anyMatch(p -> consumer.position(p) < ends.get(p)) && now() < patience) {
                consumer.poll(TURN).forEach(record -> found.add(record.value()));
            }
        }
        Collections.sort(found);
        return found;
    }

    static KafkaProducer<String, String> producer(String id) {
        Properties settings = settings();
        settings.put("transactional.id", id);
        return new KafkaProducer<>(settings);
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation) {
        Properties settings = settings();
        settings.put("group.id", group);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings);
    }

    static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return settings;
    }
}
