//! Who may use the admin address, as the `gateway:` section says it.

use crate::metering::process_stats;
use std::sync::Arc;
use stillgate_admin::{Access, AdminKey, Role, loopback};
use stillgate_config::{Gateway, Role as Written, SHORT_KEY_NAME};
use stillgate_exporter::Hosts;

/// As the `gateway:` section has it.
pub(crate) fn access_of(gateway: &Gateway) -> Access {
    let admin = gateway.admin.as_ref();
    let names = admin.map_or(&[][..], |admin| &admin.hosts).iter().cloned();
    let hosts = Hosts::new("gateway.admin.hosts", names.chain([process_stats::hostname()]));
    let short = admin.and_then(|admin| admin.key.as_ref());
    let short = short.map(|key| (SHORT_KEY_NAME, key.reveal(), Role::Admin));
    let listed = admin.map_or(&[][..], |admin| &admin.keys).iter().map(|key| {
        let role = match key.role {
            Written::Admin => Role::Admin,
            Written::Viewer => Role::Viewer,
        };
        (key.name.as_str(), key.key.reveal(), role)
    });
    let key =
        |(name, key, role): (&str, &str, Role)| Arc::new(AdminKey { name: name.to_owned(), key: key.to_owned(), role });
    let keys: Vec<_> = short.into_iter().chain(listed).map(key).collect();
    let allow = admin.and_then(|admin| admin.allow.clone()).unwrap_or_else(loopback);
    Access { is_loopback_reader: keys.is_empty(), keys, allow, hosts }
}

/// The same with a key that was made at the first start, where none is configured.
pub(crate) fn with_made_key(mut access: Access, key: Option<&str>) -> Access {
    if let Some(key) = key.filter(|_| access.keys.is_empty()) {
        access.keys.push(Arc::new(AdminKey {
            name: SHORT_KEY_NAME.to_owned(),
            key: key.to_owned(),
            role: Role::Admin,
        }));
    }
    access
}
