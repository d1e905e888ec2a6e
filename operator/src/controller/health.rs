//! What the conditions say. Pure.

use flower_api::report::Lifecycle;

use super::{
    act::Acted,
    observed::{AppView, ClaimView, NodeView, PodView},
    plan::{Hold, Step},
    status::Inputs,
};
use crate::{
    conditions::{Reason, Type, Wanted},
    crd::FlowerClusterStatus,
};

type Said = (bool, Reason, String);

/// All conditions of a spec that was accepted.
pub fn conditions(
    inputs: &Inputs<'_>,
    status: &FlowerClusterStatus,
    hold: Option<&Hold>,
) -> Vec<Wanted> {
    if let Some(hold) = hold.filter(|hold| is_blind(hold, status)) {
        return blind(hold);
    }
    let available = available(inputs, status);
    let progressing = progressing(inputs, hold);
    let accepted = match hold.filter(|hold| hold.reason == Reason::ApplyRefused) {
        Some(hold) => (false, hold.reason, hold.message.clone()),
        None => (
            true,
            Reason::Valid,
            "the spec can be carried out".to_owned(),
        ),
    };
    let voters = inputs.view.map_or(0, |view| view.voters().len());
    let ready = match (available.0, progressing.0) {
        _ if !accepted.0 => (false, Reason::NotAccepted, accepted.2.clone()),
        (false, _) => (false, Reason::NotAvailable, available.2.clone()),
        (_, true) => (false, Reason::Progressing, progressing.2.clone()),
        // A pause, or another hold, in the middle of a change.
        _ if voters != inputs.cluster.replicas as usize => (
            false,
            Reason::Progressing,
            format!(
                "{voters} of {} replicas are voters{}",
                inputs.cluster.replicas,
                hold.map_or(String::new(), |hold| format!(": {}", hold.message))
            ),
        ),
        _ => (
            true,
            Reason::Healthy,
            format!(
                "{} of {} replicas are ready{}",
                status.ready_replicas,
                inputs.cluster.replicas,
                match inputs.cluster.paused {
                    true => "; spec.paused is true, so changes of the spec wait",
                    false => "",
                }
            ),
        ),
    };
    let mut all = vec![
        (Type::Ready, ready),
        (Type::Accepted, accepted),
        (Type::Available, available),
        (Type::Progressing, progressing),
        (Type::Degraded, degraded(inputs)),
        (Type::QuorumAtRisk, quorum(inputs, status)),
        (Type::StorageAtRisk, storage(inputs)),
        (Type::StaleSpec, stale(hold)),
    ];
    if let Some(app) = app(inputs) {
        all.push((Type::AppDeployed, app));
    }
    all.into_iter()
        .map(|(type_, (status, reason, message))| Wanted {
            type_,
            status,
            reason,
            message,
        })
        .collect()
}

/// Without tokens no node can be asked: that nothing is heard says nothing of the group then.
fn is_blind(hold: &Hold, status: &FlowerClusterStatus) -> bool {
    let auth = [Reason::AuthSecretMissing, Reason::AuthSecretInvalid];
    auth.contains(&hold.reason) && status.groups.iter().any(|group| group.bootstrapped)
}

/// What is said of a group that cannot be asked; what was known of it stays.
fn blind(hold: &Hold) -> Vec<Wanted> {
    let no = |type_| Wanted {
        type_,
        status: false,
        reason: hold.reason,
        message: hold.message.clone(),
    };
    vec![no(Type::Ready), no(Type::Progressing)]
}

fn available(inputs: &Inputs<'_>, status: &FlowerClusterStatus) -> Said {
    let bootstrapped = status.groups.iter().any(|group| group.bootstrapped);
    match inputs.view {
        Some(view) if view.formed => (
            true,
            Reason::LeaderElected,
            format!("{} leads", status.leaders.as_deref().unwrap_or("a member")),
        ),
        Some(_) => (
            false,
            Reason::Forming,
            "the group accepts mutations once it has reached its size".to_owned(),
        ),
        None if bootstrapped => (
            false,
            Reason::NoLeader,
            "no member leads with a quorum behind it".to_owned(),
        ),
        None => (
            false,
            Reason::NotBootstrapped,
            "the first member is being made".to_owned(),
        ),
    }
}

