//! Which view the watches evaluate in: the newest, unless evaluations pile up; then the one
//! taken before, until what waits has had its turn, so that those who come meanwhile share it.
//! Never for longer than a second. Pure but for the views that it hands on.

use std::{sync::Weak, time::Duration};

use crate::{env::Mono, query::index};
use flower_store::StateView;
use std::sync::Arc;

/// A view is shared for no longer than this.
const LONGEST: Duration = Duration::from_secs(1);

/// The view taken last, and how long evaluations take.
#[derive(Default)]
pub(super) struct Pace {
    /// Weak: nobody keeps a view for those who may come.
    last: Option<(Weak<StateView>, Mono)>,
    mean: Duration,
}

impl Pace {
    /// An evaluation took so long.
    pub(super) fn took(&mut self, time: Duration) {
        self.mean = (self.mean * 7 + time) / 8;
    }

    /// The view to evaluate in, which shows everything up to `from`; or when to ask again.
    pub(super) fn take(
        &mut self,
        newest: Arc<StateView>,
        now: Mono,
        waiting: usize,
        from: u64,
    ) -> Result<Arc<StateView>, Mono> {
        let backlog = self.mean * u32::try_from(waiting).unwrap_or(u32::MAX);
        if let Some((last, at)) = &self.last
            && let Some(view) = last.upgrade()
            && let Some(until) = held_until(*at, backlog, now)
        {
            return match index(&view) >= from {
                true => Ok(view),
                false => Err(until),
            };
        }
        self.last = Some((Arc::downgrade(&newest), now));
        Ok(newest)
    }
}

/// Until when the view taken at `at` is shared, if it still is.
fn held_until(at: Mono, backlog: Duration, now: Mono) -> Option<Mono> {
    let until = at + backlog.min(LONGEST);
    (until > now).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_shared_while_evaluations_pile_up_and_never_for_long() {
        let ms = |n| Duration::from_millis(n);
        let at = Mono(ms(1_000));
        for (backlog, now, expected) in [
            (0, 1_000, None),
            (50, 1_020, Some(1_050)),
            (50, 1_050, None),
            (60_000, 1_999, Some(2_000)),
            (60_000, 2_000, None),
        ] {
            let until = held_until(at, ms(backlog), Mono(ms(now)));
            assert_eq!(until, expected.map(|n| Mono(ms(n))), "{backlog} {now}");
        }
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.took(ms(8));
        }
        assert!(pace.mean > ms(7) && pace.mean <= ms(8), "{:?}", pace.mean);
    }
}
