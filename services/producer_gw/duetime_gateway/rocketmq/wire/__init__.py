"""Messages of `apache.rocketmq.v2`, generated from proto/ by `make proto`."""
