//! What connections of devices add. The device itself is not a label, however few there are.
//!
//! Series are looked up by their labels: connections come and go seldom, and messages are reported together.

use super::Recorder;
use crate::plan::metrics::MetricsPlan;
use stillgate_config::{Label, LabelSource, Measure};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_metrics::family::LABELS_MAX;

/// Labels that select the devices reported on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceLabels<'a> {
    /// The id of their route.
    pub(crate) route: &'a str,
    pub(crate) protocol: DeviceProtocol,
    /// For a connection that has ended.
    pub(crate) reason: &'a str,
    /// For messages.
    pub(crate) direction: &'a str,
}

impl Recorder {
    /// Adds to a family of devices, where it is exposed.
    pub(crate) fn count_devices(
        &mut self,
        metrics: &MetricsPlan,
        measure: Measure,
        labels: DeviceLabels<'_>,
        amount: u64,
    ) {
        let Some(family) = metrics.family(measure) else { return };
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match source {
                LabelSource::Label(Label::Route) => labels.route.as_bytes(),
                LabelSource::Label(Label::Protocol) => name(labels.protocol).as_bytes(),
                LabelSource::Label(Label::Reason) => labels.reason.as_bytes(),
                LabelSource::Label(Label::Direction) => labels.direction.as_bytes(),
                // The families have no other labels, and none from variables.
                LabelSource::Label(_) | LabelSource::Variable(_) | LabelSource::Nothing => b"",
            };
        }
        let handle = self.writer.series(&family.declared, &values[..family.sources.len()]);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = self.writer.add(handle, amount);
    }
}

/// Name of the protocol as a label.
fn name(protocol: DeviceProtocol) -> &'static str {
    match protocol {
        DeviceProtocol::Json => "json",
        DeviceProtocol::Cbor => "cbor",
        DeviceProtocol::Raw => "raw",
    }
}
