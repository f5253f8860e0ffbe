//! Whether the credential that a device was admitted with is still valid.

use crate::exchange::DeviceIdentity;
use stillgate_plugin_api::{AttachedConsumer, Consumers};

impl DeviceIdentity {
    /// Whether its consumer still exists with the same credential.
    pub(super) fn holds(&self, consumers: &Consumers) -> bool {
        let Some(named) = consumers.named(&self.name) else { return false };
        let credential = match &self.credential {
            None => None,
            Some(id) => {
                let ids = &consumers.of(named).credentials;
                let Some(place) = ids.iter().position(|known| known == id) else { return false };
                u16::try_from(place).ok()
            }
        };
        consumers.mark(AttachedConsumer { credential, ..named }) == Some(self.mark)
    }
}
