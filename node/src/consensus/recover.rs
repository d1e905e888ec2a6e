//! The way out of a quorum that is lost for good: what one survivor holds becomes the whole
//! group. The survey and the acceptance are made on the running node; the one change of the log
//! is made at its next start, by `revive`. Never called by anything but a person.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use flower_api::{
    MemberId,
    admin::{Recover, Survey, SurveyedMember, code},
    report::{ConfigVersion, Identity, Recovery},
    wire::Problem,
};
use flower_store::{Accepted, LogPosition};
use futures::future::join_all;

use super::{
    Consensus,
    types::{WireVote, raw},
    wire::{Purpose, Request, Response},
};
use crate::env::{Fatal, LaneId};

/// How long another member is asked how far it is.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// A leader that had a quorum was heard of this lately: nothing is lost.
const HEARD: Duration = Duration::from_secs(10);
/// The acceptance is answered before the node ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Consensus {
    /// What a recovery of this node would keep and lose, and whether it would be accepted.
    pub async fn survey(&self, identity: Identity) -> Survey {
        let metrics = self.metrics();
        let others = metrics
            .membership_config
            .nodes()
            .filter(|(id, _)| **id != metrics.id)
            .map(|(id, peer)| self.ask(MemberId(*id), peer.address.clone()));
        let others = join_all(others).await;
        let last = self.0.log.reader().bounds().last;
        let report = self.report();
        Survey {
            identity,
            last_log: last.map(told),
            committed: report.positions.committed,
            revision: report.positions.revision,
            refused: self.refusal(last, &others),
            others,
        }
    }

    /// Keeps the recovery for the next start, which comes at once.
    ///
    /// # Errors
    /// `wrong-member`, and `unsafe` for whatever speaks against it.
    pub async fn recover(&self, call: &Recover, identity: Identity) -> Result<(), Problem> {
        let me = self.me();
        if call.member != me.member {
            return Err(Problem::new(
                409,
                code::WRONG_MEMBER,
                "The call is for another member",
                format!("it is for member {}; this is {}", call.member, me.member),
            ));
        }
        let _alone = self.0.changing.lock().await;
        let survey = self.survey(identity).await;
        if let Some(why) = survey.refused {
            return Err(refused(why));
        }
        let last = self.0.log.reader().bounds().last;
        let last = last.ok_or_else(|| refused("its log is empty".to_owned()))?;
        if last.index != call.accept_loss_after {
            return Err(refused(format!(
                "the loss of what lies behind entry {} was accepted, and the log of member {} \
                 ends at {last}: look again at what would be lost",
                call.accept_loss_after, me.member
            )));
        }
        self.accept(last).await
    }

    async fn accept(&self, last: LogPosition) -> Result<(), Problem> {
        let me = self.me();
        let mut members: BTreeMap<MemberId, String> = self
            .metrics()
            .membership_config
            .nodes()
            .map(|(id, peer)| (MemberId(*id), peer.address.clone()))
            .collect();
        let address = members.remove(&me.member).unwrap_or_default();
        let recovery = Recovery {
            number: me.recovery().map_or(0, |last| last.number) + 1,
            by: me.member,
        };
        let accepted = Accepted::new(recovery, last, address, members);
        let disk = self.0.env.disk.clone();
        let saved = self
            .0
            .env
            .run_on(LaneId::Files, move || accepted.save(&*disk));
        match saved.await {
            Ok(Ok(())) => {}
            Ok(Err(fatal)) => return Err(refused(fatal.to_string())),
            Err(gone) => return Err(refused(gone.to_string())),
        }
        tracing::warn!(%recovery, %last, "a recovery was accepted; the node starts anew to make it");
        let env = self.0.env.clone();
        self.0.env.tasks.spawn("recovery", async move {
            env.sleep(LAST_WORDS).await;
            Err(Fatal::new(format!(
                "{recovery} was accepted: it is made when this node starts again"
            )))
        });
        Ok(())
    }

    fn refusal(&self, last: Option<LogPosition>, others: &[SurveyedMember]) -> Option<String> {
        let metrics = self.metrics();
        let now = self.0.env.clock.mono();
        // A leader that has lost its quorum goes on calling itself one: what counts is the quorum.
        let heard = self.contact().is_some_and(|heard| now - heard.at < HEARD);
        if heard {
            return Some("the group has a leader, or had one a moment ago".to_owned());
        }
        let me = self.me().member;
        let members: BTreeSet<MemberId> = metrics
            .membership_config
            .nodes()
            .map(|(id, _)| MemberId(*id))
            .collect();
        if !members.contains(&me) {
            return Some(format!(
                "member {me} is in no configuration that it knows: its data may be an old copy"
            ));
        }
        let sets = metrics.membership_config.get_joint_config();
        let sets: Vec<BTreeSet<MemberId>> = sets
            .iter()
            .map(|set| set.iter().map(|id| MemberId(*id)).collect())
            .collect();
        against(me, last.map(told), &sets, others)
    }

    async fn ask(&self, member: MemberId, address: String) -> SurveyedMember {
        let metrics = self.metrics();
        let id = raw(member);
        let vote = WireVote {
            term: metrics.vote.leader_id.term + 1,
            candidate: metrics.id,
            committed: false,
        };
        // The question whether it would vote changes nothing, and is answered with how far it is.
        let question = Request::Vote {
            pre: true,
            vote,
            last: self.0.log.reader().bounds().last,
            transfer: false,
        };
        let links = &self.0.links;
        let asked = links.call(member, &address, Purpose::Control, &question, ASK_LIMIT);
        let (answers, last_log, why) = match asked.await {
            Ok(Response::Vote { last, .. }) => (true, last.map(told), None),
            Ok(Response::Failed(why)) => (true, None, Some(why)),
            Ok(other) => (true, None, Some(format!("another answer: {other:?}"))),
            Err(error) => (false, None, Some(error.to_string())),
        };
        SurveyedMember {
            member,
            address,
            voter: metrics.membership_config.voter_ids().any(|v| v == id),
            answers,
            last_log,
            why,
        }
    }
}

