//! What a worker reports to the metrics about its devices.

use super::Worker;
use crate::telemetry::metrics::DeviceLabels;
use stillgate_config::Measure;
use stillgate_devices::protocol::DeviceProtocol;

impl Worker {
    /// Counts an event of devices.
    pub(crate) fn report_devices(&self, measure: Measure, labels: DeviceLabels<'_>, amount: u64) {
        if amount > 0 {
            self.report_plugin(|recorder, metrics| recorder.count_devices(metrics, measure, labels, amount));
        }
    }

    /// Counts an event of a device that its upstream will not get.
    pub(crate) fn report_device_event_dropped(&self, route: &str) {
        let labels = DeviceLabels { route, protocol: DeviceProtocol::Json, reason: "", direction: "" };
        self.report_devices(Measure::DeviceEventsDropped, labels, 1);
    }
}
