//! A choice among weighted alternatives in constant time: the alias method (Walker 1977, tables as in Vose 1991).

use stillgate_stats::Random;

/// The tables of a weighted choice.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The part of this slot that belongs to its own alternative, of the total weight.
    own: u64,
    /// The alternative that the rest belongs to.
    alias: usize,
}

impl Choice {
    /// Tables for at least one weight; all above zero.
    pub(super) fn new(weights: &[u32]) -> Choice {
        // In whole numbers: scaled by their count, the weights' mean is the total, and nothing is rounded.
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut left: Vec<u64> = weights.iter().map(|&weight| u64::from(weight) * weights.len() as u64).collect();
        let mut slots: Vec<Slot> = (0..weights.len()).map(|alias| Slot { own: total, alias }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(|&i| left[i] < total);
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            slots[less] = Slot { own: left[less], alias: more };
            left[more] -= total - left[less];
            if left[more] < total {
                large.pop();
                small.push(more);
            }
        }
        for slot in &mut slots {
            // To thresholds of a draw of 64 bits.
            slot.own = ((u128::from(slot.own) << 64) / u128::from(total)).min(u128::from(u64::MAX)) as u64;
        }
        Choice { slots }
    }

    /// Draws the index of an alternative.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        if self.slots.len() == 1 {
            return 0;
        }
        let index = random.below(self.slots.len() as u64) as usize;
        let Slot { own, alias } = self.slots[index];
        if own == u64::MAX || random.next_u64() < own { index } else { alias }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The share of each alternative that the tables give, in parts of the total weight.
    fn shares(choice: &Choice) -> Vec<f64> {
        let mut shares = vec![0.0; choice.slots.len()];
        for (index, slot) in choice.slots.iter().enumerate() {
            let own = slot.own as f64 / u64::MAX as f64;
            shares[index] += own / choice.slots.len() as f64;
            shares[slot.alias] += (1.0 - own) / choice.slots.len() as f64;
        }
        shares
    }

    proptest! {
        #[test]
        fn shares_are_the_weights(weights in prop::collection::vec(1u32..=1_000_000, 1..50)) {
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            for (share, weight) in shares(&Choice::new(&weights)).iter().zip(&weights) {
                prop_assert!((share - f64::from(*weight) / total).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let choice = Choice::new(&[1, 2, 7]);
        let mut random = Random::new(1);
        let mut counts = [0u32; 3];
        for _ in 0..100_000 {
            counts[choice.draw(&mut random)] += 1;
        }
        // Five standard deviations.
        for (count, want) in counts.iter().zip([10_000.0, 20_000.0, 70_000.0]) {
            assert!((f64::from(*count) - want).abs() < 5.0 * 145.0, "{counts:?}");
        }
    }
}
