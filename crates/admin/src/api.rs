//! The state that all handlers share.

use crate::body::LARGE_AT_ONCE_MAX;
use crate::control::Control;
use crate::endpoints::Endpoint;
use crate::standalone::client_metadata::Standalone;
use std::sync::Arc;
use stillgate_door::Guard;
use tokio::sync::Semaphore;

/// Number of lists of resources that are made at once; more wait.
const LISTS_AT_ONCE_MAX: usize = 2;

/// The state that all handlers share.
pub(crate) struct Api {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) standalone: Standalone,
    /// Limits requests with large bodies.
    pub(crate) large_bodies: Arc<Semaphore>,
    /// Limits lists of resources.
    pub(crate) lists: Arc<Semaphore>,
    /// The endpoints of the OpenAPI description that are not hidden: method, path, action, summary.
    pub(crate) described: Vec<Endpoint>,
}

impl Api {
    pub(crate) fn new(control: Arc<dyn Control>, guard: Arc<Guard>, described: Vec<Endpoint>) -> Api {
        Api {
            control,
            guard,
            standalone: Standalone::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_AT_ONCE_MAX)),
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE_MAX)),
            described,
        }
    }
}
