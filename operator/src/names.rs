//! Every name that the operator derives from a FlowerCluster's, in one place. Pure; builders,
//! planner and admin client take names from here and never format their own.

use std::fmt;

use flower_api::{ids::GroupId, ports};

/// Longest name of a FlowerCluster: the longest derived name (a pod of a StatefulSet with a
/// revision hash in its label) stays within 63 characters.
pub const CLUSTER_NAME_CHARS: usize = 40;

/// Claim template; claims are `data-<pod>`.
pub const CLAIM_TEMPLATE: &str = "data";

/// A pod's number within its StatefulSet. A number, so that 10 sorts after 9.
pub type Ordinal = u32;

/// A FlowerCluster's name that is known to be short enough and a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

impl ClusterName {
    /// Checks the name.
    ///
    /// # Errors
    /// Why it cannot be used, for people.
    pub fn new(name: &str) -> Result<Self, String> {
        let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.len() > CLUSTER_NAME_CHARS {
            return Err(format!(
                "the name '{name}' has {} characters; pods and Services are named after it, so it may have at most {CLUSTER_NAME_CHARS}: choose a shorter metadata.name",
                name.len()
            ));
        }
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
        if !starts || name.ends_with('-') || !name.chars().all(ok) {
            return Err(format!(
                "the name '{name}' is no DNS label: Services are named after it, so use lower-case letters, digits and '-', begin with a letter and do not end with '-'"
            ));
        }
        Ok(Self(name.to_owned()))
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// `NAME`: client Service, ServiceAccount.
    pub fn service(&self) -> String {
        self.0.clone()
    }
    /// `NAME-leader`: Service of the leader.
    pub fn leader_service(&self) -> String {
        format!("{}-leader", self.0)
    }
    /// `NAME-auth`: generated Secret.
    pub fn auth_secret(&self) -> String {
        format!("{}-auth", self.0)
    }
    /// `NAME-gK`: StatefulSet and disruption budget of a group.
    pub fn group(&self, group: GroupId) -> String {
        format!("{}-g{group}", self.0)
    }
    /// `NAME-gK-peers`: headless Service of a group.
    pub fn peers(&self, group: GroupId) -> String {
        format!("{}-g{group}-peers", self.0)
    }
    /// `NAME-gK-N`.
    pub fn pod(&self, group: GroupId, ordinal: Ordinal) -> String {
        format!("{}-g{group}-{ordinal}", self.0)
    }
    /// `data-NAME-gK-N`.
    pub fn claim(&self, group: GroupId, ordinal: Ordinal) -> String {
        format!("{CLAIM_TEMPLATE}-{}", self.pod(group, ordinal))
    }
    /// The peer address of a member, as it stands in the configuration.
    pub fn peer_address(&self, namespace: &str, group: GroupId, ordinal: Ordinal) -> String {
        format!(
            "{}.{}.{namespace}.svc:{}",
            self.pod(group, ordinal),
            self.peers(group),
            ports::PEER
        )
    }
    /// The ordinal in a pod's name, when it is a pod of this group.
    pub fn ordinal_of_pod(&self, group: GroupId, pod: &str) -> Option<Ordinal> {
        let digits = pod.strip_prefix(&format!("{}-", self.group(group)))?;
        // "01" is nobody's name.
        let ordinal: Ordinal = digits.parse().ok()?;
        (ordinal.to_string() == digits).then_some(ordinal)
    }
    /// The ordinal in a claim's name, when it is a claim of this group.
    pub fn ordinal_of_claim(&self, group: GroupId, claim: &str) -> Option<Ordinal> {
        let pod = claim.strip_prefix(CLAIM_TEMPLATE)?.strip_prefix('-')?;
        self.ordinal_of_pod(group, pod)
    }
    /// The ordinal in a peer address, when it is one of this group.
    pub fn ordinal_of_address(&self, group: GroupId, address: &str) -> Option<Ordinal> {
        self.ordinal_of_pod(group, address.split('.').next()?)
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for (name, ok) in [
            ("db", true),
            ("a-1", true),
            (&"a".repeat(40), true),
            (&"a".repeat(41), false),
            ("", false),
            ("1db", false),
            ("db-", false),
            ("a.b", false),
            ("Db", false),
        ] {
            assert_eq!(ClusterName::new(name).is_ok(), ok, "{name}");
        }
    }

    #[test]
    fn ordinals_come_back_out_of_names() {
        let name = ClusterName::new("db").unwrap();
        let group = GroupId(0);
        for ordinal in [0, 2, 10] {
            assert_eq!(
                name.ordinal_of_pod(group, &name.pod(group, ordinal)),
                Some(ordinal)
            );
            assert_eq!(
                name.ordinal_of_claim(group, &name.claim(group, ordinal)),
                Some(ordinal)
            );
            assert_eq!(
                name.ordinal_of_address(group, &name.peer_address("ns", group, ordinal)),
                Some(ordinal)
            );
        }
        for other in ["db-g0-01", "db-g0-x", "db-g1-0", "db2-g0-0", "db-g0-"] {
            assert_eq!(name.ordinal_of_pod(group, other), None, "{other}");
        }
    }
}
