//! Random numbers that are equal for equal seeds in every version of this program.
//!
//! Our own implementation, because a result file keeps only its seed: years later it must give the same resamples,
//! which no crate promises across versions; and with the functions of `libm`, not the platform's, whose last bits
//! differ. Not for secrets.

/// xoshiro256++ (Blackman & Vigna 2021, "Scrambled Linear Pseudorandom Number Generators", ACM TOMS 47:36).
#[derive(Debug, Clone)]
pub struct Random {
    /// Never all zero: that state would repeat itself.
    state: [u64; 4],
}

impl Random {
    /// Fills the state by SplitMix64 (Steele, Lea & Flood 2014), as the authors of xoshiro advise: any seed is good.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self { state: [(); 4].map(|()| split_mix(&mut counter)) }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform on [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform on 0..`n` without bias (Lemire 2019, "Fast Random Integer Generation in an Interval"); 0 where `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            // 2^64 mod n: this many low halves would occur once too often.
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// Puts `items` in a uniformly random order (Fisher & Yates; Durstenfeld 1964), drawing from the last place down.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Standard normal (Box & Muller 1958); the second number of the pair is dropped so that the state depends on the
    /// seed alone.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(self.positive_uniform())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.uniform())
    }

    /// Exponential with the given mean, by inversion: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(self.positive_uniform())
    }

    /// Uniform on (0, 1], for logarithms.
    fn positive_uniform(&mut self) -> f64 {
        1.0 - self.uniform()
    }
}

fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *counter;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vector_of_xoshiro() {
        // The first outputs of the authors' C code from this state.
        let mut random = Random { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(drawn, [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205]);
    }

    #[test]
    fn published_vector_of_split_mix() {
        let mut counter = 1477776061723855037;
        let drawn: Vec<u64> = (0..3).map(|_| split_mix(&mut counter)).collect();
        assert_eq!(drawn, [1985237415132408290, 2979275885539914483, 13511426838097143398]);
    }

    #[test]
    fn below_is_even_and_in_range() {
        let mut random = Random::new(7);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        for n in [3_u64, 7, 10] {
            let mut seen = vec![0_u32; n as usize];
            for _ in 0..n * 10_000 {
                seen[random.below(n) as usize] += 1;
            }
            // 10,000 expected in each cell, standard deviation below 100.
            assert!(seen.iter().all(|count| count.abs_diff(10_000) < 500), "{n}: {seen:?}");
        }
        let huge = u64::MAX / 2 + 2;
        assert!((0..1000).all(|_| random.below(huge) < huge));
    }

    #[test]
    fn shuffle_reaches_every_order_alike() {
        let mut random = Random::new(11);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..24_000 {
            let mut items = [0, 1, 2, 3];
            random.shuffle(&mut items);
            *seen.entry(items).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        assert!(seen.values().all(|count| count.abs_diff(1000) < 160), "{seen:?}");
    }

    #[test]
    fn moments() {
        let mut random = Random::new(3);
        let draws = 200_000;
        let check = |name: &str, values: Vec<f64>, mean: f64, variance: f64| {
            let m = values.iter().sum::<f64>() / draws as f64;
            let v = values.iter().map(|x| (x - m).powi(2)).sum::<f64>() / draws as f64;
            assert!((m - mean).abs() < 0.02 && (v / variance - 1.0).abs() < 0.03, "{name}: {m} {v}");
        };
        check("uniform", (0..draws).map(|_| random.uniform()).collect(), 0.5, 1.0 / 12.0);
        check("normal", (0..draws).map(|_| random.normal()).collect(), 0.0, 1.0);
        check("exponential", (0..draws).map(|_| random.exponential(2.0)).collect(), 2.0, 4.0);
    }
}
