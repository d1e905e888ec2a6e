//! Breaks, for trying out whether the simulator would notice: each leaves out or turns around
//! one thing that the node's promises rest on. And states that a campaign of simulations must
//! reach. Both exist with the feature `sim` only; without it nothing is ever broken or counted.

/// What may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Break {
    /// A restarted leader takes up its term again.
    LeaderRestore,
    /// A flush of the log writes nothing durable.
    NoFlush,
    /// A vote is told before it is durable.
    VoteAfterLog,
    /// A fence answers without asking a quorum.
    FenceBeforeCommit,
    /// The log is purged past the checkpoint.
    PurgePastCheckpoint,
    /// A checkpoint does not wait for its log.
    CheckpointAheadOfLog,
    /// A receipt is not written with its effects.
    ReceiptOutsidePatch,
    /// An empty volume gets the member id of the one before.
    MemberIdReused,
    /// A peer's request for another member is accepted.
    WrongMemberAccepted,
    /// An admin call planned against an old configuration is accepted.
    StaleAdminCall,
    /// What a mutation read by ranges is not certified.
    CertificateForgetsRange,
    /// A derived value's reader records are not written.
    ReaderRecordNotWritten,
    /// Some of what is written is not told to watches.
    WatchSkips,
    /// A member without data answers elections for the one before it.
    WipedNodeVotes,
}

impl Break {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::LeaderRestore,
        Self::NoFlush,
        Self::VoteAfterLog,
        Self::FenceBeforeCommit,
        Self::PurgePastCheckpoint,
        Self::CheckpointAheadOfLog,
        Self::ReceiptOutsidePatch,
        Self::MemberIdReused,
        Self::WrongMemberAccepted,
        Self::StaleAdminCall,
        Self::CertificateForgetsRange,
        Self::ReaderRecordNotWritten,
        Self::WatchSkips,
        Self::WipedNodeVotes,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeaderRestore => "leader-restore",
            Self::NoFlush => "no-flush",
            Self::VoteAfterLog => "vote-after-log",
            Self::FenceBeforeCommit => "fence-before-commit",
            Self::PurgePastCheckpoint => "purge-past-checkpoint",
            Self::CheckpointAheadOfLog => "checkpoint-ahead-of-log",
            Self::ReceiptOutsidePatch => "receipt-outside-patch",
            Self::MemberIdReused => "member-id-reused",
            Self::WrongMemberAccepted => "wrong-member-accepted",
            Self::StaleAdminCall => "stale-admin-call",
            Self::CertificateForgetsRange => "certificate-forgets-range",
            Self::ReaderRecordNotWritten => "reader-record-not-written",
            Self::WatchSkips => "watch-skips",
            Self::WipedNodeVotes => "wiped-node-votes",
        }
    }
}

#[cfg(feature = "sim")]
mod switched {
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeMap,
    };

    use super::Break;

    thread_local! {
        static BROKEN: Cell<Option<Break>> = const { Cell::new(None) };
        static REACHED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Whether this thread's world has this break.
    pub fn is_broken(what: Break) -> bool {
        BROKEN.get() == Some(what)
    }

    /// Breaks this thread's world, or mends it.
    pub fn set(what: Option<Break>) {
        BROKEN.set(what);
    }

    /// This thread's world has reached a state.
    pub fn reach(state: &'static str) {
        REACHED.with_borrow_mut(|all| *all.entry(state).or_default() += 1);
    }

    /// How often each state was reached on this thread; counting begins anew.
    pub fn take_reached() -> BTreeMap<&'static str, u64> {
        REACHED.take()
    }
}

#[cfg(feature = "sim")]
pub use switched::{is_broken, reach, set, take_reached};

/// Nothing is broken in a program that is shipped.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn is_broken(_: Break) -> bool {
    false
}

/// Nothing is counted in a program that is shipped.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn reach(_: &'static str) {}
