//! Reports in, lines out.

use flower_api::{
    GroupId,
    report::{ConfigVersion, Configuration, Disk, FollowerLag, Footprint, Identity, Positions},
};

use super::*;

fn report(member: u64, role: Role) -> Report {
    Report {
        identity: Identity {
            cluster: Some(flower_api::ClusterId("c".into())),
            group: GroupId(0),
            member: Some(MemberId(member)),
            lifecycle: Lifecycle::Member,
            broken: None,
            version: "0.1.0".into(),
            name: format!("db-{member}"),
        },
        role,
        term: 3,
        leader: Some(MemberId(1)),
        quorum_lease: false,
        configuration: Some(Configuration {
            version: ConfigVersion::default(),
            committed: true,
            voters: vec![vec![MemberId(1), MemberId(2)]],
            members: (1..=4)
                .map(|n| (MemberId(n), format!("h{n}:7701")))
                .collect(),
        }),
        positions: Positions {
            applied: 10 + member,
            ..Positions::default()
        },
        followers: Vec::new(),
        formed: true,
        recovery: None,
        owner: None,
        deployment: None,
        ready: true,
        not_ready: None,
        images_received: 0,
        replayed_entries: 0,
        full_repairs: 0,
        state_checksum: String::new(),
        footprint: Footprint::default(),
        disk: Disk::default(),
    }
}

#[test]
fn rows_tell_roles_states_and_lag() {
    let mut leader = report(1, Role::Leader);
    leader.followers = vec![FollowerLag {
        member: MemberId(2),
        matched: Some(4),
        lag_entries: 7,
        contact_ms: None,
        image: None,
    }];
    let asked = report(2, Role::Follower);
    let mut learner = report(3, Role::Learner);
    learner.ready = false;
    learner.not_ready = Some("12 s behind".into());
    let answers: Answers = [
        (MemberId(1), Ok(leader)),
        (MemberId(2), Ok(asked.clone())),
        (MemberId(3), Ok(learner)),
        (MemberId(4), Ok(report(9, Role::None))),
    ]
    .into();
    let rows = rows(&asked, &answers);
    let told: Vec<_> = rows
        .iter()
        .map(|r| (r.role, r.state.as_str(), r.lag_entries))
        .collect();
    assert_eq!(
        told,
        [
            ("leader", "ready", None),
            ("voter", "ready", Some(7)),
            ("learner", "12 s behind", None),
            ("learner", "replaced by 0000000000000009", None),
        ]
    );
    assert_eq!(rows[1].applied, Some(12));
}

#[test]
fn who_does_not_answer_is_shown() {
    let asked = report(2, Role::Follower);
    let gone = AdminError::Unreachable {
        endpoint: "e".into(),
        why: "w".into(),
    };
    let answers: Answers = [(MemberId(1), Err(gone)), (MemberId(2), Ok(asked.clone()))].into();
    let rows = rows(&asked, &answers);
    assert_eq!(
        (rows[1].role, rows[1].state.as_str()),
        ("leader", "unreachable")
    );
    assert_eq!((rows[0].role, rows[0].state.as_str()), ("voter", "ready"));
    assert_eq!(rows[3].state, "unreachable", "never asked");
}

#[test]
fn who_is_not_reached_from_here_may_answer_its_leader() {
    let mut asked = report(1, Role::Leader);
    let follower = |member, contact_ms| FollowerLag {
        member: MemberId(member),
        matched: None,
        lag_entries: 0,
        contact_ms,
        image: None,
    };
    asked.followers = vec![
        follower(2, Some(100)),
        follower(3, Some(60_000)),
        follower(4, None),
    ];
    let answers: Answers = [(MemberId(1), Ok(asked.clone()))].into();
    let states: Vec<String> = rows(&asked, &answers)
        .into_iter()
        .map(|r| r.state)
        .collect();
    assert_eq!(
        states,
        ["ready", "answers its leader", "unreachable", "unreachable"]
    );
}

#[test]
fn names_that_only_the_cluster_knows_are_told_and_the_leader_fills_in() {
    let unknown = || {
        Err(AdminError::Unreachable {
            endpoint: "e".into(),
            why: format!("{UNRESOLVED}: w"),
        })
    };
    let here = "not reachable from here (name cannot be resolved)";
    let mut leader = report(1, Role::Leader);
    let follower = |member, lag_entries, contact_ms| FollowerLag {
        member: MemberId(member),
        matched: None,
        lag_entries,
        contact_ms,
        image: None,
    };
    leader.followers = vec![follower(2, 3, Some(100)), follower(3, 90, Some(60_000))];
    let others = || (2..=4).map(|n| (MemberId(n), unknown()));
    let mut answers: Answers = others().collect();
    answers.insert(MemberId(1), Ok(leader.clone()));
    let told = |rows: Vec<Row>| -> Vec<_> {
        let rows = rows.into_iter();
        rows.map(|r| (r.member.0, r.role, r.state, r.lag_entries))
            .collect()
    };
    assert_eq!(
        told(rows(&leader, &answers)),
        [
            (1, "leader", "ready".to_owned(), None),
            (2, "voter", format!("answers its leader, {here}"), Some(3)),
            (
                3,
                "learner",
                format!("does not answer its leader, {here}"),
                Some(90)
            ),
            (4, "learner", here.to_owned(), None),
        ]
    );
    // A follower was asked: it knows who leads, and its own lag.
    let mut asked = report(2, Role::Follower);
    asked.positions.committed = 20;
    let mut answers: Answers = others().collect();
    answers.insert(MemberId(1), unknown());
    answers.insert(MemberId(2), Ok(asked.clone()));
    let told = told(rows(&asked, &answers));
    assert_eq!(told[0], (2, "voter", "ready".to_owned(), Some(8)));
    assert_eq!(told[1], (1, "leader", here.to_owned(), None));
}

#[test]
fn the_admin_port_is_the_one_above_the_peers() {
    assert_eq!(
        admin_url("db-g0-0.peers:7701"),
        Some(Endpoint("http://db-g0-0.peers:7702".into()))
    );
    assert_eq!(
        admin_url("[::1]:9001"),
        Some(Endpoint("http://[::1]:9002".into()))
    );
    assert_eq!(admin_url("db"), None);
    assert_eq!(admin_url("db:65535"), None);
}
