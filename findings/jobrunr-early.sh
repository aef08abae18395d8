#!/bin/sh
# JobRunr 8.7.0 (Java) runs a scheduled job up to one poll interval before its time: 15 s by default.
#
# Each look queues the jobs that are due before the next look, and nothing waits for the time itself: the next worker
# that asks for work has them. A worker asks after each job and once an interval. So a server with other work runs jobs
# early, and an idle one often late by an interval. Here 300 jobs are spread over 45 s, beside a chain of short jobs.
#
# Consequence: many jobs run early, and a job that checks a condition of its time has to check the clock too.
# Remedy: a short poll interval (5 s is the least) makes jobs less early, not on time.
#
# Output: 8.7.0
#         poll interval 15 s: 112 of 300 jobs early, the earliest by 15 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >pom.xml <<'MANIFEST'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>early</groupId>
  <artifactId>early</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.jobrunr</groupId><artifactId>jobrunr</artifactId><version>8.7.0</version></dependency>
    <dependency>
      <groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-databind</artifactId><version>2.18.2</version>
    </dependency>
    <dependency>
      <groupId>com.fasterxml.jackson.datatype</groupId><artifactId>jackson-datatype-jsr310</artifactId>
      <version>2.18.2</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
MANIFEST
cat >Early.java <<'PROGRAM'
import static org.jobrunr.server.BackgroundJobServerConfiguration.usingStandardBackgroundJobServerConfiguration;

import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.jobrunr.configuration.JobRunr;
import org.jobrunr.scheduling.BackgroundJob;
import org.jobrunr.storage.InMemoryStorageProvider;

public class Early {
  static final int JOBS = 300;
  static final LinkedBlockingQueue<Long> early = new LinkedBlockingQueue<>();

  public static void note(long dueMs) {
    early.add(dueMs - System.currentTimeMillis());
  }

  public static void work() throws Exception {
    Thread.sleep(200);
    BackgroundJob.enqueue(() -> work());
  }

  public static void main(String[] arguments) throws Exception {
    System.out.println("8.7.0");
    var byDefault = usingStandardBackgroundJobServerConfiguration();
    var jobs = JobRunr.configure().useStorageProvider(new InMemoryStorageProvider())
        .useBackgroundJobServer(byDefault.andWorkerCount(4)).initialize().getJobScheduler();
    BackgroundJob.enqueue(() -> work());
    long first = System.currentTimeMillis() + 1000;
    for (int job = 0; job < JOBS; job++) {
      long dueMs = first + job * 45_000L / JOBS;
      jobs.schedule(Instant.ofEpochMilli(dueMs), () -> note(dueMs));
    }
    var found = new ArrayList<Long>();
    while (found.size() < JOBS) {
      Long next = early.poll(120, TimeUnit.SECONDS);
      if (next == null) throw new AssertionError("only " + found.size() + " jobs ran");
      found.add(next);
    }
    long before = found.stream().filter(ms -> ms > 0).count();
    double most = Collections.max(found) / 1000.0;
    System.out.printf("poll interval 15 s: %d of %d jobs early, the earliest by %.0f s%n", before, JOBS, most);
    if (before < 20 || most < 10 || most > 15) throw new AssertionError("changed");
    System.exit(0);
  }
}
PROGRAM
mvn -q -B -Dmaven.repo.local="$folder/maven" dependency:build-classpath -Dmdep.outputFile=classpath >maven.log
javac -cp "$(cat classpath)" Early.java
java -cp "$(cat classpath):." Early
