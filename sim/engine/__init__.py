"""The engine and the loop around it: queues and steps without a clock (core), and replicas in simulated time."""
