//! Breaks, for trying out whether the simulator would notice: each leaves out or turns around
//! one thing that the node's promises rest on. States that a campaign of simulations must reach,
//! and votes that members may have told, for what only they themselves know. All of it exists with the feature `sim` only; without it nothing is ever broken or counted.

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
        cmp::Ordering,
        collections::BTreeMap,
    };

    use super::Break;

    /// Who voted for whom in which term, and whether that one leads.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Told {
        term: u64,
        candidate: u64,
        leads: bool,
    }

    thread_local! {
        static TOLD: RefCell<BTreeMap<u64, Told>> = const { RefCell::new(BTreeMap::new()) };
        static FORGOTTEN: RefCell<Option<String>> = const { RefCell::new(None) };
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
        TOLD.take();
        FORGOTTEN.take();
    }

    /// This thread's world has reached a state.
    pub fn reach(state: &'static str) {
        REACHED.with_borrow_mut(|all| *all.entry(state).or_default() += 1);
    }

    /// A member may tell this vote from now on.
    pub fn vote_told(member: u64, (term, candidate, leads): (u64, u64, bool)) {
        let told = Told {
            term,
            candidate,
            leads,
        };
        TOLD.with_borrow_mut(|all| all.insert(member, told));
    }

    /// A member that starts has found this vote: it must know all that it may have told.
    pub fn vote_found(member: u64, found: Option<(u64, u64, bool)>) {
        let Some(told) = TOLD.with_borrow(|all| all.get(&member).copied()) else {
            return;
        };
        let (term, candidate, leads) = found.unwrap_or_default();
        let known = match (term, leads).cmp(&(told.term, told.leads)) {
            Ordering::Less => false,
            Ordering::Equal => candidate == told.candidate,
            Ordering::Greater => true,
        };
        if !known {
            let why = format!("member {member:016x} told {told:?}, and found {found:?} afterwards");
            FORGOTTEN.with_borrow_mut(|first| first.get_or_insert(why).truncate(400));
        }
    }

    /// The first vote that was told and forgotten on this thread.
    pub fn vote_forgotten() -> Option<String> {
        FORGOTTEN.with_borrow(Clone::clone)
    }

    /// How often each state was reached on this thread; counting begins anew.
    pub fn take_reached() -> BTreeMap<&'static str, u64> {
        REACHED.take()
    }
}

#[cfg(feature = "sim")]
pub use switched::{is_broken, reach, set, take_reached, vote_forgotten, vote_found, vote_told};

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

/// Nobody looks at votes in a program that is shipped.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn vote_told(_: u64, _: (u64, u64, bool)) {}

/// Nobody looks at votes in a program that is shipped.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn vote_found(_: u64, _: Option<(u64, u64, bool)>) {}
