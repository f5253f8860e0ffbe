//! What plugins settle of a request besides its head and its body.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;

/// What plugins have settled of one request.
#[derive(Default)]
pub struct Settled {
    /// What is dropped when the request has ended, by whatever it ends.
    pub held: Vec<Box<dyn Any>>,
    /// Who asks, and the port where that is known.
    pub client: Option<(IpAddr, Option<u16>)>,
}

impl Settled {
    /// Nothing, keeping some memory. What is held is let go.
    #[inline]
    pub fn clear(&mut self) {
        self.held.clear();
        self.client = None;
    }
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled").field("held", &self.held.len()).field("client", &self.client).finish()
    }
}
