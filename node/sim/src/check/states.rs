//! One state: at an applied index every node, at every time, has the same entry and the same
//! checksum. So committed entries never change, and replicas do not drift apart.

use std::collections::BTreeMap;

use flower_store::LogPosition;

/// What has been seen at each index.
#[derive(Default)]
pub struct States {
    seen: BTreeMap<u64, (LogPosition, u128, String)>,
}

impl States {
    /// A node has applied `position` and its state sums up to `checksum`.
    pub fn see(&mut self, host: &str, position: LogPosition, checksum: u128) -> Option<String> {
        let entry = self
            .seen
            .entry(position.index)
            .or_insert_with(|| (position, checksum, host.to_owned()));
        let (first, sum, at) = entry;
        if (*first, *sum) == (position, checksum) {
            return None;
        }
        Some(format!(
            "index {} was {first} with checksum {sum:x} at {at}, and is {position} with checksum \
             {checksum:x} at {host}",
            position.index
        ))
    }

    /// The last index that was seen applied anywhere.
    pub fn newest(&self) -> u64 {
        self.seen.keys().next_back().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_entry_or_sum_at_an_index_is_seen() {
        let at = |term, index| LogPosition {
            term,
            leader: 1,
            index,
        };
        let mut states = States::default();
        assert_eq!(states.see("a", at(1, 5), 7), None);
        assert_eq!(states.see("b", at(1, 5), 7), None);
        assert!(states.see("b", at(2, 5), 7).is_some());
        assert!(states.see("c", at(1, 5), 8).is_some());
        assert_eq!(states.newest(), 5);
    }
}
