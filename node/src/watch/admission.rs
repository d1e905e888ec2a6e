//! How many watches are opened in a second: after a node is gone all its clients come at
//! once, and are told when to come back, each a little later than the one before. Pure.

use std::time::Duration;

/// Nobody is sent away for longer.
const LONGEST: Duration = Duration::from_secs(60);

/// Lets so many in a second, and a second's worth at once.
#[derive(Debug)]
pub struct Admission {
    a_second: f64,
    /// May come in now.
    room: f64,
    /// Were sent away and are to come back.
    promised: f64,
    last_ms: u64,
}

impl Admission {
    /// Lets `a_second` in.
    pub fn new(a_second: u64) -> Self {
        let a_second = a_second.max(1) as f64;
        Self {
            a_second,
            room: a_second,
            promised: 0.0,
            last_ms: 0,
        }
    }

    /// Lets one in, or says when it may come back.
    ///
    /// # Errors
    /// How long to wait.
    pub fn admit(&mut self, now_ms: u64) -> Result<(), Duration> {
        let passed = now_ms.saturating_sub(self.last_ms) as f64 / 1_000.0;
        self.last_ms = now_ms.max(self.last_ms);
        let more = passed * self.a_second;
        self.room = (self.room + more).min(self.a_second);
        self.promised = (self.promised - more).max(0.0);
        if self.room >= 1.0 {
            self.room -= 1.0;
            return Ok(());
        }
        self.promised = (self.promised + 1.0).min(self.a_second * LONGEST.as_secs_f64());
        Err(Duration::from_secs_f64(self.promised / self.a_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_spread_over_the_seconds_to_come() {
        let mut admission = Admission::new(10);
        let answers: Vec<_> = (0..35).map(|_| admission.admit(5_000)).collect();
        assert!(answers[..10].iter().all(Result::is_ok));
        let waits: Vec<Duration> = answers[10..].iter().map(|a| a.unwrap_err()).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], Duration::from_millis(100));
        assert_eq!(waits[24], Duration::from_millis(2_500));
        // Time lets the next in, and the promises run out.
        assert!(admission.admit(5_100).is_ok());
        assert!(admission.admit(5_100).is_err());
        let later: Vec<_> = (0..11).map(|_| admission.admit(60_000)).collect();
        assert_eq!(later.iter().filter(|a| a.is_ok()).count(), 10);
        assert_eq!(later[10], Err(Duration::from_millis(100)));
        // A clock that stands still lets nobody in, and nobody waits for ever.
        let longest = (0..10_000)
            .map(|_| admission.admit(60_000).unwrap_err())
            .max();
        assert_eq!(longest, Some(LONGEST));
    }
}
