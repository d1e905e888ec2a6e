//! Seeds that are kept: those that once showed a fault of the product, and for each break the
//! one that catches it fastest. Data only.

use flower_store::sabotage::Break;

/// How long clients work under faults unless told otherwise, seconds of the world's time.
pub const SECONDS: u64 = 12;

/// Seeds that once failed, and what was wrong.
pub const PAST: &[(u64, &str)] = &[
    (
        33,
        "a call sent on a second time told what the second leader refused, though the first may \
         have done it",
    ),
    (91, "the same"),
    (141, "the same"),
    (
        1_796_096_033_016,
        "a step of a watch said that it begins at a revision that its client was never told",
    ),
];

/// Seeds that every test run does twice.
pub const TWICE: &[u64] = &[1, 2];

/// For each break a seed that has caught it, and how many from there on are tried: what is
/// changed in the node moves every world a little. Breaks that are not listed have not been
/// caught yet by the seeds that were tried.
pub const CATCHES: &[(Break, u64, u64)] = &[
    (Break::CertificateForgetsRange, 1, 12),
    (Break::FenceBeforeCommit, 2, 12),
    (Break::LeaderRestore, 1, 12),
    (Break::MemberIdReused, 4, 12),
    (Break::NoFlush, 1, 12),
    (Break::PurgePastCheckpoint, 13, 12),
    (Break::ReaderRecordNotWritten, 1, 12),
    (Break::ReceiptOutsidePatch, 1, 12),
    (Break::StaleAdminCall, 3, 12),
    (Break::VoteAfterLog, 1, 12),
    (Break::WatchSkips, 1, 12),
    (Break::WrongMemberAccepted, 40, 12),
];

/// A campaign of so many worlds must have reached every state.
pub const ENOUGH_TO_REACH_ALL: u64 = 60;

/// States that a campaign must reach.
pub const MUST_REACH: &[&str] = &[
    "ended by a bad disk",
    "image received",
    "leader changed",
    "log purged",
    "log replayed on start",
    "member removed",
    "receipt replayed",
    "stale call refused",
    "volume rotten",
    "volume wiped",
    "watch resumed",
    "watch told",
];