fn progressing(inputs: &Inputs<'_>, hold: Option<&Hold>) -> Said {
    let reason = match &inputs.plan.step {
        Step::None => None,
        Step::SaveIdentity { .. }
        | Step::Adopt { .. }
        | Step::Bootstrap { .. }
        | Step::MarkFormed => Some(Reason::Bootstrapping),
        Step::SaveRecovery { .. } => Some(Reason::Replacing),
        Step::AddLearner { .. } | Step::Promote { .. } => Some(Reason::CatchingUp),
        Step::Transfer { .. } | Step::RestartPod { .. } => Some(Reason::RollingOut),
        Step::Remove { .. } | Step::DeleteClaim { .. } => Some(Reason::Scaling),
        Step::Deploy { .. } => Some(Reason::Deploying),
    };
    match (reason, hold) {
        // A bundle that was refused leaves the cluster as it is.
        (_, Some(hold)) if hold.reason == Reason::BundleRefused => (
            false,
            Reason::AsDesired,
            "the cluster is as desired, but for its application".to_owned(),
        ),
        (Some(reason), _) => (true, reason, inputs.plan.step.to_string()),
        (None, Some(hold)) if hold.is_progress() => (true, hold.reason, hold.message.clone()),
        (None, Some(hold)) => (false, hold.reason, hold.message.clone()),
        (None, None) => (
            false,
            Reason::AsDesired,
            "the cluster is as desired".to_owned(),
        ),
    }
}

fn degraded(inputs: &Inputs<'_>) -> Said {
    let cluster = inputs.cluster;
    for ordinal in 0..cluster.replicas {
        let pod = cluster.name.pod(cluster.group, ordinal);
        let Some(view) = inputs.observed.pods.get(&ordinal) else {
            return (
                true,
                Reason::MemberMissing,
                format!("pod {pod} does not exist"),
            );
        };
        match inputs.observed.nodes.get(&ordinal) {
            None => {
                let claim = inputs.observed.claims.get(&ordinal);
                let why = does_not_run(view, claim, &cluster.name.claim(cluster.group, ordinal));
                return (
                    true,
                    Reason::MemberMissing,
                    format!("pod {pod} does not run: {why}"),
                );
            }
            Some(NodeView::Unreachable { why }) => {
                return (
                    true,
                    Reason::MemberUnreachable,
                    format!("pod {pod} does not answer: {why}"),
                );
            }
            Some(NodeView::Reported(report)) if report.identity.lifecycle == Lifecycle::Broken => {
                let why = report
                    .identity
                    .broken
                    .as_deref()
                    .unwrap_or("it does not say why");
                return (
                    true,
                    Reason::MemberBroken,
                    format!("the data of pod {pod} cannot be read: {why}"),
                );
            }
            Some(NodeView::Reported(_)) => {}
        }
    }
    (
        false,
        Reason::AllMembersHealthy,
        "every member answers".to_owned(),
    )
}

/// Why a pod that is there does not run. A claim that nothing serves is named: its own events
/// say why, and nothing else of the cluster does.
fn does_not_run(pod: &PodView, claim: Option<&ClaimView>, name: &str) -> String {
    if let Some(node) = claim.and_then(|claim| claim.gone_with.as_deref()) {
        return format!("its volume was on node {node}, which no longer exists");
    }
    let why = pod.waiting.as_deref().unwrap_or("it has not started");
    match claim {
        Some(claim) if claim.volume.is_none() && !claim.terminating => format!(
            "{why}; its claim {name} has no volume yet, and `kubectl describe pvc {name}` says why: if nothing can serve spec.storage, delete the FlowerCluster and the claims without a volume, and apply it with another size or class"
        ),
        _ => why.to_owned(),
    }
}

fn quorum(inputs: &Inputs<'_>, status: &FlowerClusterStatus) -> Said {
    let Some(view) = inputs.view else {
        let lost = status.groups.iter().any(|group| group.bootstrapped);
        return if lost {
            (
                true,
                Reason::QuorumLost,
                "no majority of the voters is together".to_owned(),
            )
        } else {
            (
                false,
                Reason::NotBootstrapped,
                "the group does not exist yet".to_owned(),
            )
        };
    };
    let voters = view.voters();
    let good = voters.iter().filter(|id| view.caught_up(**id)).count();
    let majority = voters.len() / 2 + 1;
    match voters.len() {
        1 => (
            false,
            Reason::SingleReplica,
            "one voter: any failure stops the cluster until it is back".to_owned(),
        ),
        count if good <= majority => (
            true,
            Reason::NoFailureTolerated,
            format!("{good} of {count} voters are together: one more failure loses the quorum"),
        ),
        count => (
            false,
            Reason::QuorumSafe,
            format!("{good} of {count} voters are together"),
        ),
    }
}

