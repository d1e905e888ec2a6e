//! Delay after consecutive failures of one object: doubling, bounded, jittered, forgotten on
//! success. kube has a flat retry only.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use rand::Rng;

const FIRST: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(120);

/// Failure counts by object uid.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: Mutex<HashMap<String, u32>>,
}

impl Backoff {
    /// Counts a failure and says how long to wait.
    pub fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures.entry(uid.to_owned()).or_insert(0);
        let delay = delay(*count);
        *count = count.saturating_add(1);
        let jitter = rand::rng().random_range(0.8..1.2);
        delay.mul_f64(jitter)
    }
    /// Forgets an object's failures.
    pub fn succeeded(&self, uid: &str) {
        self.failures.lock().remove(uid);
    }
    /// Objects that wait.
    pub fn len(&self) -> usize {
        self.failures.lock().len()
    }
    /// Whether no object waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn delay(failures: u32) -> Duration {
    FIRST
        .saturating_mul(2u32.saturating_pow(failures.min(16)))
        .min(LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_bound_and_are_forgotten() {
        assert_eq!(
            [0, 1, 2, 6, 7, 99].map(|n| delay(n).as_secs()),
            [1, 2, 4, 64, 120, 120]
        );
        let backoff = Backoff::default();
        backoff.failed("a");
        assert!(backoff.failed("a") > Duration::from_millis(1_500));
        backoff.succeeded("a");
        assert!(backoff.is_empty());
    }
}
