//! A worker's part in the metrics; their definitions are in `plan::metrics`.
//!
//! What is done for a request is in `recorder`, what is reported about connections and nodes in `gauges`, about upstreams in
//! `upstreams`, about plugins in `plugins`, about sessions in `streams`, about devices in `devices`, and about the workers
//! themselves in `workers`.

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
pub(crate) use recorder::{FinishedRequest, Recorder, upstream};
pub(crate) use upstreams::UpstreamEvent;
