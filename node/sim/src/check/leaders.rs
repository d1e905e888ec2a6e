//! Elections are in the order of term and member id: openraft lets a candidate of a term take
//! over from one of the same term with a lower id, whose later entries no quorum accepts any
//! more. The other way round must never be seen.

use std::collections::BTreeMap;

use flower_api::MemberId;

/// Who has led.
#[derive(Default)]
pub struct Leaders(BTreeMap<u64, BTreeMap<MemberId, String>>);

impl Leaders {
    /// A node leads a term: its own first entry of it is committed and applied.
    pub fn see(&mut self, host: &str, member: MemberId, term: u64) -> Option<String> {
        let seen = self.0.entry(term).or_default();
        if seen.contains_key(&member) {
            return None;
        }
        let above = seen.range(member..).next();
        let why = above.map(|(id, at)| {
            format!(
                "{member} at {host} leads term {term} after {id} at {at} did, which is above it"
            )
        });
        seen.insert(member, host.to_owned());
        why
    }

    /// Terms that had a leader.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_overtaken_in_a_term_never_leads_it() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.see("a", MemberId(2), 3), None);
        assert_eq!(leaders.see("a", MemberId(2), 3), None);
        assert_eq!(leaders.see("b", MemberId(1), 4), None);
        assert_eq!(leaders.see("c", MemberId(3), 3), None);
        assert_eq!(
            leaders.see("a", MemberId(2), 3),
            None,
            "it has not heard yet"
        );
        assert!(leaders.see("b", MemberId(1), 3).is_some());
        assert_eq!(leaders.count(), 2);
    }
}
