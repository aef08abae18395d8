#!/bin/sh
# Hazelcast 5.6.0 starts the delay of a scheduled task again when a member joins or leaves.
#
# A task with a delay of 20 s belongs to one of 271 partitions. When its partition moves to a member that joins, or when
# its member is shut down in good order, the new owner counts the whole delay from then. Tasks of other partitions keep
# their times. The documentation has this for a member that is lost; here no member is.
#
# Consequence: in a cluster that grows or is restarted once a day, a task with a delay of more than a day never runs.
# Remedy: a map of due times, and a short periodic task that looks through it.
#
# Output: 5.6.0
#         delay 20 s, a member joins after 10 s: 135 tasks after 20 s, 136 tasks after 30 s or more
#         delay 20 s, a member is shut down after 10 s: its tasks after 30 s or more
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >pom.xml <<'MANIFEST'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>restarts</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>com.hazelcast</groupId><artifactId>hazelcast</artifactId><version>5.6.0</version></dependency>
  </dependencies>
</project>
MANIFEST
cat >Restarts.java <<'PROGRAM'
import com.hazelcast.config.Config;
import com.hazelcast.config.ScheduledExecutorConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.partition.Partition;
import com.hazelcast.scheduledexecutor.TaskUtils;
import java.io.Serializable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Restarts {
  static final LinkedBlockingQueue<Map.Entry<Integer, Long>> ran = new LinkedBlockingQueue<>();

  record Note(int partition) implements Runnable, Serializable {
    public void run() {
      ran.add(Map.entry(partition, System.nanoTime()));
    }
  }

  static HazelcastInstance member(int port) {
    var config = new Config().addScheduledExecutorConfig(new ScheduledExecutorConfig("*").setCapacity(0))
        .setProperty("hazelcast.logging.type", "none")
        .setProperty("hazelcast.phone.home.enabled", "false").setProperty("hazelcast.socket.bind.any", "false");
    var network = config.getNetworkConfig().setPort(port).setPortAutoIncrement(false);
    network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
    var join = network.getJoin();
    join.getAutoDetectionConfig().setEnabled(false);
    join.getTcpIpConfig().setEnabled(true).addMember("127.0.0.1:25701").addMember("127.0.0.1:25702");
    return Hazelcast.newHazelcastInstance(config);
  }

  static Set<Integer> partitions(HazelcastInstance of) {
    var found = new HashSet<Integer>();
    for (Partition one : of.getPartitionService().getPartitions()) {
      if (of.getCluster().getLocalMember().equals(one.getOwner())) found.add(one.getPartitionId());
    }
    return found;
  }

  /** Schedules one task in each partition, due in 20 s, and gives the time. */
  static long schedule(HazelcastInstance at, String name) {
    var service = at.getScheduledExecutorService(name);
    var keys = new HashMap<Integer, Integer>();
    for (int key = 0; keys.size() < 271; key++) {
      keys.putIfAbsent(at.getPartitionService().getPartition(key).getPartitionId(), key);
    }
    long began = System.nanoTime();
    keys.forEach((partition, key) -> service.scheduleOnKeyOwner(
        TaskUtils.named(name + partition, new Note(partition)), key, 20, TimeUnit.SECONDS));
    return began;
  }

  /** The seconds after `began` at which each partition's task ran. */
  static Map<Integer, Double> times(long began) throws Exception {
    var found = new HashMap<Integer, Double>();
    while (found.size() < 271) {
      var one = ran.poll(90, TimeUnit.SECONDS);
      if (one == null) throw new AssertionError("only " + found.size() + " tasks ran");
      if (found.put(one.getKey(), (one.getValue() - began) / 1e9) != null) throw new AssertionError("twice");
    }
    return found;
  }

  static boolean are(Map<Integer, Double> times, Set<Integer> partitions, boolean restarted) {
    return partitions.stream().allMatch(one -> restarted ? times.get(one) >= 30 : times.get(one) >= 20 && times.get(one) < 30);
  }

  public static void main(String[] arguments) {
    try {
      compare();
      System.exit(0);
    } catch (Throwable changed) {
      changed.printStackTrace(System.out);
      System.exit(1);
    }
  }

  static void compare() throws Exception {
    System.out.println("5.6.0");
    var first = member(25701);
    var began = schedule(first, "join");
    Thread.sleep(10_000);
    var second = member(25702);
    var times = times(began);
    Set<Integer> stayed = partitions(first), moved = partitions(second);
    System.out.printf("delay 20 s, a member joins after 10 s: %d tasks after 20 s, %d tasks after 30 s or more%n",
        stayed.size(), moved.size());
    if (moved.isEmpty() || !are(times, stayed, false) || !are(times, moved, true)) throw new AssertionError(times);
    began = schedule(first, "leave");
    Thread.sleep(10_000);
    second.shutdown();
    times = times(began);
    System.out.println("delay 20 s, a member is shut down after 10 s: its tasks after 30 s or more");
    if (!are(times, stayed, false) || !are(times, moved, true)) throw new AssertionError(times);
  }
}
PROGRAM
mvn -q -B -Dmaven.repo.local="$folder/maven" dependency:build-classpath -Dmdep.outputFile=classpath >maven.log
javac -cp "$(cat classpath)" Restarts.java
java -cp "$(cat classpath):." Restarts 2>/dev/null
