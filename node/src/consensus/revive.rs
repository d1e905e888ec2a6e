//! A recovery that was accepted is made when the node starts, before consensus begins; and the
//! members that it gave up are told as long as they may come back. Accepting one is `recover`'s.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use flower_api::MemberId;
use flower_store::{Accepted, LogPosition, LogRecord, OpenDir, OpenError, Payload};
use futures::future::join_all;

use super::{
    Consensus,
    handshake::{HandshakeError, Refusal},
    links::Links,
    types::{Membership, Peer, WireMembership, WireVote, decode, encode, raw},
    wire::Purpose,
};
use crate::env::{Env, Fatal};

/// Between two tries to tell the members that were given up.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Makes the recovery that was accepted, if one was: behind everything that the log holds, an
/// entry of a new term says that this member alone is the group. Goes on where an interruption
/// left it. On a log that has changed since the acceptance nothing is done.
///
/// # Errors
/// When the disk fails, or what was accepted cannot be read.
pub(crate) fn carry_out(open: &mut OpenDir) -> Result<(), Fatal> {
    let failed = |e: flower_store::Fatal| Fatal::new(e.to_string());
    let unreadable = |e: OpenError| Fatal::new(e.to_string());
    let disk = open.dir.disk().clone();
    let Some(accepted) = Accepted::load(&*disk).map_err(unreadable)? else {
        return Ok(());
    };
    let me = open.dir.identity().member;
    let reader = open.log.reader();
    let vote: Option<WireVote> = match reader.vote() {
        None => None,
        Some(bytes) => Some(decode(&bytes).map_err(|e| Fatal::new(format!("the vote: {e}")))?),
    };
    let ours = accepted.recovery.by == me;
    match reader.bounds().last {
        Some(last) if ours && last == accepted.last => {
            let (record, vote) = entry_of(&accepted, vote)
                .map_err(|e| Fatal::new(format!("the recovery's configuration: {e}")))?;
            tracing::warn!(recovery = %accepted.recovery, behind = %last, "the group is recovered");
            open.log.append([record]);
            open.log.save_vote(encode(&vote));
            open.log.flush().map_err(failed)?;
        }
        // Made before an interruption.
        Some(last) if ours && is_made(&accepted, last) => {}
        last => {
            tracing::error!(recovery = %accepted.recovery, accepted = %accepted.last, ?last,
                "the recovery is not made: the log is another than the one that it was accepted for");
            return Accepted::forget(&*disk).map_err(failed);
        }
    }
    let Accepted {
        recovery, given_up, ..
    } = accepted;
    open.dir.recovered(recovery, given_up).map_err(failed)?;
    Accepted::forget(&*disk).map_err(failed)
}

fn is_made(accepted: &Accepted, last: LogPosition) -> bool {
    last.index == accepted.last.index + 1
        && last.leader == raw(accepted.recovery.by)
        && last.term > accepted.last.term
}

/// The entry, and the vote of the leadership that wrote it.
fn entry_of(accepted: &Accepted, vote: Option<WireVote>) -> std::io::Result<(LogRecord, WireVote)> {
    let me = raw(accepted.recovery.by);
    let term = vote.map_or(0, |vote| vote.term).max(accepted.last.term) + 1;
    let position = LogPosition {
        term,
        leader: me,
        index: accepted.last.index + 1,
    };
    let address = accepted.address.clone();
    let alone = Membership::new(
        vec![BTreeSet::from([me])],
        BTreeMap::from([(me, Peer { address })]),
    )
    .map_err(std::io::Error::other)?;
    let record = LogRecord {
        position,
        payload: Payload::Membership(WireMembership::new(Some(position), &alone).encode()),
    };
    let vote = WireVote {
        term,
        candidate: me,
        committed: true,
    };
    Ok((record, vote))
}

/// Tells the members that a recovery gave up, as long as they may come back: their data must
/// take no part any more, and they cannot know. Those at whose address another member is now
/// are gone.
pub(crate) fn tell_given_up(
    env: &Env,
    consensus: &Consensus,
    mut given_up: BTreeMap<MemberId, String>,
) {
    if given_up.is_empty() {
        return;
    }
    let (world, consensus) = (env.clone(), consensus.clone());
    env.tasks.spawn("given up", async move {
        while !given_up.is_empty() {
            tokio::select! {
                () = world.tasks.stopping() => return Ok(()),
                () = world.sleep(TELL_EVERY) => {}
            }
            let metrics = consensus.metrics();
            let taken: BTreeSet<&str> = metrics
                .membership_config
                .nodes()
                .map(|(_, peer)| &*peer.address)
                .collect();
            given_up.retain(|_, address| !taken.contains(&**address));
            let links = &consensus.0.links;
            let asked = given_up.iter().map(|(member, address)| async move {
                (*member, is_told(links, *member, address).await)
            });
            for (member, told) in join_all(asked).await {
                if told {
                    tracing::info!(%member, "a member that was given up is told");
                    given_up.remove(&member);
                }
            }
        }
        // A task that ends unasked would end the node.
        world.tasks.stopping().await;
        Ok(())
    });
}

async fn is_told(links: &Links, member: MemberId, address: &str) -> bool {
    let greeted = links.greet(member, address, Purpose::Control).await;
    matches!(
        greeted,
        Some(Err(HandshakeError::Refused(
            Refusal::Outlived(_) | Refusal::Member(_)
        )))
    )
}

#[cfg(test)]
mod tests {
    use flower_api::report::Recovery;

    use super::*;

    #[test]
    fn the_entry_goes_behind_the_log_in_a_term_that_nobody_here_has_seen() {
        let recovery = Recovery {
            number: 1,
            by: MemberId(7),
        };
        let last = LogPosition {
            term: 4,
            leader: 9,
            index: 20,
        };
        let accepted = Accepted::new(recovery, last, "here:1".into(), BTreeMap::new());
        let seen = WireVote {
            term: 6,
            candidate: 8,
            committed: false,
        };
        for (vote, term) in [(None, 5), (Some(seen), 7)] {
            let (record, vote) = entry_of(&accepted, vote).unwrap();
            assert_eq!((record.position.term, record.position.index), (term, 21));
            assert_eq!((vote.term, vote.candidate, vote.committed), (term, 7, true));
            assert!(is_made(&accepted, record.position));
            let Payload::Membership(bytes) = record.payload else {
                panic!("another entry")
            };
            let written: WireMembership = decode(&bytes).unwrap();
            assert_eq!(written.voters, [BTreeSet::from([7])]);
            assert_eq!(written.members.len(), 1);
        }
        assert!(!is_made(&accepted, last));
    }
}
