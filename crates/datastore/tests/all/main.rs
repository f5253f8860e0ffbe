//! Tests of stores that survive kills and full disks, and of etcd.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod etcd;
mod full_disk;
mod kill;
