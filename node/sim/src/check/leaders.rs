//! One leader a term, ever.

use std::collections::BTreeMap;

use flower_api::MemberId;

/// Who has led.
#[derive(Default)]
pub struct Leaders(BTreeMap<u64, (MemberId, String)>);

impl Leaders {
    /// A node leads a term.
    pub fn see(&mut self, host: &str, member: MemberId, term: u64) -> Option<String> {
        let (first, at) = self.0.entry(term).or_insert((member, host.to_owned()));
        (*first != member)
            .then(|| format!("{first} at {at} and {member} at {host} both lead term {term}"))
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
    fn two_leaders_of_a_term_are_seen() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.see("a", MemberId(1), 3), None);
        assert_eq!(leaders.see("a", MemberId(1), 3), None);
        assert_eq!(leaders.see("b", MemberId(2), 4), None);
        assert!(leaders.see("b", MemberId(2), 3).is_some());
    }
}
