"""Files of RocketMQ brokers that DueTime only reads: their engines, settings, timers, transactions, POP."""
