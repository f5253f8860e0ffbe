//! What a worker does for the metrics: what they are is `plan::metrics`.
//!
//! What is done for a request is in `recorder`, what is told of connections and nodes in `gauges`, of upstreams in `upstreams`,
//! of plugins in `plugins`,
//! of sessions in `streams`, of devices in `devices`, and of the workers themselves in `workers`.

mod devices;
mod gauges;
mod plugins;
mod recorder;
mod streams;
mod table;
mod upstreams;
mod values;
mod workers;

pub(crate) use devices::DeviceLabels;
pub(crate) use recorder::{Finished, Recorder, upstream};
pub(crate) use upstreams::UpstreamEvent;