/// What speaks against making `me` the whole group; pure.
fn against(
    me: MemberId,
    last: Option<ConfigVersion>,
    voters: &[BTreeSet<MemberId>],
    others: &[SurveyedMember],
) -> Option<String> {
    if last.is_none() {
        return Some("its log is empty".to_owned());
    }
    let answers = |id: &MemberId| {
        *id == me
            || others
                .iter()
                .any(|other| other.member == *id && other.answers)
    };
    let whole =
        |set: &BTreeSet<MemberId>| set.iter().filter(|id| answers(id)).count() * 2 > set.len();
    if voters.iter().all(whole) {
        return Some(
            "a majority of the voters answers: nothing is lost for good; wait for their election, \
             or look for what keeps them from it"
                .to_owned(),
        );
    }
    let ahead = others
        .iter()
        .filter(|other| other.answers && other.last_log > last)
        .max_by_key(|other| other.last_log)?;
    Some(format!(
        "member {} at {} is further (entry {}, here {}): recover from that one",
        ahead.member,
        ahead.address,
        ahead.last_log.map_or(0, |at| at.index),
        last.map_or(0, |at| at.index)
    ))
}

fn refused(why: String) -> Problem {
    Problem::new(409, code::UNSAFE, "The recovery is refused", why)
}

fn told(position: LogPosition) -> ConfigVersion {
    ConfigVersion {
        term: position.term,
        index: position.index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, index: u64) -> ConfigVersion {
        ConfigVersion { term, index }
    }

    fn other(id: u64, last: Option<ConfigVersion>) -> SurveyedMember {
        SurveyedMember {
            member: MemberId(id),
            address: format!("host-{id}:7701"),
            voter: true,
            answers: last.is_some(),
            last_log: last,
            why: None,
        }
    }

    #[test]
    fn a_recovery_is_refused_while_a_majority_answers_or_somebody_is_further() {
        let five: Vec<BTreeSet<MemberId>> = vec![(1..=5).map(MemberId).collect()];
        let away = || vec![other(3, None), other(4, None), other(5, None)];
        for (second, last, expected) in [
            (None, Some(at(2, 9)), None),
            (Some(at(2, 9)), Some(at(2, 9)), None),
            (Some(at(2, 8)), Some(at(2, 9)), None),
            // A shorter log of a later term holds what was committed since.
            (Some(at(3, 8)), Some(at(2, 9)), Some("is further")),
            (Some(at(2, 10)), Some(at(2, 9)), Some("is further")),
            (None, None, Some("empty")),
        ] {
            let mut others = away();
            others.push(other(2, second));
            let why = against(MemberId(1), last, &five, &others);
            match expected {
                None => assert_eq!(why, None),
                Some(part) => assert!(why.clone().is_some_and(|why| why.contains(part)), "{why:?}"),
            }
        }
        let mut most = away();
        most[0] = other(3, Some(at(1, 1)));
        most.push(other(2, Some(at(1, 1))));
        let why = against(MemberId(1), Some(at(2, 9)), &five, &most);
        assert!(why.is_some_and(|why| why.contains("a majority")));
    }
}
