//! Devices through the binary: messages to WebSocket connections, on one node and on several.

mod broadcast;
mod cluster;
mod dashboard;
mod devices;
mod hostile;
#[path = "../shared/mod.rs"]
mod shared;
mod upstream;
