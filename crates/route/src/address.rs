//! Sets of client addresses, for `remote_addrs` and `ipmatch`.
//!
//! Networks are merged and sorted when compiled, so that asking costs a binary search however many were listed. An
//! IPv4-mapped IPv6 address is the IPv4 address it holds, on both sides.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An immutable set of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSet {
    /// Disjoint, by first address; both ends included.
    v4: Box<[(Ipv4Addr, Ipv4Addr)]>,
    v6: Box<[(Ipv6Addr, Ipv6Addr)]>,
}

impl AddressSet {
    /// The union of networks.
    pub fn new(networks: &[IpNet]) -> AddressSet {
        let canonical: Vec<IpNet> = networks.iter().map(canonical_net).collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in IpNet::aggregate(&canonical) {
            match network {
                IpNet::V4(net) => v4.push((net.network(), net.broadcast())),
                IpNet::V6(net) => v6.push((net.network(), net.broadcast())),
            }
        }
        v4.sort_unstable();
        v6.sort_unstable();
        AddressSet { v4: v4.into(), v6: v6.into() }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => in_ranges(&self.v4, address),
            IpAddr::V6(address) => in_ranges(&self.v6, address),
        }
    }

    /// Whether every address of a network is in it.
    pub(crate) fn includes(&self, network: &IpNet) -> bool {
        match canonical_net(network) {
            IpNet::V4(net) => range_in_ranges(&self.v4, (net.network(), net.broadcast())),
            IpNet::V6(net) => range_in_ranges(&self.v6, (net.network(), net.broadcast())),
        }
    }

    /// Whether it is in a network altogether.
    pub(crate) fn is_within(&self, network: &IpNet) -> bool {
        let v4 = |(first, last): &(Ipv4Addr, Ipv4Addr)| {
            network.contains(&IpAddr::V4(*first)) && network.contains(&IpAddr::V4(*last))
        };
        let v6 = |(first, last): &(Ipv6Addr, Ipv6Addr)| {
            network.contains(&IpAddr::V6(*first)) && network.contains(&IpAddr::V6(*last))
        };
        self.v4.iter().all(v4) && self.v6.iter().all(v6)
    }

    /// Whether no address of a network is in it.
    pub(crate) fn is_outside(&self, network: &IpNet) -> bool {
        match network {
            IpNet::V4(net) => self.v4.iter().all(|(first, last)| *last < net.network() || net.broadcast() < *first),
            IpNet::V6(net) => self.v6.iter().all(|(first, last)| *last < net.network() || net.broadcast() < *first),
        }
    }

    /// Whether all its addresses are in another.
    pub(crate) fn is_subset(&self, other: &AddressSet) -> bool {
        self.v4.iter().all(|range| range_in_ranges(&other.v4, *range))
            && self.v6.iter().all(|range| range_in_ranges(&other.v6, *range))
    }
}

fn in_ranges<T: Ord + Copy>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= value);
    after > 0 && value <= ranges[after - 1].1
}

/// Whether one of the ranges holds this one. Neighbours are not put together.
fn range_in_ranges<T: Ord + Copy>(ranges: &[(T, T)], (first, last): (T, T)) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= first);
    after > 0 && last <= ranges[after - 1].1
}

/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
fn canonical_net(network: &IpNet) -> IpNet {
    const MAPPED_PREFIX_BITS: u8 = 96;
    if let IpNet::V6(net) = network
        && net.prefix_len() >= MAPPED_PREFIX_BITS
        && let Some(address) = net.network().to_ipv4_mapped()
        && let Ok(mapped) = IpNet::new(address.into(), net.prefix_len() - MAPPED_PREFIX_BITS)
    {
        return mapped;
    }
    *network
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn membership() {
        let check = |networks: &[&str], address: &str, expected: bool| {
            let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().unwrap()).collect();
            assert_eq!(AddressSet::new(&networks).contains(address.parse().unwrap()), expected, "{address}");
        };
        check(&["10.0.0.0/8", "10.1.0.0/16"], "10.255.255.255", true);
        check(&["10.0.0.0/8"], "11.0.0.0", false);
        check(&["10.0.0.0/8"], "::ffff:10.0.0.1", true);
        check(&["::ffff:10.0.0.0/104"], "10.0.0.1", true);
        check(&["fd00::/8", "1.2.3.4/32"], "fd12::1", true);
        check(&["fd00::/8", "1.2.3.4/32"], "fe12::1", false);
        check(&["0.0.0.0/0"], "::1", false);
        check(&[], "1.2.3.4", false);
    }

    proptest! {
        #[test]
        fn a_set_is_the_union_of_its_networks(
            networks in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..8), address in any::<u32>(), pick in 0usize..8,
        ) {
            let networks: Vec<IpNet> =
                networks.iter().map(|(bits, len)| IpNet::new(Ipv4Addr::from(*bits).into(), *len).unwrap()).collect();
            // Half of the addresses are near a network, or none would ever be inside.
            let address = match networks.get(pick) {
                Some(IpNet::V4(net)) => Ipv4Addr::from(u32::from(net.network()) ^ (address & 0x1ff)),
                _ => Ipv4Addr::from(address),
            };
            let address = IpAddr::V4(address);
            let expected = networks.iter().any(|net| net.contains(&address));
            prop_assert_eq!(AddressSet::new(&networks).contains(address), expected);
        }
    }
}
