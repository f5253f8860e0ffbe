//! What sessions of `stream_proxy` add when they end.
//!
//! They are looked up by their labels: a session costs a connection, and compared with that one more lookup is nothing.

use super::Recorder;
use crate::plan::metrics::{MetricsPlan, PlanFamily, node_label};
use crate::telemetry::session::ClientSession;
use std::fmt::Write;
use stillgate_config::{Label, LabelSource, Measure, NodeProtocol};
use stillgate_metrics::family::LABELS_MAX;

impl Recorder {
    /// Counts a session that has ended. Bytes are those from the client, and to it.
    pub(crate) fn record_session(
        &mut self,
        metrics: Option<&MetricsPlan>,
        session: &ClientSession,
        received: u64,
        sent: u64,
    ) {
        let Some(metrics) = metrics else { return };
        if let Some(family) = metrics.family(Measure::StreamSessions) {
            self.add_to_session(metrics, family, session, "", 1);
        }
        if let Some(family) = metrics.family(Measure::StreamBytes) {
            self.add_to_session(metrics, family, session, "ingress", received);
            self.add_to_session(metrics, family, session, "egress", sent);
        }
    }

    fn add_to_session(
        &mut self,
        metrics: &MetricsPlan,
        family: &PlanFamily,
        session: &ClientSession,
        direction: &str,
        amount: u64,
    ) {
        let (mut node, mut code) = (String::new(), String::new());
        let node = session.node.as_ref().map_or("", |of| node_label(of, metrics.node_is_ip, &mut node));
        write!(code, "{}", session.status).expect("writing to a String does not fail");
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match source {
                LabelSource::Label(Label::StreamRoute) => {
                    session.route.as_ref().map_or("", |route| &route.id).as_bytes()
                }
                LabelSource::Label(Label::Node) => node.as_bytes(),
                LabelSource::Label(Label::Code) => code.as_bytes(),
                LabelSource::Label(Label::Direction) => direction.as_bytes(),
                LabelSource::Label(Label::Protocol) if session.protocol == NodeProtocol::Udp => b"udp",
                LabelSource::Label(Label::Protocol) => b"tcp",
                // The families have no other labels, and none from variables.
                LabelSource::Label(_) | LabelSource::Variable(_) | LabelSource::Nothing => b"",
            };
        }
        let handle = self.writer.series(&family.declared, &values[..family.sources.len()]);
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = self.writer.add(handle, amount);
    }
}
