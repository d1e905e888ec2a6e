//! `flower status`: the members of a group. Asks one node for its configuration, then every
//! member for its own report; who does not answer is shown as such.

use std::collections::BTreeMap;

use flower_api::{
    MemberId,
    admin::{AdminApi, AdminError, Endpoint},
    report::{FollowerLag, Lifecycle, Report, Role},
};
use serde::Serialize;

use super::{AdminTarget, Failure, Output, print, progress::showing};
use crate::{admin_client::AdminClient, client::UNRESOLVED};

/// A member that its leader heard of this lately runs.
const HEARD_MS: u64 = 3_000;

/// The admin API of the member with this peer address: same host, the port above, as the
/// defaults are.
pub(super) fn admin_url(peer_address: &str) -> Option<Endpoint> {
    let (host, port) = peer_address.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_add(1)?;
    Some(Endpoint(format!("http://{host}:{port}")))
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    member: MemberId,
    name: Option<String>,
    address: String,
    /// `leader`, `voter` or `learner` by the configuration; what the member says of itself is
    /// in its report.
    role: &'static str,
    state: String,
    applied: Option<u64>,
    lag_entries: Option<u64>,
    version: Option<String>,
}

/// The whole answer, for scripts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    cluster: Option<String>,
    group: u32,
    term: u64,
    leader: Option<MemberId>,
    revision: u64,
    formed: bool,
    deployment: Option<String>,
    members: Vec<Row>,
    /// The report of the node that was asked.
    report: Report,
}

type Answers = BTreeMap<MemberId, Result<Report, AdminError>>;

/// The rows by the configuration of `asked` and what the members answered.
fn rows(asked: &Report, answers: &Answers) -> Vec<Row> {
    let Some(configuration) = &asked.configuration else {
        return Vec::new();
    };
    let leading = answers
        .values()
        .flatten()
        .filter(|report| report.role == Role::Leader);
    let leading = leading.max_by_key(|report| report.term);
    let leader = leading
        .and_then(|report| report.identity.member)
        .or(asked.leader);
    let follower = |id: MemberId| leading?.followers.iter().find(|f| f.member == id);
    let heard = |f: &FollowerLag| f.contact_ms.is_some_and(|age| age < HEARD_MS);
    // The asked node knows its own lag when nobody reaches the leader.
    let own = |report: &Report| {
        let own = leading.is_none() && report.identity.member == asked.identity.member;
        own.then(|| {
            report
                .positions
                .committed
                .saturating_sub(report.positions.applied)
        })
    };
    let row = |(id, address): (&MemberId, &String)| {
        let answer = answers.get(id);
        let report = answer.and_then(|answer| answer.as_ref().ok());
        Row {
            member: *id,
            name: report.map(|r| r.identity.name.clone()),
            address: address.clone(),
            role: match (leader == Some(*id), configuration.is_voter(*id)) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) => "learner",
            },
            state: state(*id, answer, follower(*id).map(heard)),
            applied: report.map(|r| r.positions.applied),
            lag_entries: follower(*id)
                .map(|f| f.lag_entries)
                .or_else(|| own(report?)),
            version: report.map(|r| r.identity.version.clone()),
        }
    };
    let mut rows: Vec<Row> = configuration.members.iter().map(row).collect();
    // By name, as StatefulSets number their pods; who did not answer comes last.
    rows.sort_by_key(|row| (row.name.is_none(), row.name.clone(), row.member));
    rows
}

/// `heard` is whether its leader heard of it lately, where the leader says.
fn state(id: MemberId, answer: Option<&Result<Report, AdminError>>, heard: Option<bool>) -> String {
    match answer {
        // Its name is one that only the cluster's own network knows.
        Some(Err(AdminError::Unreachable { why, .. })) if why.starts_with(UNRESOLVED) => {
            let here = "not reachable from here (name cannot be resolved)";
            match heard {
                Some(true) => format!("answers its leader, {here}"),
                Some(false) => format!("does not answer its leader, {here}"),
                None => here.to_owned(),
            }
        }
        None | Some(Err(AdminError::Unreachable { .. })) if heard == Some(true) => {
            // Its name may be one that only the cluster's own network knows.
            "answers its leader".to_owned()
        }
        None | Some(Err(AdminError::Unreachable { .. })) => "unreachable".to_owned(),
        Some(Err(error)) => error.to_string(),
        // A volume that was lost comes back under another member id.
        Some(Ok(report)) if report.identity.member != Some(id) => {
            let now = report
                .identity
                .member
                .map_or_else(|| "no member".to_owned(), |m| m.to_string());
            format!("replaced by {now}")
        }
        Some(Ok(report)) if report.ready => "ready".to_owned(),
        Some(Ok(report)) => report
            .not_ready
            .clone()
            .unwrap_or_else(|| "not ready".to_owned()),
    }
}

