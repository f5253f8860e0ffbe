//! Balancers, health, pools, queues, retries and DNS with time and randomness as arguments.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod balancer;
mod dns;
mod health;
mod migrate;
mod pool;
mod queue;
