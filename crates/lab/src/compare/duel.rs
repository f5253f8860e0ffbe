//! Two builds of a round, as every comparison sees them: A is the first, B the second, whatever their names.

use crate::error::{Error, Result};
use crate::result::compare::{BuildPair, CompareResult, Pair, Side, SideRecord};

/// Two starts of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duel<'a> {
    pub(crate) between: BuildPair,
    /// The one of the two that went first.
    pub(crate) first: Side,
    pub(crate) a: &'a SideRecord,
    pub(crate) b: &'a SideRecord,
}

impl<'a> Duel<'a> {
    /// A single start, for measures of each side by itself.
    pub(crate) fn alone(side: Side, record: &'a SideRecord) -> Duel<'a> {
        Duel { between: BuildPair { one: side, other: side }, first: side, a: record, b: record }
    }

    fn of(pair: &'a Pair, between: BuildPair) -> Result<Duel<'a>> {
        let record = |side| {
            pair.record(side)
                .ok_or_else(|| Error::new(format!("a round has no record of {side:?}; the file is damaged")))
        };
        let is_one = |side: &&Side| **side == between.one || **side == between.other;
        let first = pair.order.iter().find(is_one).copied().unwrap_or(pair.first);
        Ok(Duel { between, first, a: record(between.one)?, b: record(between.other)? })
    }
}

/// All rounds, reduced to two builds.
pub(crate) fn duels(pairs: &[Pair], between: BuildPair) -> Result<Vec<Duel<'_>>> {
    pairs.iter().map(|pair| Duel::of(pair, between)).collect()
}

impl CompareResult {
    /// All rounds of a result, reduced to two builds.
    pub(crate) fn duels(&self, between: BuildPair) -> Result<Vec<Duel<'_>>> {
        duels(&self.pairs, between)
    }
}
