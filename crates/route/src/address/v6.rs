//! IPv6 networks.
//!
//! Networks of up to 64 bits, which is what sites and clients have, are found by the upper half of an address: that
//! takes half the memory and little more than half the time. Longer ones, such as single hosts, are found by the whole
//! address.

use super::ranges::Ranges;
use ipnet::Ipv6Net;

/// The upper half of an address.
const HALF_BITS: u8 = 64;

/// Networks that are put together as far as they can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Networks {
    /// By the upper half: all addresses that have it.
    wide: Ranges<u64>,
    long: Ranges<u128>,
}

impl Networks {
    pub(super) fn new(networks: Vec<Ipv6Net>) -> Networks {
        let (wide, long): (Vec<_>, Vec<_>) = networks.into_iter().partition(|net| net.prefix_len() <= HALF_BITS);
        let wide = wide.into_iter().map(|net| halves(range(net)));
        Networks { wide: Ranges::new(wide.collect()), long: Ranges::new(long.into_iter().map(range).collect()) }
    }

    /// Whether one of them holds an address.
    pub(super) fn contains(&self, address: u128) -> bool {
        self.wide.contains((address >> HALF_BITS) as u64) || self.long.contains(address)
    }

    /// Whether one of them holds the addresses from the first to the last.
    pub(super) fn includes(&self, addresses: (u128, u128)) -> bool {
        self.wide.includes(halves(addresses)) || self.long.includes(addresses)
    }

    /// Whether none of them has one of these addresses.
    pub(super) fn is_outside(&self, addresses: (u128, u128)) -> bool {
        self.wide.is_outside(halves(addresses)) && self.long.is_outside(addresses)
    }

    /// The first and the last address of each.
    pub(super) fn all(&self) -> impl Iterator<Item = (u128, u128)> {
        let whole = |(first, last): &(u64, u64)| {
            (u128::from(*first) << HALF_BITS, u128::from(*last) << HALF_BITS | u128::from(u64::MAX))
        };
        self.wide.all.iter().map(whole).chain(self.long.all.iter().copied())
    }
}

/// The first and the last address of a network.
pub(super) fn range(net: Ipv6Net) -> (u128, u128) {
    (net.network().into(), net.broadcast().into())
}

fn halves((first, last): (u128, u128)) -> (u64, u64) {
    ((first >> HALF_BITS) as u64, (last >> HALF_BITS) as u64)
}
