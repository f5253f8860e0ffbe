//! Ports that nobody has, and how many there are.

use crate::error::{Error, Result};
use crate::proc::machine;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;

/// Linux's own range, where the kernel does not say.
const RANGE_DEFAULT: RangeInclusive<u16> = 32_768..=60_999;

/// Addresses with ports that nobody has, no two the same.
pub fn free(ip: IpAddr, count: usize) -> Result<Vec<SocketAddr>> {
    let bind = || -> std::io::Result<Vec<SocketAddr>> {
        // All are held until all are known: one that is free again may be given a second time.
        let held = (0..count).map(|_| TcpListener::bind((ip, 0))).collect::<std::io::Result<Vec<_>>>()?;
        held.iter().map(TcpListener::local_addr).collect()
    };
    bind().map_err(|error| Error::new(format!("no free port on {ip}: {error}")))
}

/// The ports that the kernel gives to connections of one source address.
pub fn of_connections() -> RangeInclusive<u16> {
    machine::text("sys/net/ipv4/ip_local_port_range").as_deref().and_then(range).unwrap_or(RANGE_DEFAULT)
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    let (first, last) = (first.parse().ok()?, last.trim().parse().ok()?);
    (last >= first).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn free_ports_differ() {
        let all = free(IpAddr::V4(Ipv4Addr::LOCALHOST), 3).unwrap();
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        assert!(TcpListener::bind(all[0]).is_ok());
    }

    #[test]
    fn the_systems_range_of_ports() {
        assert_eq!(range("32768\t60999\n"), Some(RANGE_DEFAULT));
        assert_eq!(range("9\t8"), None);
        assert_eq!(range("nonsense"), None);
        assert!(of_connections().len() > 1);
    }
}