fn storage(inputs: &Inputs<'_>) -> Said {
    let low: Vec<String> = inputs
        .observed
        .reports()
        .filter(|(_, report)| {
            report.disk.capacity_bytes > 0
                && report.disk.free_bytes < report.disk.reserve_bytes.saturating_mul(2)
        })
        .map(|(ordinal, _)| inputs.cluster.name.pod(inputs.cluster.group, ordinal))
        .collect();
    if low.is_empty() {
        return (
            false,
            Reason::SpaceLeft,
            "every volume has space left".to_owned(),
        );
    }
    (
        true,
        Reason::SpaceLow,
        format!(
            "the volume of {} has less than twice its reserve left; mutations are refused below the reserve: delete rows or move to a cluster with a larger spec.storage.size",
            low.join(", ")
        ),
    )
}

fn stale(hold: Option<&Hold>) -> Said {
    match hold {
        Some(hold) if hold.reason == Reason::NewerSpecSeen => {
            (true, Reason::NewerSpecSeen, hold.message.clone())
        }
        _ => (
            false,
            Reason::Current,
            "no newer FlowerCluster is known".to_owned(),
        ),
    }
}

fn app(inputs: &Inputs<'_>) -> Option<Said> {
    let runs = inputs.view.and_then(|view| view.deployment.as_deref());
    let build = inputs.view.and_then(|view| view.build.as_ref());
    let said = match (&inputs.observed.app, inputs.acted) {
        (AppView::Unmanaged, _) => return None,
        (AppView::Unusable { reason, message }, _) => (false, *reason, message.clone()),
        (_, Acted::Held(hold)) if hold.reason == Reason::BundleRefused => {
            (false, Reason::BundleRefused, refused(&hold.message))
        }
        (AppView::Bundle { hash, .. }, _) if runs == Some(hash) => (
            true,
            Reason::Deployed,
            format!("bundle {} runs", hash.get(..12).unwrap_or(hash)),
        ),
        (
            AppView::Bundle {
                refused: Some(why), ..
            },
            _,
        ) => (false, Reason::BundleRefused, refused(why)),
        (AppView::Bundle { hash, .. }, _) if build.is_some_and(|one| one.hash == *hash) => (
            false,
            Reason::Building,
            build.map(ToString::to_string).unwrap_or_default(),
        ),
        (AppView::Bundle { hash, .. }, _) => (
            false,
            Reason::Deploying,
            format!(
                "bundle {} is deployed once the group has formed",
                hash.get(..12).unwrap_or(hash)
            ),
        ),
    };
    Some(said)
}

fn refused(why: &str) -> String {
    format!("the bundle was refused and what ran goes on running: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::status::GroupStatus;

    #[test]
    fn a_claim_that_nothing_serves_is_named() {
        let pod = PodView {
            waiting: Some("Unschedulable".to_owned()),
            ..PodView::default()
        };
        let claim = |volume: Option<&str>, gone: Option<&str>| ClaimView {
            volume: volume.map(str::to_owned),
            gone_with: gone.map(str::to_owned),
            ..ClaimView::default()
        };
        let said = |claim: Option<ClaimView>| does_not_run(&pod, claim.as_ref(), "data-x-g0-1");
        let pending = said(Some(claim(None, None)));
        assert!(pending.starts_with("Unschedulable; its claim data-x-g0-1 "));
        assert!(pending.contains("kubectl describe pvc data-x-g0-1"));
        assert_eq!(said(Some(claim(Some("pv"), None))), "Unschedulable");
        assert_eq!(said(None), "Unschedulable");
        assert!(said(Some(claim(Some("pv"), Some("node-2")))).contains("node-2"));
    }

    #[test]
    fn a_group_that_cannot_be_asked_keeps_what_was_known_of_it() {
        let formed = |bootstrapped| FlowerClusterStatus {
            groups: vec![GroupStatus {
                bootstrapped,
                ..GroupStatus::default()
            }],
            ..FlowerClusterStatus::default()
        };
        for (reason, bootstrapped, expected) in [
            (Reason::AuthSecretInvalid, true, true),
            (Reason::AuthSecretMissing, true, true),
            (Reason::AuthSecretInvalid, false, false),
            (Reason::NoLeader, true, false),
        ] {
            let hold = Hold::new(reason, "why");
            assert_eq!(is_blind(&hold, &formed(bootstrapped)), expected);
        }
        let said = blind(&Hold::new(Reason::AuthSecretInvalid, "no token"));
        let types: Vec<Type> = said.iter().map(|one| one.type_).collect();
        assert_eq!(types, [Type::Ready, Type::Progressing]);
        assert!(said.iter().all(|one| one.message == "no token"));
    }
}
