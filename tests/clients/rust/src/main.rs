// Scenarios of RocketMQ's official Rust client with a cluster: client HOST:PORT,HOST:PORT.
// Each scenario prints its name once it has passed. `../official.py` lists the topics and groups that it needs, and the
// variables for connecting. The client has producers and simple consumers only. It trusts the CAs of SSL_CERT_FILE.
use std::collections::HashSet;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const PATIENCE: Duration = Duration::from_secs(120);
// On a busy machine; nothing may come early, not even by a millisecond.
const LATE_MS_MAX: i64 = 20_000;
const LEASE: Duration = Duration::from_secs(60);

type Outcome = Result<String, ClientError>;

fn option() -> ClientOption {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let addresses: Vec<String> = env::args().nth(1).expect("an address").split(',').map(String::from).collect();
    let mut option = ClientOption::default();
    option.set_access_url(addresses[NEXT.fetch_add(1, Ordering::Relaxed) % addresses.len()].clone());
    option.set_enable_tls(env::var("CLIENTS_TLS").is_ok());
    option.set_timeout(Duration::from_secs(30));
    option.set_long_polling_timeout(Duration::from_secs(5));
    if let (Ok(key), Ok(secret)) = (env::var("CLIENTS_ACCESS_KEY"), env::var("CLIENTS_SECRET")) {
        option.set_access_key(key);
        option.set_secret_key(secret);
    }
    option
}

fn topics(names: &[&str]) -> ProducerOption {
    let mut own = ProducerOption::default();
    own.set_topics(names.to_vec());
    own.set_logging_format(LoggingFormat::Terminal);
    own
}

async fn producing(names: &[&str]) -> Result<Producer, ClientError> {
    let mut producer = Producer::new(topics(names), option())?;
    producer.start().await?;
    Ok(producer)
}

async fn consuming(group: &str, topic: &str) -> Result<SimpleConsumer, ClientError> {
    let mut own = SimpleConsumerOption::default();
    own.set_consumer_group(group);
    own.set_topics(vec![topic]);
    own.set_logging_format(LoggingFormat::Terminal);
    let mut consumer = SimpleConsumer::new(own, option())?;
    consumer.start().await?;
    Ok(consumer)
}

async fn lease(
    consumer: &SimpleConsumer,
    topic: &str,
    wanted: &FilterExpression,
    count: usize,
    invisible: Duration,
) -> Result<Vec<MessageView>, ClientError> {
    let (mut found, began) = (Vec::new(), Instant::now());
    while found.len() < count && began.elapsed() < PATIENCE {
        found.extend(consumer.receive_with(topic, wanted, 32, invisible).await?);
    }
    assert_eq!(found.len(), count, "{:?}", texts(&found));
    Ok(found)
}

