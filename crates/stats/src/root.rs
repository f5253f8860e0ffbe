//! The point where a monotone function passes zero.

/// Enough to halve any bracket down to neighbouring numbers.
const HALVINGS_MAX: u32 = 200;

/// Bisects `[low, high]` for the zero of `f`, which must rise from at most 0 at `low` to at least 0 at `high`.
///
/// Bisection and not a faster method: it cannot leave the bracket, and the functions to solve are flat in
/// places.
pub(crate) fn rising_root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..HALVINGS_MAX {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high || high - low <= f64::EPSILON * high.abs() {
            break;
        }
        if f(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low + (high - low) / 2.0
}
