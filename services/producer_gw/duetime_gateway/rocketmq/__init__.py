"""RocketMQ's protocol: a second face, `apache.rocketmq.v2.MessagingService`, over the same rooms (docs/rocketmq.md)."""
