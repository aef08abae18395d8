#!/bin/sh
# tokio-cron-scheduler 0.15.1 (Rust) runs a one-time job up to almost two seconds before its time.
#
# `Job::new_one_shot` takes a Duration. It cuts off both that length and the present time to whole seconds, so 1.9 s ends
# at the next second. `new_one_shot_at_instant` does the same. `new_repeated` with 1.5 s runs every second; with 0.9 s it
# stops after two runs. The crate's page names no limit.
#
# Consequence: a pause of two seconds may be none, and a job of less than a second stops without an error.
# Remedy: whole seconds, one or two more than wanted; tokio's own `sleep` and `interval` for short ones.
#
# Output: 0.15.1
#         10 one-time jobs in 1.9 s: after 0.13 to 1.14 s
#         one at an instant in 1.9 s: after 0.75 s
#         in 10 s: every 1.5 s 10 runs, every 0.9 s 2 runs
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >Cargo.toml <<'MANIFEST'
[package]
name = "early"
version = "0.0.0"
edition = "2021"

[dependencies]
tokio = { version = "=1.54.1", features = ["macros", "rt-multi-thread", "time"] }
tokio-cron-scheduler = "=0.15.1"
uuid = "=1.29.3"
MANIFEST
cat >src/main.rs <<'PROGRAM'
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_cron_scheduler::{Job, JobScheduler};

type Waits = Arc<Mutex<Vec<f64>>>;

/// Keeps the seconds from now to each run of a job.
fn noting(waits: &Waits) -> impl FnMut(uuid::Uuid, JobScheduler) + Send + Sync + 'static {
    let (waits, start) = (waits.clone(), Instant::now());
    move |_, _| waits.lock().unwrap().push(start.elapsed().as_secs_f64())
}

#[tokio::main]
async fn main() {
    let scheduler = JobScheduler::new().await.unwrap();
    scheduler.start().await.unwrap();
    let delay = Duration::from_millis(1900);
    let [once, instant, slow, fast]: [Waits; 4] = Default::default();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(370)).await;
        scheduler.add(Job::new_one_shot(delay, noting(&once)).unwrap()).await.unwrap();
    }
    scheduler.add(Job::new_one_shot_at_instant(Instant::now() + delay, noting(&instant)).unwrap()).await.unwrap();
    for (length, waits) in [(1500, &slow), (900, &fast)] {
        let job = Job::new_repeated(Duration::from_millis(length), noting(waits)).unwrap();
        scheduler.add(job).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let once = once.lock().unwrap();
    let (least, most) = (once.iter().copied().fold(f64::MAX, f64::min), once.iter().copied().fold(0.0, f64::max));
    let (slow, fast) = (slow.lock().unwrap().len(), fast.lock().unwrap().len());
    println!("{} one-time jobs in 1.9 s: after {least:.2} to {most:.2} s", once.len());
    println!("one at an instant in 1.9 s: after {:.2} s", instant.lock().unwrap()[0]);
    println!("in 10 s: every 1.5 s {slow} runs, every 0.9 s {fast} runs");
    assert!(least < 1.2 && slow > 7 && fast < 5, "changed");
}
PROGRAM
cargo generate-lockfile --quiet
grep -A1 'name = "tokio-cron-scheduler"' Cargo.lock | sed -n 's/version = "\(.*\)"/\1/p'
cargo run --quiet
