//! Access rules of the admin address and of the device API, as the `gateway:` section defines them.

use ipnet::IpNet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use stillgate_config::{Gateway, Role as Written, SHORT_KEY_NAME};
use stillgate_door::{Access, AdminKey, Hosts, Role, loopback};
use stillgate_measures::process_stats;
use stillgate_plugin::Secret;

/// Access rules of the admin address, from the `gateway:` section.
pub(crate) fn access_of(gateway: &Gateway) -> Access {
    let admin = gateway.admin.as_ref();
    let names = admin.map_or(&[][..], |admin| &admin.hosts).iter().cloned();
    let hosts = Hosts::new("gateway.admin.hosts", names.chain([process_stats::hostname()]));
    let keys = admin.map_or_else(Vec::new, |admin| keys_of(admin.key.as_ref(), &admin.keys));
    let allow = admin.and_then(|admin| admin.allow.clone()).unwrap_or_else(loopback);
    let is_loopback_reader = keys.is_empty();
    Access { section: "gateway.admin", is_loopback_reader, is_loopback_writer: false, keys, allow, hosts }
}

/// Access rules of the device API: with a key it is open to every address, as back-ends need it; without one, to loopback only.
pub(crate) fn access_of_devices(gateway: &Gateway) -> Access {
    let devices = gateway.devices.as_ref();
    let names = devices.map_or(&[][..], |devices| &devices.hosts).iter().cloned();
    let hosts = Hosts::new("gateway.devices.hosts", names.chain([process_stats::hostname()]));
    let keys = devices.map_or_else(Vec::new, |devices| keys_of(devices.key.as_ref(), &devices.keys));
    let is_open = keys.is_empty();
    let everywhere = || if is_open { loopback() } else { everything() };
    let allow = devices.and_then(|devices| devices.allow.clone()).unwrap_or_else(everywhere);
    Access { section: "gateway.devices", is_loopback_reader: is_open, is_loopback_writer: is_open, keys, allow, hosts }
}

fn everything() -> Vec<IpNet> {
    let v4 = IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let v6 = IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    v4.into_iter().chain(v6).collect()
}

fn keys_of(short: Option<&Secret>, listed: &[stillgate_config::AdminKey]) -> Vec<Arc<AdminKey>> {
    let short = short.map(|key| (SHORT_KEY_NAME, key.reveal(), Role::Admin));
    let listed = listed.iter().map(|key| {
        let role = match key.role {
            Written::Admin => Role::Admin,
            Written::Viewer => Role::Viewer,
        };
        (key.name.as_str(), key.key.reveal(), role)
    });
    let key =
        |(name, key, role): (&str, &str, Role)| Arc::new(AdminKey { name: name.to_owned(), key: key.to_owned(), role });
    short.into_iter().chain(listed).map(key).collect()
}

/// Adds the key that was generated at the first start, where none is configured.
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
