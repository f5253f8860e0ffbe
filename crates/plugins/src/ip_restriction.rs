//! `ip-restriction`: admits only requests of some addresses, or refuses those of some.
//!
//! The address is the client's, as resolved through trusted proxies. Networks are compiled into an [`AddressSet`], in
//! which a look-up reads a few lines of memory, even with 100,000 networks.

use crate::access_list::{AccessList, MESSAGE};
use ipnet::IpNet;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_route::AddressSet;
use stillgate_schema::matching::NETWORK;
use stillgate_schema::{int, object, some};

object! {
    /// Admits only requests of some addresses, or refuses those of some.
    pub(crate) struct IpRestrictionKeys {
        /// Addresses and networks whose requests are admitted, and no others. Cannot be combined with `blacklist`.
        whitelist: Vec<IpNet> = some(NETWORK) => optional;
        /// Addresses and networks whose requests are refused.
        blacklist: Vec<IpNet> = some(NETWORK) => optional;
        /// `message` of the answer.
        message: String = MESSAGE => default("Your IP address is not allowed".to_owned());
        /// The status of the answer.
        response_code: u16 = int(403, 404) => default(403);
        any_of { "there is no list": whitelist | blacklist; }
    }
}

/// The plugin.
pub(crate) struct IpRestriction {
    addresses: AccessList<AddressSet>,
    rejected: Answer,
}

impl Define for IpRestriction {
    type Keys = IpRestrictionKeys;
    const NAME: &'static str = "ip-restriction";
    const PRIORITY: i32 = 3000;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: IpRestrictionKeys, cx: &mut Compile<'_>) -> Option<IpRestriction> {
        let networks = AccessList::of(("whitelist", keys.whitelist), ("blacklist", keys.blacklist), cx)?;
        let addresses = networks.try_map(|networks| Some(AddressSet::new(&networks)))?;
        Some(IpRestriction { addresses, rejected: Answer::object(keys.response_code, "message", &keys.message) })
    }
}

impl Plugin for IpRestriction {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        match self.addresses.admits(|set| set.contains(request.facts.client)) {
            true => Flow::Continue,
            false => Flow::Answer(self.rejected.clone()),
        }
    }
}
