//! Sets of client addresses, for `remote_addrs` and `ipmatch`.
//!
//! Networks are merged and sorted when compiled, so that asking costs a binary search however many were listed. An
//! IPv4-mapped IPv6 address is the IPv4 address it holds, on both sides.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::IpAddr;

/// An immutable set of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSet {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl AddressSet {
    /// The union of networks.
    pub fn new(networks: &[IpNet]) -> AddressSet {
        let canonical: Vec<IpNet> = networks.iter().map(canonical_net).collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in IpNet::aggregate(&canonical) {
            match network {
                IpNet::V4(net) => v4.push(v4_range(net)),
                IpNet::V6(net) => v6.push(v6_range(net)),
            }
        }
        AddressSet { v4: Ranges::new(v4), v6: Ranges::new(v6) }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.includes((address.into(), address.into())),
            IpAddr::V6(address) => self.v6.includes((address.into(), address.into())),
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
            && self.v6.all.iter().all(|(first, last)| v6(*first) && v6(*last))
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
            && self.v6.all.iter().all(|range| other.v6.includes(*range))
    }
}

fn v4_range(net: Ipv4Net) -> (u32, u32) {
    (net.network().into(), net.broadcast().into())
}

fn v6_range(net: Ipv6Net) -> (u128, u128) {
    (net.network().into(), net.broadcast().into())
}

/// Ranges between two samples: a few lines of the CPU's cache.
const STRIDE: usize = 16;

/// Disjoint ranges by their first values; both ends included.
///
/// A search over all of them would touch another line of memory at each step, which is what takes time with 100,000 ranges.
/// The samples are small enough to stay in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges<T> {
    all: Box<[(T, T)]>,
    /// The first value of every [`STRIDE`]th range.
    samples: Box<[T]>,
}

impl<T: Ord + Copy> Ranges<T> {
    fn new(mut all: Vec<(T, T)>) -> Ranges<T> {
        all.sort_unstable();
        let samples = all.iter().step_by(STRIDE).map(|(first, _)| *first).collect();
        Ranges { all: all.into(), samples }
    }

    /// Whether one of the ranges holds this one. Neighbours are not put together.
    fn includes(&self, (first, last): (T, T)) -> bool {
        let Some(sample) = self.samples.partition_point(|sample| *sample <= first).checked_sub(1) else { return false };
        let begin = sample * STRIDE;
        let near = &self.all[begin..self.all.len().min(begin + STRIDE)];
        // The range of the sample begins at or before `first`, so there is one.
        let after = near.partition_point(|(start, _)| *start <= first);
        last <= near[after - 1].1
    }

    fn is_outside(&self, (first, last): (T, T)) -> bool {
        self.all.iter().all(|range| range.1 < first || last < range.0)
    }
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
    use std::net::Ipv4Addr;

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

    #[test]
    fn membership_among_more_ranges_than_a_stride() {
        for count in [1, STRIDE - 1, STRIDE, STRIDE + 1, 5 * STRIDE + 3] {
            let network = |number: usize| IpNet::new(Ipv4Addr::from(number as u32 * 1024).into(), 24).unwrap();
            let set = AddressSet::new(&(0..count).map(network).collect::<Vec<_>>());
            for address in 0..(count + 1) as u32 * 1024 {
                let expected = address % 1024 < 256 && address / 1024 < count as u32;
                assert_eq!(set.contains(Ipv4Addr::from(address).into()), expected, "{count} {address}");
            }
        }
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
