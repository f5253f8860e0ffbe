//! Runs independent work in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` on each item, on as many at a time as there are `threads`, started in the given order. Returns the results in that
/// order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(take)).collect();
        let mut done = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(part) => done.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            assert_eq!(map(&items, threads, |item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
        }
        assert!(map(&[], 2, |item: &usize| *item).is_empty());
    }
}
