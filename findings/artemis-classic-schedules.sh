#!/bin/sh
# ActiveMQ Artemis 2.44.0 delivers a repeated message of ActiveMQ Classic 5.19.1 once.
#
# One client, Classic's, sends the same messages to both over OpenWire. AMQ_SCHEDULED_DELAY has its effect in both.
# Artemis ignores AMQ_SCHEDULED_CRON, AMQ_SCHEDULED_PERIOD and AMQ_SCHEDULED_REPEAT without an error.
# A message with a cron expression comes at once.
#
# Consequence: after a move from Classic to Artemis, a message for each Monday is delivered once, on the day it is sent.
# Remedy: a scheduler of its own; Artemis has delays only.
#
# Output: Classic 5.19.1: delay of 2 s: 1 later; cron of 1 January: 0; each second, twice more: 3 later
#         Artemis 2.44.0: delay of 2 s: 1 later; cron of 1 January: 1 at once; each second, twice more: 1 later
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >pom.xml <<'MANIFEST'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>schedules</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>javax.jms</groupId><artifactId>javax.jms-api</artifactId><version>2.0.1</version></dependency>
    <dependency>
      <groupId>org.apache.activemq</groupId><artifactId>artemis-openwire-protocol</artifactId><version>2.44.0</version>
    </dependency>
    <dependency>
      <groupId>org.apache.activemq</groupId><artifactId>artemis-server</artifactId><version>2.44.0</version>
    </dependency>
    <dependency>
      <groupId>org.apache.activemq</groupId><artifactId>activemq-broker</artifactId><version>5.19.1</version>
    </dependency>
    <dependency>
      <groupId>org.apache.activemq</groupId><artifactId>activemq-kahadb-store</artifactId><version>5.19.1</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
MANIFEST
cat >Schedules.java <<'PROGRAM'
import java.util.Map;
import java.util.concurrent.TimeUnit;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.ActiveMQServers;
import org.apache.activemq.broker.BrokerService;

public class Schedules {
  static final int SECONDS = 8;

  /** The deliveries of a message with these properties within 8 s, and whether the first one came at once. */
  static String deliveries(int port, String name, Map<String, Object> properties) throws Exception {
    int found = 0;
    long first = 0;
    try (var connection = new ActiveMQConnectionFactory("tcp://127.0.0.1:" + port).createConnection()) {
      connection.start();
      var session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
      var queue = session.createQueue(name);
      var consumer = session.createConsumer(queue);
      var message = session.createTextMessage("text");
      for (var one : properties.entrySet()) message.setObjectProperty(one.getKey(), one.getValue());
      long began = System.nanoTime();
      session.createProducer(queue).send(message);
      for (;;) {
        long left = SECONDS * 1000 - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        if (left <= 0 || consumer.receive(left) == null) break;
        if (found++ == 0) first = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
      }
    }
    return found + (found == 0 ? "" : first < 1000 ? " at once" : " later");
  }

  static void check(String broker, int port, String expected) throws Exception {
    var found = "delay of 2 s: " + deliveries(port, "delay", Map.of("AMQ_SCHEDULED_DELAY", 2000L))
        + "; cron of 1 January: " + deliveries(port, "cron", Map.of("AMQ_SCHEDULED_CRON", "0 0 1 1 *"))
        + "; each second, twice more: " + deliveries(port, "period", Map.of(
            "AMQ_SCHEDULED_DELAY", 1500L, "AMQ_SCHEDULED_PERIOD", 1000L, "AMQ_SCHEDULED_REPEAT", 2));
    System.out.println(broker + ": " + found);
    if (!found.equals(expected)) throw new AssertionError("changed: expected " + expected);
  }

  static void compare() throws Exception {
    var classic = new BrokerService();
    classic.setDataDirectory("classic");
    classic.setUseJmx(false);
    classic.setSchedulerSupport(true);
    classic.addConnector("tcp://127.0.0.1:25616");
    classic.start();
    check("Classic 5.19.1", 25616, "delay of 2 s: 1 later; cron of 1 January: 0; each second, twice more: 3 later");
    var settings = new ConfigurationImpl().setPersistenceEnabled(false).setSecurityEnabled(false);
    settings.addAcceptorConfiguration("openwire", "tcp://127.0.0.1:25617?protocols=OPENWIRE");
    ActiveMQServers.newActiveMQServer(settings).start();
    check("Artemis 2.44.0", 25617,
        "delay of 2 s: 1 later; cron of 1 January: 1 at once; each second, twice more: 1 later");
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
}
PROGRAM
mvn -q -B -Dmaven.repo.local="$folder/maven" dependency:build-classpath -Dmdep.outputFile=classpath >maven.log
javac -cp "$(cat classpath)" Schedules.java
java -cp "$(cat classpath):." Schedules 2>java.log
