//! Condition types and reasons as closed enums, and the one function that writes them into a
//! list. Pure; what is true is decided in `controller::status`.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// Types of conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// Available and not Progressing, at this generation.
    Ready,
    /// The spec was understood and can be carried out.
    Accepted,
    /// The group has a leader and accepts mutations.
    Available,
    /// The operator is changing something, or waits in the middle of it.
    Progressing,
    /// A member does not take part as it should.
    Degraded,
    /// One more failure loses the quorum, or it is lost.
    QuorumAtRisk,
    /// A volume is nearly full.
    StorageAtRisk,
    /// The group has seen a newer FlowerCluster than this.
    StaleSpec,
    /// The bundle of `spec.app` runs.
    AppDeployed,
}

impl Type {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Accepted => "Accepted",
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::QuorumAtRisk => "QuorumAtRisk",
            Self::StorageAtRisk => "StorageAtRisk",
            Self::StaleSpec => "StaleSpec",
            Self::AppDeployed => "AppDeployed",
        }
    }
}

macro_rules! reasons {
    ($($name:ident),* $(,)?) => {
        /// Reasons, of conditions, holds and events alike. The names are what kubectl
        /// shows; the operator guide explains each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Reason {
            $($name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// As in the API: CamelCase.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    // Accepted
    Valid,
    NameInvalid,
    ReplicasInvalid,
    QuantityInvalid,
    MemoryTooSmall,
    CacheInvalid,
    RetentionInvalid,
    LabelsReserved,
    EnvironmentReserved,
    StorageImmutable,
    AuthSecretImmutable,
    ApplyRefused,
    // Available
    LeaderElected,
    NoLeader,
    NotBootstrapped,
    Forming,
    // Progressing
    AsDesired,
    Bootstrapping,
    Scaling,
    Replacing,
    CatchingUp,
    RollingOut,
    // Degraded, quorum, storage
    AllMembersHealthy,
    MemberMissing,
    MemberUnreachable,
    MemberBroken,
    QuorumSafe,
    NoFailureTolerated,
    QuorumLost,
    SingleReplica,
    SpaceLeft,
    SpaceLow,
    // StaleSpec
    Current,
    NewerSpecSeen,
    // App
    Deployed,
    Deploying,
    Building,
    BundleRefused,
    BundleTooLarge,
    ConfigMapMissing,
    KeyMissing,
    // Holds
    Paused,
    ForeignObject,
    ForeignVolume,
    AuthSecretMissing,
    AuthSecretInvalid,
    WaitingForPods,
    WaitingForVolumes,
    MembersLost,
    OnlyMemberBroken,
    TwoLeaders,
    ConfigurationChanging,
    WouldLoseQuorum,
    MemberUnhealthy,
    LearnerBehind,
    EvictionRefused,
    NoTransferTarget,
    NodeRefused,
    // Ready
    NotAccepted,
    NotAvailable,
    Progressing,
    Healthy,
    // Events
    IdentitySaved,
    IdentityAdopted,
    GroupRecovered,
    Bootstrapped,
    LearnerAdded,
    MemberPromoted,
    MemberRemoved,
    LeadershipTransferred,
    GroupFormed,
    ClaimDeleted,
    PodRestarted,
    AppDeployed,
    Scaled,
    Recovered,
}

impl Reason {
    /// As in the API.
    pub fn as_str(self) -> String {
        self.name().to_owned()
    }
    /// Back from a status.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }
    /// A reason to wait that belongs to the normal course of things.
    pub fn is_expected(self) -> bool {
        matches!(
            self,
            Self::Paused
                | Self::Scaling
                | Self::CatchingUp
                | Self::LearnerBehind
                | Self::WaitingForPods
                | Self::ConfigurationChanging
                | Self::Replacing
                | Self::MemberUnhealthy
                | Self::EvictionRefused
                | Self::NodeRefused
                | Self::Building
        )
    }
}

/// A condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Type.
    pub type_: Type,
    /// True or False; nothing here is Unknown.
    pub status: bool,
    /// Why.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// Writes one condition. The transition time moves only when the status flips.
pub fn set(conditions: &mut Vec<Condition>, wanted: Wanted, generation: i64, now: Timestamp) {
    let status = if wanted.status { "True" } else { "False" };
    let type_ = wanted.type_.as_str();
    let old = conditions.iter_mut().find(|one| one.type_ == type_);
    // Seconds are what the API keeps; more would differ from what is read back.
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let since = match &old {
        Some(old) if old.status == status => old.last_transition_time.clone(),
        _ => now,
    };
    let fresh = Condition {
        last_transition_time: since,
        message: wanted.message,
        observed_generation: Some(generation),
        reason: wanted.reason.as_str(),
        status: status.to_owned(),
        type_: type_.to_owned(),
    };
    match old {
        Some(old) => *old = fresh,
        None => conditions.push(fresh),
    }
}

/// Takes a condition away that no longer applies.
pub fn unset(conditions: &mut Vec<Condition>, type_: Type) {
    conditions.retain(|one| one.type_ != type_.as_str());
}

/// Whether a condition is there and True.
pub fn is_true(conditions: &[Condition], type_: Type) -> bool {
    conditions
        .iter()
        .any(|one| one.type_ == type_.as_str() && one.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(status: bool, message: &str) -> Wanted {
        Wanted {
            type_: Type::Ready,
            status,
            reason: Reason::Healthy,
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        set(&mut conditions, wanted(true, "a"), 1, at(10));
        set(&mut conditions, wanted(true, "b"), 2, at(20));
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert_eq!(conditions[0].message, "b");
        set(&mut conditions, wanted(false, "c"), 2, at(30));
        assert_eq!(conditions[0].last_transition_time.0, at(30));
        unset(&mut conditions, Type::Ready);
        assert!(conditions.is_empty());
    }
}
