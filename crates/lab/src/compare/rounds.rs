//! The order in which the builds of a round are started and loaded.
//!
//! Half of the pairs begin with A: a machine that slows down over the run, or whose second start of two is the warmer
//! one, then favours neither. With more builds each is as often in each place, and comes as often right after each
//! other one, as the number of rounds allows (Williams 1949). The assignment of orders to rounds is random.

use crate::result::compare::{CompareDesign, Side};
use stillgate_stats::Random;

/// The order of each round: a function of builds, rounds and seed.
pub(crate) fn orders(design: &CompareDesign) -> Vec<Vec<Side>> {
    let rows = williams(design.builds.clamp(2, Side::ALL.len()));
    let mut orders: Vec<Vec<Side>> = (0..design.pairs).map(|round| rows[round % rows.len()].clone()).collect();
    Random::new(design.seed).shuffle(&mut orders);
    orders
}

/// A square in which each row and column has each build once, and no two rows have the same two neighbours in sequence;
/// for an odd number of builds, two squares.
fn williams(builds: usize) -> Vec<Vec<Side>> {
    // 0, 1, n-1, 2, n-2, …: all steps between neighbours differ.
    let step = |place: usize| if place.is_multiple_of(2) { (builds - place / 2) % builds } else { place.div_ceil(2) };
    let row = |shift: usize| (0..builds).map(|place| Side::ALL[(step(place) + shift) % builds]).collect::<Vec<_>>();
    let square: Vec<Vec<Side>> = (0..builds).map(row).collect();
    if builds.is_multiple_of(2) {
        return square;
    }
    let reversed = square.iter().map(|row| row.iter().rev().copied().collect()).collect::<Vec<_>>();
    [square, reversed].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms;

    fn orders_of(builds: usize, rounds: usize) -> Vec<Vec<Side>> {
        orders(&CompareDesign { builds, ..false_alarms::design(rounds, &[]) })
    }

    #[test]
    fn each_build_has_each_place_and_each_neighbour_equally_often() {
        for builds in 2..=Side::ALL.len() {
            // A whole number of squares.
            let rounds = 2 * builds;
            let orders = orders_of(builds, rounds);
            for &one in &Side::ALL[..builds] {
                for place in 0..builds {
                    let there = orders.iter().filter(|order| order[place] == one).count();
                    assert_eq!(there, 2, "{builds} builds, {one:?} in place {place}");
                }
                for &other in Side::ALL[..builds].iter().filter(|other| **other != one) {
                    let follows = |order: &&Vec<Side>| order.windows(2).any(|two| two == [one, other]);
                    assert_eq!(orders.iter().filter(follows).count(), 2, "{builds} builds, {other:?} after {one:?}");
                }
            }
        }
    }

    #[test]
    fn places_differ_by_one_at_most_where_rounds_do_not_divide() {
        for builds in 2..=Side::ALL.len() {
            let orders = orders_of(builds, 16);
            let firsts = |side: Side| orders.iter().filter(|order| order[0] == side).count();
            let counts: Vec<usize> = Side::ALL[..builds].iter().map(|side| firsts(*side)).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{builds} builds: {counts:?}");
        }
    }
}
