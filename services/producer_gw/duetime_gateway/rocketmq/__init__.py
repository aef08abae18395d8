"""RocketMQ's protocol, `apache.rocketmq.v2.MessagingService`: a second face of the gateway (docs/rocketmq.md)."""
