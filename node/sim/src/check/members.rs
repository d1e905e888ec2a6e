//! A member id is one data directory's life: it is never seen on another volume, and once it
//! has left a committed configuration it never comes back into one. One that left before it
//! heard of anything may: nothing is on its volume.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{MemberId, report::Configuration};

/// What is known of all members.
#[derive(Default)]
pub struct Members {
    lives: BTreeMap<MemberId, (String, u64)>,
    /// Of the newest committed configuration.
    version: (u64, u64),
    present: BTreeSet<MemberId>,
    /// Members that know that they are some.
    heard: BTreeSet<MemberId>,
    gone: BTreeSet<MemberId>,
}

impl Members {
    /// A member runs on the `volume`-th volume of a host.
    pub fn lives(&mut self, member: MemberId, host: &str, volume: u64) -> Option<String> {
        let here = (host.to_owned(), volume);
        let life = self.lives.entry(member).or_insert_with(|| here.clone());
        (*life != here).then(|| {
            format!(
                "member {member} lived on volume {} of {} and lives on volume {volume} of {host}",
                life.1, life.0
            )
        })
    }

    /// A node knows that it is a member.
    pub fn hears(&mut self, member: MemberId) {
        self.heard.insert(member);
    }

    /// A node knows a configuration to be committed.
    pub fn configured(&mut self, configuration: &Configuration) -> Option<String> {
        let version = (configuration.version.term, configuration.version.index);
        if version <= self.version {
            return None;
        }
        let now: BTreeSet<MemberId> = configuration.members.keys().copied().collect();
        let left = self.present.difference(&now);
        self.gone.extend(left.filter(|id| self.heard.contains(id)));
        let back = now.intersection(&self.gone).next().copied();
        (self.version, self.present) = (version, now);
        back.map(|member| format!("member {member} was removed and is in the configuration again"))
    }

    /// Term and index of the newest configuration that is known to be committed.
    pub fn version(&self) -> (u64, u64) {
        self.version
    }

    /// Members that have left.
    pub fn removed(&self) -> usize {
        self.gone.len()
    }
}

#[cfg(test)]
mod tests {
    use flower_api::report::ConfigVersion;

    use super::*;

    #[test]
    fn another_life_and_a_return_are_seen() {
        let mut members = Members::default();
        let id = MemberId(1);
        assert_eq!(members.lives(id, "a", 1), None);
        assert_eq!(members.lives(id, "a", 1), None);
        assert!(members.lives(id, "a", 2).is_some());
        assert!(members.lives(id, "b", 1).is_some());
        let configuration = |index, ids: &[u64]| Configuration {
            version: ConfigVersion { term: 1, index },
            committed: true,
            voters: Vec::new(),
            members: ids
                .iter()
                .map(|id| (MemberId(*id), String::new()))
                .collect(),
        };
        members.hears(MemberId(3));
        assert_eq!(members.configured(&configuration(1, &[1, 2, 3, 5])), None);
        assert_eq!(members.configured(&configuration(2, &[1, 2])), None);
        assert_eq!(
            members.configured(&configuration(1, &[1, 2, 3])),
            None,
            "old news"
        );
        let deaf = configuration(3, &[1, 2, 4, 5]);
        assert_eq!(members.configured(&deaf), None, "5 heard of nothing");
        assert!(
            members
                .configured(&configuration(4, &[1, 2, 3, 4]))
                .is_some()
        );
    }
}
