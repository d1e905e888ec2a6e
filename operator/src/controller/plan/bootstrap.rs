//! The birth of a group: whose data the volumes hold, and the one bootstrap. Pure.
//! A group that may have data is never bootstrapped; a volume of another cluster is never used.

use flower_api::{ids::ClusterId, report::Lifecycle};

use super::{Facts, Hold, Step, Verdict};
use crate::{
    conditions::Reason,
    controller::{observed::NodeView, raft_view::NoLeader},
    crd::status::GroupStatus,
    names::Ordinal,
};

/// Compares the identities on the volumes with the saved one.
pub fn identity(facts: Facts<'_>) -> Verdict {
    let observed = facts.observed;
    let on_volumes = observed.clusters_on_volumes();
    let ours = match (&observed.status.cluster_id, on_volumes.len()) {
        (Some(saved), _) => saved,
        (None, 0) => return Verdict::Pass,
        (None, 1) => {
            return on_volumes.first().map_or(Verdict::Pass, |cluster| {
                Verdict::Do(Step::Adopt {
                    cluster: (*cluster).clone(),
                })
            });
        }
        (None, _) => {
            let pods: Vec<String> = observed
                .reports()
                .filter_map(|(ordinal, report)| {
                    let cluster = report.identity.cluster.as_ref()?;
                    Some(format!("{} of cluster {cluster}", facts.claim(ordinal)))
                })
                .collect();
            return Verdict::Block(Hold::new(
                Reason::ForeignVolume,
                format!(
                    "the volumes belong to different clusters ({}) and the status does not say which is this one: delete the claims of the others",
                    pods.join(", ")
                ),
            ));
        }
    };
    match foreign(facts, ours) {
        None => Verdict::Pass,
        Some((ordinal, other)) => Verdict::Wait(Hold::new(
            Reason::ForeignVolume,
            format!(
                "the volume of claim {} belongs to cluster {other}, this is cluster {ours}: it is left alone; delete the claim and the pod {} if its data is not needed",
                facts.claim(ordinal),
                facts.pod(ordinal)
            ),
        )),
    }
}

fn foreign(facts: Facts<'_>, ours: &ClusterId) -> Option<(Ordinal, ClusterId)> {
    facts.observed.reports().find_map(|(ordinal, report)| {
        let cluster = report.identity.cluster.as_ref()?;
        (cluster != ours).then(|| (ordinal, cluster.clone()))
    })
}

/// With no leader: bootstrap a group that cannot have data, else say what is missing.
pub fn bootstrap(facts: Facts<'_>, none: &NoLeader) -> Verdict {
    let observed = facts.observed;
    if let NoLeader::Two { ordinals, term } = none {
        let pods: Vec<String> = ordinals.iter().map(|one| facts.pod(*one)).collect();
        return Verdict::Block(Hold::new(
            Reason::TwoLeaders,
            format!(
                "{} both claim to lead in term {term}: nothing is changed; collect their logs, this must not happen",
                pods.join(" and ")
            ),
        ));
    }
    let saved = observed.status.cluster_id.as_ref();
    let has_data = !observed.clusters_on_volumes().is_empty();
    let group = observed.group(facts.cluster.group);
    match saved {
        Some(_) if has_data => no_leader(facts),
        Some(cluster) => saved_but_absent(facts, cluster, group),
        None => first_time(facts),
    }
}

/// An identity was saved, and no volume that answers has it.
fn saved_but_absent(facts: Facts<'_>, cluster: &ClusterId, group: Option<&GroupStatus>) -> Verdict {
    if group.is_some_and(|group| group.bootstrapped) {
        return lost(facts, cluster);
    }
    let Some(report) = facts.observed.report(0) else {
        return waiting(facts, "to bootstrap the group");
    };
    let first = group.and_then(|group| group.first_member);
    match (report.identity.lifecycle, report.identity.member) {
        (Lifecycle::Uninitialized, Some(member)) if first == Some(member) => {
            Verdict::Do(Step::Bootstrap {
                cluster: cluster.clone(),
                member,
            })
        }
        // Its volume was exchanged between the save and the bootstrap. Whether the call was
        // made is unknown: with more than one replica nothing can have been accepted, as the
        // group was not formed; with one it can.
        (Lifecycle::Uninitialized, Some(member)) if facts.cluster.replicas > 1 => {
            match unheard(facts) {
                None => Verdict::Do(Step::SaveIdentity { first: member }),
                Some(hold) => Verdict::Wait(hold),
            }
        }
        (Lifecycle::Broken, _) => broken(facts, 0),
        _ => lost(facts, cluster),
    }
}

