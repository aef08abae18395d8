#!/bin/sh
# Redisson 3.52.0 (Java): a delayed element stays where it is after its producer has ended.
#
# A producer offers an element with a delay of 2 s to a RDelayedQueue of a blocking queue and ends after a second. A
# consumer that waits at the blocking queue has nothing after 15 s. No process moves the element at its time: only
# clients do that which have called `getDelayedQueue`. A consumer that calls it, and does nothing else with it, has
# the element at once. The element itself is in Redis all the time. Redis 7.0.15 of Debian 12, on a port of loopback.
#
# Consequence: delayed work stops with a restart or a scale-down of its producers, and no consumer has an error.
# Remedy: consumers that call `getDelayedQueue` too.
#
# Output: Redis server v=7.0.15
#         redisson-3.52.0
#         producer ended, poll of the blocking queue: null after 15 s
#         after getDelayedQueue of the consumer: late
#         producer alive, poll of the blocking queue: on time
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$(dirname "$0")/redis.sh"
cd "$folder"
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
for setting in "bind 127.0.0.1" "port $port"; do
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH=$libraries redis/usr/bin/redis-cli -s redis.sock config set $setting >redis-cli.log
done
cat >pom.xml <<'MANIFEST'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>delayed</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.redisson</groupId><artifactId>redisson</artifactId><version>3.52.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.17</version></dependency>
  </dependencies>
</project>
MANIFEST
cat >Delayed.java <<'PROGRAM'
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

@SuppressWarnings("deprecation")
public class Delayed {
  static RedissonClient client(String port) {
    var config = new Config();
    config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
    return Redisson.create(config);
  }

  static RedissonClient producer(String port, String element) {
    var client = client(port);
    client.getDelayedQueue(client.<String>getBlockingQueue("queue")).offer(element, 2, TimeUnit.SECONDS);
    return client;
  }

  static void expect(String words, String expected, String found) {
    System.out.println(words + found);
    if (!expected.equals(found)) throw new IllegalStateException("changed: " + found);
  }

  public static void main(String[] arguments) throws Exception {
    var port = arguments[0];
    var producer = producer(port, "late");
    Thread.sleep(1000);
    producer.shutdown();
    var consumer = client(port);
    var queue = consumer.<String>getBlockingQueue("queue");
    var none = queue.poll(15, TimeUnit.SECONDS);
    expect("producer ended, poll of the blocking queue: ", "null after 15 s", none + " after 15 s");
    var delayed = consumer.getDelayedQueue(queue);
    expect("after getDelayedQueue of the consumer: ", "late", queue.poll(60, TimeUnit.SECONDS));
    delayed.destroy();
    producer = producer(port, "on time");
    expect("producer alive, poll of the blocking queue: ", "on time", queue.poll(60, TimeUnit.SECONDS));
    producer.shutdown();
    consumer.shutdown();
  }
}
PROGRAM
mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies -DincludeScope=runtime \
  -DoutputDirectory=jars
basename jars/redisson-3* .jar
java -cp 'jars/*' Delayed.java "$port"
