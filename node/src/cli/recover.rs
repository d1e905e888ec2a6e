//! `flower recover`: shows what making one survivor the whole group would keep and lose, and
//! does it once that loss is acknowledged by its number. The node decides; nothing is forced.

use clap::Args;
use flower_api::{
    admin::{Recover, Survey, SurveyedMember},
    report::ConfigVersion,
};

use super::{AdminTarget, Failure, Output, print, progress::showing};

#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// Does it: what the others acknowledged behind this entry, the last in this node's log, is
    /// given up.
    #[arg(long, value_name = "INDEX")]
    accept_loss_after: Option<u64>,
    #[command(flatten)]
    at: AdminTarget,
}

pub(super) async fn recover(args: RecoverArgs, output: Output) -> Result<(), Failure> {
    let (client, at) = args.at.client()?;
    let survey = showing("asking every member", client.survey(&at)).await?;
    let accepted = args.accept_loss_after;
    if let Some(accept_loss_after) = accepted {
        let member = survey.identity.member.ok_or_else(|| {
            Failure::here("the node has no member: its data cannot be read, or it has none")
        })?;
        let call = Recover {
            member,
            accept_loss_after,
        };
        client.recover(&at, &call).await?;
    }
    match output {
        Output::Json => print::json(&serde_json::json!({
            "accepted": accepted.is_some(),
            "survey": survey,
        })),
        Output::Text => {
            print::line(text(&survey, accepted.is_some()));
            Ok(())
        }
    }
}

fn text(survey: &Survey, accepted: bool) -> String {
    let identity = &survey.identity;
    let member = identity
        .member
        .map_or_else(|| "no member".to_owned(), |id| format!("member {id}"));
    let end = |at: Option<ConfigVersion>| {
        at.map_or_else(
            || "-".to_owned(),
            |at| format!("{} of term {}", at.index, at.term),
        )
    };
    let mut lines = vec![
        format!(
            "{} is {member}, revision {}",
            identity.name, survey.revision
        ),
        format!(
            "kept: everything in its log, up to entry {}; it knows entries up to {} to be committed",
            end(survey.last_log),
            survey.committed
        ),
        "lost: what the others acknowledged behind that entry; nobody can tell whether there is \
         any while they are away"
            .to_owned(),
    ];
    let rows = survey.others.iter().map(|other| {
        vec![
            other.member.to_string(),
            other.address.clone(),
            if other.voter { "voter" } else { "learner" }.to_owned(),
            end(other.last_log),
            said(other),
        ]
    });
    let head = ["GIVEN UP", "ADDRESS", "ROLE", "LOG ENDS AT", "STATE"];
    lines.push(print::table(&head, rows.collect(), 5).trim_fmt());
    lines.push(match (&survey.refused, survey.last_log, accepted) {
        (_, _, true) => "accepted: the node starts anew and makes it. Follow it with `flower \
                         status`; members are added as to any group of one"
            .to_owned(),
        (Some(why), _, false) => format!("refused now: {why}"),
        (None, Some(last), false) => format!(
            "Nothing was done. Look at every other member that is left, and recover from the one \
             whose log ends latest. If the members above cannot come back, run here:\n  \
             flower recover --accept-loss-after {}",
            last.index
        ),
        (None, None, false) => "Nothing was done: the log is empty".to_owned(),
    });
    lines.join("\n")
}

fn said(other: &SurveyedMember) -> String {
    match (&other.why, other.answers) {
        (None, _) => "answers".to_owned(),
        (Some(why), true) => format!("answers: {why}"),
        (Some(why), false) => why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use flower_api::{
        GroupId, MemberId, Revision,
        report::{Identity, Lifecycle},
    };

    use super::*;

    fn survey(refused: Option<&str>) -> Survey {
        Survey {
            identity: Identity {
                cluster: None,
                group: GroupId(0),
                member: Some(MemberId(7)),
                lifecycle: Lifecycle::Member,
                broken: None,
                version: "0".into(),
                name: "db-g0-1".into(),
            },
            last_log: Some(ConfigVersion { term: 3, index: 41 }),
            committed: 40,
            revision: Revision(12),
            others: vec![SurveyedMember {
                member: MemberId(8),
                address: "db-g0-0:7701".into(),
                voter: true,
                answers: false,
                last_log: None,
                why: Some("no connection".into()),
            }],
            refused: refused.map(str::to_owned),
        }
    }

    #[test]
    fn it_names_the_acknowledgement_only_when_the_node_would_accept_it() {
        let shown = text(&survey(None), false);
        assert!(shown.contains("--accept-loss-after 41"), "{shown}");
        assert!(shown.contains("no connection"), "{shown}");
        let shown = text(&survey(Some("a majority answers")), false);
        assert!(shown.contains("refused now: a majority answers"), "{shown}");
        assert!(!shown.contains("--accept-loss-after"), "{shown}");
    }
}
