//! Sets of client addresses, for `remote_addrs` and `ipmatch`.
//!
//! Networks are merged and sorted when compiled, and found by tables ([`Ranges`]), so a lookup costs about the same
//! however many were listed. An IPv4-mapped IPv6 address is treated as the IPv4 address it holds, on both sides.
//!
//! IPv6 networks of up to 64 bits, which is what sites and clients have, are found by the upper half of an address: that
//! takes half the memory and little more than half the time. Longer ones, such as single hosts, are found by the whole
//! address.

mod ranges;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ranges::Ranges;
use std::net::IpAddr;

/// An immutable set of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSet {
    v4: Ranges<u32>,
    v6: V6Networks,
}

impl AddressSet {
    /// The union of networks.
    pub fn new(networks: &[IpNet]) -> AddressSet {
        let canonical: Vec<IpNet> = networks.iter().map(canonical_net).collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in IpNet::aggregate(&canonical) {
            match network {
                IpNet::V4(net) => v4.push(v4_range(net)),
                IpNet::V6(net) => v6.push(net),
            }
        }
        AddressSet { v4: Ranges::new(v4), v6: V6Networks::new(v6) }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.contains(address.into()),
            IpAddr::V6(address) => self.v6.contains(address.into()),
        }
    }

    /// Whether every address of a network is in it.
    pub(crate) fn includes(&self, network: &IpNet) -> bool {
        match canonical_net(network) {
            IpNet::V4(net) => self.v4.includes(v4_range(net)),
            IpNet::V6(net) => self.v6.includes(v6_range(net)),
        }
    }

    /// Whether it is in a network altogether.
    pub(crate) fn is_within(&self, network: &IpNet) -> bool {
        let v4 = |address: u32| network.contains(&IpAddr::V4(address.into()));
        let v6 = |address: u128| network.contains(&IpAddr::V6(address.into()));
        self.v4.all.iter().all(|(first, last)| v4(*first) && v4(*last))
            && self.v6.ranges().all(|(first, last)| v6(first) && v6(last))
    }

    /// Whether no address of a network is in it.
    pub(crate) fn is_outside(&self, network: &IpNet) -> bool {
        match network {
            IpNet::V4(net) => self.v4.is_outside(v4_range(*net)),
            IpNet::V6(net) => self.v6.is_outside(v6_range(*net)),
        }
    }

    /// Whether all its addresses are in another.
    pub(crate) fn is_subset(&self, other: &AddressSet) -> bool {
        self.v4.all.iter().all(|range| other.v4.includes(*range))
            && self.v6.ranges().all(|range| other.v6.includes(range))
    }
}

fn v4_range(net: Ipv4Net) -> (u32, u32) {
    (net.network().into(), net.broadcast().into())
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

/// The upper half of an address.
const HALF_BITS: u8 = 64;

/// Networks that are put together as far as they can be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct V6Networks {
    /// By the upper half: all addresses that have it.
    wide: Ranges<u64>,
    long: Ranges<u128>,
}

impl V6Networks {
    fn new(networks: Vec<Ipv6Net>) -> V6Networks {
        let (wide, long): (Vec<_>, Vec<_>) = networks.into_iter().partition(|net| net.prefix_len() <= HALF_BITS);
        let wide = wide.into_iter().map(|net| halves(v6_range(net)));
        let long = long.into_iter().map(v6_range).collect();
        V6Networks { wide: Ranges::new(wide.collect()), long: Ranges::new(long) }
    }

    /// Whether one of them holds an address.
    fn contains(&self, address: u128) -> bool {
        self.wide.contains((address >> HALF_BITS) as u64) || self.long.contains(address)
    }

    /// Whether one of them holds the addresses from the first to the last.
    fn includes(&self, addresses: (u128, u128)) -> bool {
        self.wide.includes(halves(addresses)) || self.long.includes(addresses)
    }

    /// Whether none of them has one of these addresses.
    fn is_outside(&self, addresses: (u128, u128)) -> bool {
        self.wide.is_outside(halves(addresses)) && self.long.is_outside(addresses)
    }

    /// The first and the last address of each.
    fn ranges(&self) -> impl Iterator<Item = (u128, u128)> {
        let whole = |(first, last): &(u64, u64)| {
            (u128::from(*first) << HALF_BITS, u128::from(*last) << HALF_BITS | u128::from(u64::MAX))
        };
        self.wide.all.iter().map(whole).chain(self.long.all.iter().copied())
    }
}

/// The first and the last address of a network.
fn v6_range(net: Ipv6Net) -> (u128, u128) {
    (net.network().into(), net.broadcast().into())
}

fn halves((first, last): (u128, u128)) -> (u64, u64) {
    ((first >> HALF_BITS) as u64, (last >> HALF_BITS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

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

    /// Networks that are near each other, and an address or network that is near one of them.
    fn check_union(networks: &[IpNet], near: IpNet) -> Result<(), TestCaseError> {
        let set = AddressSet::new(networks);
        let address = near.addr();
        prop_assert_eq!(set.contains(address), networks.iter().any(|net| net.contains(&address)));
        prop_assert_eq!(
            set.includes(&near),
            IpNet::aggregate(&networks.to_vec()).iter().any(|net| net.contains(&near))
        );
        let meets = |net: &IpNet| net.contains(&near) || near.contains(net);
        prop_assert_eq!(set.is_outside(&near), !networks.iter().any(meets));
        prop_assert_eq!(set.is_within(&near), networks.iter().all(|net| near.contains(net)));
        let other = AddressSet::new(&[near]);
        prop_assert_eq!(set.is_subset(&other), networks.iter().all(|net| near.contains(net)));
        prop_assert_eq!(other.is_subset(&set), set.includes(&near));
        Ok(())
    }

    proptest! {
        #[test]
        fn a_set_of_ipv4_is_the_union_of_its_networks(
            networks in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..20), address in any::<u32>(), len in 0u8..=32, zeros in 0u32..32,
        ) {
            let net = |bits: u32, len: u8| IpNet::new(Ipv4Addr::from(bits).into(), len).unwrap();
            // They have the same first bits, or none would ever be near another.
            let all: Vec<IpNet> = networks.iter().map(|(bits, len)| net(0x0a00_0000 | bits >> zeros, *len)).collect();
            let first = networks.first().map_or(0, |(bits, _)| *bits);
            check_union(&all, net(0x0a00_0000 | (first ^ address & 0x1ff) >> zeros, len))?;
            check_union(&all, net(0x0a00_0000 | address >> zeros, len))?;
        }

        #[test]
        fn a_set_of_ipv6_is_the_union_of_its_networks(
            networks in proptest::collection::vec((any::<u128>(), 16u8..=128), 0..20), address in any::<u128>(), len in 16u8..=128, zeros in 16u32..128,
        ) {
            let net = |bits: u128, len: u8| IpNet::new(Ipv6Addr::from(0x2001 << 112 | bits >> zeros).into(), len).unwrap();
            let all: Vec<IpNet> = networks.iter().map(|(bits, len)| net(*bits, *len)).collect();
            let first = networks.first().map_or(0, |(bits, _)| *bits);
            check_union(&all, net(first ^ address >> 119, len))?;
            check_union(&all, net(address, len))?;
        }
    }
}