async fn ask_all(client: &AdminClient, asked: &Report, at: &Endpoint) -> Answers {
    let members = asked.configuration.iter().flat_map(|c| c.members.iter());
    let asking = members.map(|(id, address)| async move {
        let own = asked.identity.member == Some(*id);
        let endpoint = if own {
            Some(at.clone())
        } else {
            admin_url(address)
        };
        let answer = match endpoint {
            Some(endpoint) => client.report(&endpoint).await,
            None => Err(AdminError::Unreachable {
                endpoint: address.clone(),
                why: "its address has no port".to_owned(),
            }),
        };
        (*id, answer)
    });
    futures::future::join_all(asking)
        .await
        .into_iter()
        .collect()
}

pub(super) async fn status(at: AdminTarget, output: Output) -> Result<(), Failure> {
    let (client, at) = at.client()?;
    let asking = async {
        let asked = client.report(&at).await?;
        let answers = ask_all(&client, &asked, &at).await;
        Ok::<_, AdminError>((asked, answers))
    };
    let (asked, answers) = showing("asking every member", asking).await?;
    let members = rows(&asked, &answers);
    let status = Status {
        cluster: asked.identity.cluster.as_ref().map(ToString::to_string),
        group: asked.identity.group.0,
        term: asked.term,
        leader: asked.leader,
        revision: asked.positions.revision.0,
        formed: asked.formed,
        deployment: asked.deployment.as_ref().map(|d| d.hash.clone()),
        members,
        report: asked,
    };
    match output {
        Output::Json => print::json(&status),
        Output::Text => {
            print::line(text(&status));
            Ok(())
        }
    }
}

fn text(status: &Status) -> String {
    let identity = &status.report.identity;
    let mut lines = Vec::new();
    match (&status.cluster, identity.lifecycle) {
        (_, Lifecycle::Broken) => {
            let why = identity
                .broken
                .as_deref()
                .unwrap_or("its data cannot be read");
            return format!("{} is broken: {why}", identity.name);
        }
        (None, _) => {
            return format!("{} belongs to no cluster yet", identity.name);
        }
        (Some(cluster), _) => {
            let formed = if status.formed {
                ""
            } else {
                ", not formed yet: mutations are refused"
            };
            lines.push(format!(
                "cluster {cluster}, group {}, term {}{formed}",
                status.group, status.term
            ));
        }
    }
    let application = match &status.deployment {
        Some(hash) => format!("application {}", hash.chars().take(12).collect::<String>()),
        None => "no application".to_owned(),
    };
    lines.push(format!("revision {}, {application}", status.revision));
    if let Some(recovery) = &status.report.recovery {
        lines.push(format!("its quorum was lost for good once: {recovery}"));
    }
    if let Some(deployment) = &status.report.deployment {
        lines.extend(deployment.build.as_ref().map(ToString::to_string));
        lines.extend(deployment.failed_build.as_ref().map(|failed| {
            let hash: String = failed.hash.chars().take(12).collect();
            format!("the build of {hash} failed: {}", failed.why)
        }));
    }
    let shown = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    let body = status.members.iter().map(|row| {
        vec![
            row.name.clone().unwrap_or_else(|| "-".to_owned()),
            row.member.to_string(),
            row.address.clone(),
            row.role.to_owned(),
            row.state.clone(),
            row.version.clone().unwrap_or_else(|| "-".to_owned()),
            shown(row.applied),
            shown(row.lag_entries),
        ]
    });
    let head = [
        "NAME", "MEMBER", "ADDRESS", "ROLE", "STATE", "VERSION", "APPLIED", "LAG",
    ];
    lines.push(print::table(&head, body.collect(), 6).trim_fmt());
    lines.join("\n")
}

#[cfg(test)]
mod tests;