async fn receive(consumer: &SimpleConsumer, topic: &str, count: usize) -> Result<Vec<MessageView>, ClientError> {
    let found = lease(consumer, topic, &all(), count, LEASE).await?;
    for one in &found {
        consumer.ack(one).await?;
    }
    Ok(found)
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

fn text(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}

fn texts(messages: &[MessageView]) -> Vec<String> {
    let mut found: Vec<String> = messages.iter().map(text).collect();
    found.sort();
    found
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn plain(topic: &str, body: &str) -> MessageBuilder {
    MessageBuilder::builder().set_topic(topic).set_body(body.as_bytes().to_vec())
}

async fn send(producer: &Producer, message: MessageBuilder) -> Result<String, ClientError> {
    Ok(producer.send(message.build()?).await?.message_id().to_string())
}

// --- scenarios ------------------------------------------------------------------------------------------------------

async fn normal() -> Outcome {
    let producer = producing(&["normal", "second"]).await?;
    let mut sent = HashSet::new();
    for number in 0..10 {
        let message = plain("normal", &format!("normal-{number}"))
            .set_tag("t")
            .set_keys(vec!["k"])
            .set_properties([("colour", "blue")].into_iter().collect());
        sent.insert(send(&producer, message).await?);
    }
    send(&producer, plain("second", "second")).await?;
    let consumer = consuming("normal", "normal").await?;
    for one in receive(&consumer, "normal", 10).await? {
        assert!(sent.contains(one.message_id()), "{}", one.message_id());
        assert_eq!((one.tag(), one.keys()), (Some("t"), &["k".to_string()][..]));
        assert_eq!(one.properties().get("colour").map(String::as_str), Some("blue"));
        assert_eq!(one.delivery_attempt(), 1);
    }
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

async fn delayed() -> Outcome {
    let producer = producing(&["delayed"]).await?;
    let consumer = consuming("delayed", "delayed").await?;
    for number in 0..5 {
        // The client sends whole seconds.
        let due_s = now_ms() / 1_000 + 2 + number;
        let body = (due_s * 1_000).to_string();
        let message = MessageBuilder::delay_message_builder("delayed", body.into_bytes(), due_s);
        producer.send(message.build()?).await?;
    }
    let (mut lateness, began) = (Vec::new(), Instant::now());
    while lateness.len() < 5 && began.elapsed() < PATIENCE {
        for one in consumer.receive_with("delayed", &all(), 32, LEASE).await? {
            let due_ms: i64 = text(&one).parse().unwrap();
            lateness.push(now_ms() - due_ms);
            assert_eq!(one.delivery_timestamp(), Some(due_ms / 1_000));
            consumer.ack(&one).await?;
        }
    }
    lateness.sort();
    assert!(lateness.len() == 5 && lateness[0] >= 0 && lateness[4] < LATE_MS_MAX, "{lateness:?}");
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(format!("{} to {} ms late", lateness[0], lateness[4]))
}

async fn transactions() -> Outcome {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let check = Box::new(move |_: String, message: MessageView| {
        seen.lock().unwrap().push(text(&message));
        TransactionResolution::COMMIT
    });
    let mut producer = Producer::new_transaction_producer(topics(&["transactions"]), option(), check)?;
    producer.start().await?;
    for end in ["commit", "rollback", "checked"] {
        let message = MessageBuilder::transaction_message_builder("transactions", end.as_bytes().to_vec());
        let transaction = producer.send_transaction_message(message.build()?).await?;
        match end {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
    }
    let consumer = consuming("transactions", "transactions").await?;
    let found = receive(&consumer, "transactions", 2).await?;
    assert_eq!(texts(&found), ["checked", "commit"]);
    assert!(consumer.receive_with("transactions", &all(), 32, LEASE).await?.is_empty(), "one more came");
    assert!(asked.lock().unwrap().contains(&"checked".to_string()));
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

async fn leases() -> Outcome {
    let producer = producing(&["leases"]).await?;
    send(&producer, plain("leases", "lapse")).await?;
    let consumer = consuming("leases", "leases").await?;
    lease(&consumer, "leases", &all(), 1, Duration::from_secs(1)).await?;
    let second = receive(&consumer, "leases", 1).await?;
    assert_eq!(second[0].delivery_attempt(), 2);
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

// The client cannot return a message: its leases end.
async fn failing() -> Outcome {
    let producer = producing(&["failing"]).await?;
    for body in ["good", "bad"] {
        send(&producer, plain("failing", body)).await?;
    }
    let consumer = consuming("failing", "failing").await?;
    let (mut seen, began) = (Vec::new(), Instant::now());
    while seen.len() < 3 && began.elapsed() < PATIENCE {
        for one in consumer.receive_with("failing", &all(), 32, Duration::from_secs(5)).await? {
            seen.push(format!("{} {}", text(&one), one.delivery_attempt()));
            if text(&one) == "good" {
                consumer.ack(&one).await?;
            }
        }
    }
    seen.sort();
    assert_eq!(seen, ["bad 1", "bad 2", "good 1"]);
    // It becomes a dead letter when its second lease ends; nobody receives it again.
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let more = consumer.receive_with("failing", &all(), 32, LEASE).await?;
        assert!(more.is_empty(), "{:?}", texts(&more));
    }
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

async fn ordered() -> Outcome {
    let producer = producing(&["ordered"]).await?;
    for number in 0..20 {
        let body = number.to_string().into_bytes();
        producer.send(MessageBuilder::fifo_message_builder("ordered", body, "one").build()?).await?;
    }
    let consumer = consuming("ordered", "ordered").await?;
    let mut seen = Vec::new();
    let began = Instant::now();
    while seen.len() < 20 && began.elapsed() < PATIENCE {
        for one in consumer.receive_with("ordered", &all(), 32, LEASE).await? {
            assert_eq!(one.message_group(), Some("one"));
            seen.push(text(&one));
            consumer.ack(&one).await?;
        }
    }
    assert_eq!(seen, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

async fn groups() -> Outcome {
    let producer = producing(&["groups"]).await?;
    for body in ["a", "b", "c"] {
        send(&producer, plain("groups", body)).await?;
    }
    for group in ["one", "other"] {
        let consumer = consuming(group, "groups").await?;
        let found = receive(&consumer, "groups", 3).await?;
        assert_eq!(texts(&found), ["a", "b", "c"], "{group}");
        consumer.shutdown().await?;
    }
    producer.shutdown().await?;
    Ok(String::new())
}

async fn filters() -> Outcome {
    let producer = producing(&["filters"]).await?;
    for (tag, level) in [("red", "1"), ("green", "2"), ("blue", "3")] {
        let message = plain("filters", tag).set_tag(tag).set_properties([("level", level)].into_iter().collect());
        send(&producer, message).await?;
    }
    for (group, kind, expression, expected) in [
        ("tags", FilterType::Tag, "red || blue", ["blue", "red"]),
        ("sql", FilterType::Sql, "level >= 2", ["blue", "green"]),
    ] {
        let consumer = consuming(group, "filters").await?;
        let wanted = FilterExpression::new(kind, expression);
        let found = lease(&consumer, "filters", &wanted, 2, LEASE).await?;
        assert_eq!(texts(&found), expected, "{expression}");
        consumer.shutdown().await?;
    }
    producer.shutdown().await?;
    Ok(String::new())
}

async fn large() -> Outcome {
    let body = vec![b'x'; 4_000_000];
    let producer = producing(&["large"]).await?;
    producer.send(MessageBuilder::builder().set_topic("large").set_body(body.clone()).build()?).await?;
    let consumer = consuming("large", "large").await?;
    let found = receive(&consumer, "large", 1).await?;
    assert_eq!(found[0].body(), body);
    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(String::new())
}

#[tokio::main]
async fn main() {
    let only = env::var("CLIENTS_ONLY").ok();
    macro_rules! scenarios {
        ($($name:ident),*) => {
            $(if only.as_deref().is_none_or(|one| one == stringify!($name)) {
                let said = $name().await.unwrap_or_else(|error| panic!("{}: {error:?}", stringify!($name)));
                println!("{} {said}", stringify!($name));
            })*
        };
    }
    scenarios!(normal, delayed, transactions, leases, failing, ordered, groups, filters, large);
    println!("all went well");
}