/// Nothing was ever saved and nobody has data.
fn first_time(facts: Facts<'_>) -> Verdict {
    let Some(report) = facts.observed.report(0) else {
        return waiting(facts, "to bootstrap the group");
    };
    match (report.identity.lifecycle, report.identity.member) {
        (Lifecycle::Uninitialized, Some(member)) => match unheard(facts) {
            None => Verdict::Do(Step::SaveIdentity { first: member }),
            Some(hold) => Verdict::Wait(hold),
        },
        (Lifecycle::Broken, _) => broken(facts, 0),
        _ => waiting(facts, "to bootstrap the group"),
    }
}

/// A volume that may hold the data of an earlier life of this cluster, and has not said so:
/// it is older than the FlowerCluster, or its pod has run.
fn unheard(facts: Facts<'_>) -> Option<Hold> {
    let created = facts.cluster.created.as_ref().map(|time| time.0);
    let observed = facts.observed;
    let silent = observed.claims.iter().find(|(ordinal, claim)| {
        if observed.report(**ordinal).is_some() {
            return false;
        }
        let older = matches!((claim.created, created), (Some(claim), Some(us)) if claim < us);
        let ran = observed.pods.get(ordinal).is_some_and(|pod| pod.started);
        (claim.volume.is_some() && older) || ran
    });
    silent.map(|(ordinal, _)| {
        Hold::new(
            Reason::WaitingForVolumes,
            format!(
                "the volume of claim {} may hold data of this cluster and its pod {} has not answered yet: nothing is bootstrapped before it has",
                facts.claim(*ordinal),
                facts.pod(*ordinal)
            ),
        )
    })
}

fn broken(facts: Facts<'_>, ordinal: Ordinal) -> Verdict {
    let why = facts
        .observed
        .report(ordinal)
        .and_then(|report| report.identity.broken.clone())
        .unwrap_or_else(|| "it does not say why".to_owned());
    Verdict::Block(Hold::new(
        Reason::OnlyMemberBroken,
        format!(
            "the data of {} cannot be read ({why}) and no other member has it: restore the volume of claim {}, or delete the claim and the pod to begin with an empty one",
            facts.pod(ordinal),
            facts.claim(ordinal)
        ),
    ))
}

fn lost(facts: Facts<'_>, cluster: &ClusterId) -> Verdict {
    if let Some(hold) = silent_pods(facts) {
        return Verdict::Wait(hold);
    }
    Verdict::Block(Hold::new(
        Reason::MembersLost,
        format!(
            "cluster {cluster} had members, and no volume holds its data any more: bring the volumes back; or, to give the data up, delete this FlowerCluster and its claims and apply it again"
        ),
    ))
}

/// Members exist and none leads with a quorum behind it.
fn no_leader(facts: Facts<'_>) -> Verdict {
    let observed = facts.observed;
    let mut broken_pods = observed
        .reports()
        .filter(|(_, report)| report.identity.lifecycle == Lifecycle::Broken);
    if let (1, Some((ordinal, _))) = (facts.cluster.replicas, broken_pods.next()) {
        return broken(facts, ordinal);
    }
    let unreachable =
        silent_pods(facts).map_or_else(String::new, |hold| format!("; {}", hold.message));
    Verdict::Wait(Hold::new(
        Reason::NoLeader,
        format!(
            "no member leads with a quorum behind it{unreachable}; nothing is removed, because an unreachable member may come back. If a majority of the volumes is lost for good, see `flower recover`"
        ),
    ))
}

fn silent_pods(facts: Facts<'_>) -> Option<Hold> {
    let silent: Vec<String> = (0..facts.cluster.replicas)
        .filter_map(|ordinal| {
            let why = match (
                facts.observed.pods.get(&ordinal),
                facts.observed.nodes.get(&ordinal),
            ) {
                (None, _) => "does not exist yet".to_owned(),
                (_, Some(NodeView::Reported(_))) => return None,
                (_, Some(NodeView::Unreachable { why })) => format!("does not answer ({why})"),
                (Some(pod), None) => pod.waiting.as_ref().map_or_else(
                    || "has not started".to_owned(),
                    |why| format!("waits ({why})"),
                ),
            };
            Some(format!("{} {why}", facts.pod(ordinal)))
        })
        .collect();
    (!silent.is_empty()).then(|| Hold::new(Reason::WaitingForPods, silent.join(", ")))
}

fn waiting(facts: Facts<'_>, what: &str) -> Verdict {
    let message = silent_pods(facts).map_or_else(|| "pods start".to_owned(), |hold| hold.message);
    Verdict::Wait(Hold::new(
        Reason::WaitingForPods,
        format!("waiting {what}: {message}"),
    ))
}
