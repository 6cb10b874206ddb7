import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Records and topics as Java programs use them. Arguments: servers, topic, what to do; prints facts, one a line. */
public class Basics {
    static final Duration TURN = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;
    static String servers;
    static TopicPartition place;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        place = new TopicPartition(args[1], 0);
        switch (args[2]) {
            case "records" -> records();
            case "admin" -> admin();
            default -> throw new IllegalArgumentException(args[2]);
        }
    }

    /** Sends a record with everything and a tombstone, with each compression, and reads from any offset. */
    static void records() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Properties settings = settings();
            settings.put("compression.type", codec);
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                RecordHeader header = new RecordHeader("codec", codec.getBytes(StandardCharsets.UTF_8));
                producer.send(new ProducerRecord<>(place.topic(), 0, 1000L, "key", "x".repeat(1000), List.of(header)));
                producer.send(new ProducerRecord<>(place.topic(), 0, 2000L, "key", null, List.of(header)));
            }
        }
        for (ConsumerRecord<String, String> record : read(0, 10)) {
            String codec = new String(record.headers().lastHeader("codec").value(), StandardCharsets.UTF_8);
            String size = record.value() == null ? "null" : "" + record.value().length();
            System.out.println(record.offset() + " " + codec + " " + record.timestamp() + " " + record.key() + " " + size);
        }
        System.out.println("from 7: " + read(7, 3).get(0).offset());
    }

    /** Creates, grows and deletes topics, changes a config, deletes records. */
    static void admin() throws Exception {
        String name = place.topic() + "-made";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
            admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
            System.out.println("partitions " + admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "5000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            System.out.println("retention.ms " + admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            admin.deleteTopics(List.of(name)).all().get();
            System.out.println("still there " + admin.listTopics().names().get().contains(name));
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings())) {
                for (int n = 0; n < 5; n++) {
                    producer.send(new ProducerRecord<>(place.topic(), 0, "key", "" + n));
                }
            }
            admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(3))).all().get();
            System.out.println("begins at " + read(3, 2).get(0).offset());
            try (KafkaConsumer<String, String> consumer = consumer()) {
                System.out.println("earliest " + consumer.beginningOffsets(Set.of(place)).get(place));
            }
        }
    }

    static List<ConsumerRecord<String, String>> read(long from, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(List.of(place));
            consumer.seek(place, from);
            for (long end = System.currentTimeMillis() + PATIENCE_MS; found.size() < count && System.currentTimeMillis() < end; ) {
                consumer.poll(TURN).forEach(found::add);
            }
        }
        return found;
    }

    static KafkaConsumer<String, String> consumer() {
        return new KafkaConsumer<>(settings());
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
