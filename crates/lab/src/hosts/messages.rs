//! The requests to an agent and its answers: one JSON object per line, one answer per request.

use crate::result::environment::Environment;
use crate::result::run::{Placement, Subject};
use crate::target::{MetricsAddress, Spec};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// To an agent. Programs that it has started are identified by the numbers that it assigned.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Requests the environment of its machine.
    Hello,
    StartTarget {
        spec: Box<Spec>,
        upstream: SocketAddr,
        placement: Placement,
    },
    StartUpstream {
        ip: IpAddr,
        body_bytes: usize,
    },
    CpuTimeUs {
        number: u64,
    },
    RssKib {
        number: u64,
    },
    Alive {
        number: u64,
    },
    Stop {
        number: u64,
    },
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Hello {
        version: String,
        environment: Box<Environment>,
    },
    Target(Box<TargetStarted>),
    Upstream {
        number: u64,
        address: SocketAddr,
    },
    CpuTimeUs(f64),
    RssKib(u64),
    Done,
    /// With an error message.
    Failed(String),
}

/// A target that listens there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TargetStarted {
    pub(crate) number: u64,
    pub(crate) subject: Subject,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<MetricsAddress>,
    pub(crate) admin: Option<SocketAddr>,
}
