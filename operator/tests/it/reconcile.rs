//! Whole passes over an API server in memory and a fake group: what is written, when, and that
//! a pass with nothing to do writes nothing.

use flower_operator::controller::pass::{self, End};
use serde_json::{Value, json};

use super::support::{
    apiserver::Seen,
    world::{NAME, SET, World, address},
};

fn writes(log: Vec<Seen>) -> Vec<Seen> {
    log.into_iter()
        .filter(|seen| seen.method != "GET" && !seen.path.contains("/events"))
        .collect()
}

fn log(world: &World) -> Vec<String> {
    world
        .nodes
        .0
        .lock()
        .log
        .iter()
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

async fn formed(spec: Value) -> World {
    let mut world = World::new(spec);
    world.settle().await;
    world
}

#[tokio::test]
async fn a_new_cluster_forms_and_then_nothing_is_written() {
    let mut world = formed(json!({})).await;
    assert_eq!(world.voters(), [0, 1, 2]);
    assert_eq!(
        log(&world),
        ["bootstrap", "add", "add", "promote", "promote", "formed"]
    );
    world.turn();
    world.settle().await;
    let status = world.status();
    assert!(
        world.is("Ready") && world.is("Available") && world.is("Accepted"),
        "{status:#?}"
    );
    assert!(!world.is("Progressing") && !world.is("Degraded") && !world.is("QuorumAtRisk"));
    assert_eq!(status.ready_replicas, 3);
    assert_eq!(status.leaders.as_deref(), Some("orders-g0-0"));
    world.api.take_log();
    for _ in 0..3 {
        assert_eq!(world.pass().await, End::Settled);
        world.turn();
        world.nodes.0.lock().write(100);
    }
    let written = writes(world.api.take_log());
    assert!(written.is_empty(), "{written:#?}");
}

#[tokio::test]
async fn one_replica_is_enough() {
    let world = formed(json!({ "replicas": 1 })).await;
    assert_eq!(world.voters(), [0]);
    assert!(world.is("Ready"));
    assert_eq!(log(&world), ["bootstrap"]);
}

#[tokio::test]
async fn a_pod_that_cannot_start_blocks_nothing_but_the_forming() {
    let mut world = World::new(json!({}));
    world.unschedulable.push(1);
    for _ in 0..40 {
        world.pass().await;
        world.turn();
    }
    assert_eq!(world.voters(), [0, 2]);
    assert!(!world.is("Ready"));
    let plan = world.status().plan.expect("a plan");
    assert_eq!(plan.hold.as_deref(), Some("WaitingForPods"), "{plan:?}");
    world.unschedulable.clear();
    world.delete("v1/namespaces/shop/pods/orders-g0-1");
    world.settle().await;
    assert_eq!(world.voters(), [0, 1, 2]);
}

#[tokio::test]
async fn it_grows_and_shrinks_and_deletes_the_claims_of_those_that_left() {
    let mut world = formed(json!({ "replicas": 1 })).await;
    for replicas in [3, 5, 3] {
        world.edit(|spec| spec["replicas"] = json!(replicas));
        world.nodes.0.lock().write(5_000);
        world.settle().await;
        world.turn();
        world.settle().await;
        assert_eq!(world.voters(), (0..replicas).collect::<Vec<u32>>());
        let claims: Vec<bool> = (0..6)
            .map(|ordinal| {
                world
                    .api
                    .get(&format!(
                        "v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-{ordinal}"
                    ))
                    .is_some()
            })
            .collect();
        let expected: Vec<bool> = (0..6).map(|ordinal| ordinal < replicas).collect();
        assert_eq!(claims, expected, "at {replicas}");
    }
}

#[tokio::test]
async fn a_lost_volume_is_replaced_under_a_new_member_id() {
    let mut world = formed(json!({})).await;
    let old = world.nodes.0.lock().nodes[&address(2)].member;
    let term = world.nodes.0.lock().term;
    world.nodes.0.lock().purged = 5;
    world.nodes.0.lock().log.clear();
    world.lose_volume(2);
    world.turn();
    world.settle().await;
    let group = world.nodes.0.lock();
    let new = &group.nodes[&address(2)];
    assert_ne!(new.member, old);
    assert_eq!(new.images, 1);
    assert_eq!(group.term, term, "the leader did not change");
    assert!(
        !group
            .configuration()
            .expect("one")
            .members
            .contains_key(&old)
    );
    drop(group);
    assert_eq!(log(&world), ["remove", "add", "promote"]);
}

#[tokio::test]
async fn the_leaders_lost_volume_is_replaced_after_an_election() {
    let mut world = formed(json!({})).await;
    let term = world.nodes.0.lock().term;
    let leader = world.leader().expect("a leader");
    world.lose_volume(leader);
    world.turn();
    world.settle().await;
    assert_eq!(world.nodes.0.lock().term, term + 1);
    assert_eq!(world.voters(), [0, 1, 2]);
}

#[tokio::test]
async fn unreadable_data_is_exchanged_while_the_others_carry_the_group() {
    let mut world = formed(json!({})).await;
    world
        .nodes
        .0
        .lock()
        .nodes
        .get_mut(&address(1))
        .expect("it")
        .broken = true;
    world.turn();
    world.settle().await;
    assert_eq!(world.voters(), [0, 1, 2]);
    assert!(!world.nodes.0.lock().nodes[&address(1)].broken);
}

#[tokio::test]
async fn the_only_member_is_never_thrown_away() {
    let mut world = formed(json!({ "replicas": 1 })).await;
    world
        .nodes
        .0
        .lock()
        .nodes
        .get_mut(&address(0))
        .expect("it")
        .broken = true;
    world.api.take_log();
    for _ in 0..5 {
        world.turn();
        world.pass().await;
    }
    let plan = world.status().plan.expect("a plan");
    assert_eq!(plan.hold.as_deref(), Some("OnlyMemberBroken"), "{plan:?}");
    assert!(
        !writes(world.api.take_log())
            .iter()
            .any(|seen| seen.method == "DELETE")
    );
}

#[tokio::test]
async fn unreachable_members_are_not_removed() {
    let mut world = formed(json!({})).await;
    world.nodes.0.lock().log.clear();
    for ordinal in [1, 2] {
        world
            .nodes
            .0
            .lock()
            .nodes
            .get_mut(&address(ordinal))
            .expect("it")
            .up = false;
    }
    for _ in 0..10 {
        world.turn();
        world.pass().await;
    }
    assert!(log(&world).is_empty());
    assert!(world.is("QuorumAtRisk") && world.is("Degraded") && !world.is("Available"));
    for ordinal in [1, 2] {
        world
            .nodes
            .0
            .lock()
            .nodes
            .get_mut(&address(ordinal))
            .expect("it")
            .up = true;
    }
    world.turn();
    world.settle().await;
    assert!(world.is("Ready"));
}

fn restarted(log: &[Seen]) -> Vec<String> {
    log.iter()
        .filter(|seen| {
            seen.path.ends_with("/eviction")
                || (seen.method == "DELETE" && seen.path.contains("/pods/"))
        })
        .filter_map(|seen| {
            seen.path
                .trim_end_matches("/eviction")
                .rsplit('/')
                .next()
                .map(str::to_owned)
        })
        .collect()
}

#[tokio::test]
async fn a_changed_template_restarts_followers_first_and_the_leader_last() {
    let mut world = formed(json!({})).await;
    world.nodes.0.lock().log.clear();
    world.api.take_log();
    world.edit(|spec| spec["image"] = json!("registry.example/flower:2"));
    world.settle().await;
    let order = restarted(&world.api.take_log());
    assert_eq!(order, ["orders-g0-1", "orders-g0-2", "orders-g0-0"]);
    assert_eq!(log(&world), ["transfer"]);
    for ordinal in 0..3 {
        let pod = world
            .api
            .get(&format!("v1/namespaces/shop/pods/orders-g0-{ordinal}"))
            .expect("it");
        let set = world.api.get(SET).expect("it");
        let hash = |object: &Value, at: &str| object.pointer(at).cloned();
        assert_eq!(
            hash(&pod, "/metadata/annotations/flowerdb.dev~1template-hash"),
            hash(
                &set,
                "/spec/template/metadata/annotations/flowerdb.dev~1template-hash"
            )
        );
    }
}

#[tokio::test]
async fn kubectl_rollout_restart_is_honoured_in_our_order() {
    let mut world = formed(json!({})).await;
    world.api.take_log();
    let mut set = world.api.get(SET).expect("it");
    set["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] =
        json!("2026-02-03T04:05:06Z");
    world.api.put(SET, set);
    world.settle().await;
    let order = restarted(&world.api.take_log());
    assert_eq!(order, ["orders-g0-1", "orders-g0-2", "orders-g0-0"]);
}

#[tokio::test]
async fn a_rollout_waits_for_a_member_that_is_away() {
    let mut world = formed(json!({})).await;
    world
        .nodes
        .0
        .lock()
        .nodes
        .get_mut(&address(2))
        .expect("it")
        .up = false;
    world.turn();
    world.edit(|spec| spec["image"] = json!("registry.example/flower:2"));
    world.api.take_log();
    // The one that is away is restarted first, and comes back.
    for _ in 0..3 {
        world.pass().await;
    }
    assert_eq!(
        restarted(&world.api.take_log()).first().map(String::as_str),
        Some("orders-g0-2")
    );
    world.settle().await;
    assert!(world.is("Ready"));
}

#[tokio::test]
async fn a_hand_that_scales_or_deletes_the_statefulset_loses_nothing() {
    let mut world = formed(json!({})).await;
    let mut set = world.api.get(SET).expect("it");
    set["spec"]["replicas"] = json!(1);
    world.api.put(SET, set);
    world.turn();
    world.settle().await;
    assert_eq!(world.voters(), [0, 1, 2]);
    world.delete(SET);
    world.turn();
    world.settle().await;
    assert_eq!(world.voters(), [0, 1, 2]);
    assert!(world.is("Ready"));
    assert!(!log(&world).contains(&"remove".to_owned()));
}

#[tokio::test]
async fn a_lost_status_is_adopted_from_the_volumes_and_never_bootstrapped_again() {
    let mut world = formed(json!({})).await;
    let id = world.status().cluster_id;
    world.edit_all(|object| {
        object.as_object_mut().expect("it").remove("status");
    });
    world.nodes.0.lock().log.clear();
    world.settle().await;
    assert_eq!(world.status().cluster_id, id);
    assert!(log(&world).is_empty());
}

#[tokio::test]
async fn a_foreign_object_is_left_alone() {
    let world = World::new(json!({}));
    let service = "v1/namespaces/shop/services/orders";
    world.api.put(
        service,
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME, "namespace": "shop" }, "spec": {} }),
    );
    let before = world.api.get(service);
    assert_eq!(world.pass().await, End::Waiting);
    assert_eq!(world.api.get(service), before);
    assert!(world.api.get(SET).is_none());
    let plan = world.status().plan.expect("a plan");
    assert_eq!(plan.hold.as_deref(), Some("ForeignObject"));
}

#[tokio::test]
async fn drift_is_repaired_and_a_deleted_child_comes_back() {
    let mut world = formed(json!({})).await;
    let budget = "policy/v1/namespaces/shop/poddisruptionbudgets/orders-g0";
    let service = "v1/namespaces/shop/services/orders";
    let mut changed = world.api.get(budget).expect("it");
    changed["spec"]["maxUnavailable"] = json!(2);
    world.api.put(budget, changed);
    world.delete(service);
    world.settle().await;
    assert_eq!(
        world.api.get(budget).expect("it")["spec"]["maxUnavailable"],
        json!(1)
    );
    assert!(world.api.get(service).is_some());
}

#[tokio::test]
async fn a_bad_spec_touches_nothing_and_is_mended_by_mending_it() {
    let mut world = formed(json!({})).await;
    world.api.take_log();
    world.edit(|spec| spec["resources"] = json!({ "limits": { "memory": "64Mi" } }));
    assert_eq!(world.pass().await, End::Refused);
    let written = writes(world.api.take_log());
    assert!(
        written.iter().all(|seen| seen.path.ends_with("/status")),
        "{written:?}"
    );
    assert!(!world.is("Accepted") && !world.is("Ready") && world.is("Available"));
    assert_eq!(world.pass().await, End::Refused);
    assert!(writes(world.api.take_log()).is_empty());
    world.edit(|spec| spec["resources"] = json!({}));
    world.settle().await;
    assert!(world.is("Accepted") && world.is("Ready"));
}

#[tokio::test]
async fn an_object_that_the_api_server_refuses_is_told_and_the_rest_is_kept() {
    let mut world = formed(json!({})).await;
    world.edit(|spec| spec["pod"] = json!({ "labels": { "bad key!": "x" } }));
    // The label that the leader's Service selects by is lost meanwhile, and must come back.
    let leader = world.leader().expect("a leader");
    let pod = format!("v1/namespaces/shop/pods/orders-g0-{leader}");
    let role = |world: &World| {
        let pod = world.api.get(&pod).expect("the pod");
        pod["metadata"]["labels"]["flowerdb.dev/role"].clone()
    };
    assert_eq!(role(&world), "leader");
    let mut other = world.api.get(&pod).expect("the pod");
    other["metadata"]["labels"]["flowerdb.dev/role"] = json!("follower");
    world.api.put(&pod, other);
    let refuse = ("statefulsets".to_owned(), "PATCH".to_owned(), 422);
    for _ in 0..3 {
        world.api.0.lock().failures.push_back(refuse.clone());
        let object = world.object();
        let error = pass::run(&world.ctx, &object).await.expect_err("refused");
        assert_eq!(error.category(), "RefusedByApiServer");
    }
    assert_eq!(role(&world), "leader");
    let status = world.status();
    let condition = |type_: &str| {
        let found = status.conditions.iter().find(|one| one.type_ == type_);
        let found = found.expect("the condition");
        (
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        )
    };
    let (accepted, reason, message) = condition("Accepted");
    assert_eq!((&accepted[..], &reason[..]), ("False", "ApplyRefused"));
    assert!(
        message.contains("StatefulSet") && message.contains("injected"),
        "{message}"
    );
    assert_eq!(condition("Ready").0, "False");
    assert_eq!(
        status.observed_generation,
        world.object().metadata.generation
    );
    assert_eq!(
        status.plan.expect("a plan").hold.as_deref(),
        Some("ApplyRefused")
    );
    world.edit(|spec| spec["pod"] = json!({}));
    world.settle().await;
    assert!(world.is("Accepted") && world.is("Ready"));
}

#[tokio::test]
async fn another_secret_for_the_tokens_is_refused() {
    let mut world = formed(json!({})).await;
    world.edit(|spec| spec["auth"] = json!({ "secretName": "other" }));
    assert_eq!(world.pass().await, End::Refused);
    let status = world.status();
    let accepted = status.conditions.iter().find(|one| one.type_ == "Accepted");
    let accepted = accepted.expect("it");
    assert_eq!(accepted.reason, "AuthSecretImmutable");
    assert!(
        accepted.message.contains("orders-auth"),
        "{}",
        accepted.message
    );
    world.edit(|spec| spec["auth"] = json!({}));
    world.settle().await;
    assert!(world.is("Ready"));
}

#[tokio::test]
async fn a_pause_in_the_middle_of_a_change_is_not_ready() {
    let mut world = formed(json!({ "replicas": 1 })).await;
    world.edit(|spec| {
        spec["replicas"] = json!(3);
        spec["paused"] = json!(true);
    });
    for _ in 0..3 {
        world.pass().await;
        world.turn();
    }
    assert!(!world.is("Ready") && world.is("Available"));
    world.edit(|spec| spec["paused"] = json!(false));
    world.settle().await;
    assert!(world.is("Ready"));
}

#[tokio::test]
async fn a_changed_volume_size_is_refused_even_if_no_rule_saw_it() {
    let world = formed(json!({})).await;
    world.edit(|spec| spec["storage"] = json!({ "size": "20Gi" }));
    assert_eq!(world.pass().await, End::Refused);
    let status = world.status();
    let accepted = status
        .conditions
        .iter()
        .find(|one| one.type_ == "Accepted")
        .expect("it");
    assert_eq!(accepted.reason, "StorageImmutable");
}

fn bundle(world: &World, source: &str) {
    world.api.put(
        "v1/namespaces/shop/configmaps/app",
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "app", "namespace": "shop" },
            "data": { "app.js": source },
        }),
    );
}

#[tokio::test]
async fn a_bundle_is_deployed_and_a_bad_one_leaves_what_runs() {
    let mut world = formed(json!({
        "app": { "bundle": { "configMapKeyRef": { "name": "app", "key": "app.js" } } },
    }))
    .await;
    assert!(!world.is("AppDeployed") && world.is("Ready"));
    bundle(&world, "export const a = 1;");
    world.settle().await;
    assert!(world.is("AppDeployed"));
    let runs = world.status().app.expect("an app").hash;
    bundle(&world, "syntax error");
    world.settle().await;
    assert!(!world.is("AppDeployed") && world.is("Available"));
    assert_eq!(world.status().app.expect("an app").hash, runs);
    // It is not sent again and again.
    let calls = log(&world).len();
    world.pass().await;
    world.pass().await;
    assert_eq!(log(&world).len(), calls);
    bundle(&world, "export const a = 2;");
    world.settle().await;
    assert!(world.is("AppDeployed"));
}

#[tokio::test]
async fn a_pause_stops_everything_but_the_status() {
    let mut world = formed(json!({})).await;
    world.edit(|spec| {
        spec["paused"] = json!(true);
        spec["replicas"] = json!(5);
    });
    world.pass().await;
    world.api.take_log();
    for _ in 0..3 {
        world.pass().await;
        world.turn();
    }
    assert!(writes(world.api.take_log()).is_empty());
    world.edit(|spec| spec["paused"] = json!(false));
    world.settle().await;
    assert_eq!(world.voters(), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn conflicts_and_refusals_of_the_api_server_end_a_pass_and_not_the_operator() {
    let world = World::new(json!({}));
    for (path, method, code, category) in [
        ("/statefulsets/", "PATCH", 403, "Forbidden"),
        ("/status", "PUT", 409, "Conflict"),
        ("/pods", "GET", 500, "ApiServerError"),
    ] {
        world
            .api
            .0
            .lock()
            .failures
            .push_back((path.to_owned(), method.to_owned(), code));
        let error = flower_operator::controller::pass::run(&world.ctx, &world.object())
            .await
            .expect_err("it failed");
        assert_eq!(error.category(), category, "{error}");
    }
    assert!(matches!(world.pass().await, End::Waiting | End::Stepped));
}

#[tokio::test]
async fn claims_are_owned_as_the_spec_says() {
    let mut world = formed(json!({ "volumeClaims": { "whenDeleted": "Delete" } })).await;
    let owners = |world: &World| {
        let claim = world
            .api
            .get("v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-1")
            .expect("it");
        claim["metadata"]["ownerReferences"]
            .as_array()
            .map_or(0, Vec::len)
    };
    assert_eq!(owners(&world), 1);
    world.edit(|spec| spec["volumeClaims"] = json!({ "whenDeleted": "Retain" }));
    world.settle().await;
    assert_eq!(owners(&world), 0);
}

#[tokio::test]
async fn a_pod_monitor_comes_and_goes_with_the_spec_and_its_crd() {
    let mut world = formed(json!({})).await;
    let monitor = "monitoring.coreos.com/v1/namespaces/shop/podmonitors/orders";
    assert!(world.api.get(monitor).is_none(), "there is no such kind");
    world
        .api
        .0
        .lock()
        .groups
        .push("monitoring.coreos.com/v1".to_owned());
    world.restart_operator();
    world.settle().await;
    assert!(world.api.get(monitor).is_some());
    world.edit(|spec| spec["monitoring"] = json!({ "podMonitor": false }));
    world.settle().await;
    assert!(world.api.get(monitor).is_none());
    world.api.take_log();
    world.settle().await;
    assert!(writes(world.api.take_log()).is_empty());
}

#[tokio::test]
async fn the_leaders_label_follows_the_leader() {
    let mut world = formed(json!({})).await;
    let leaders = |world: &World| {
        (0..3)
            .filter(|ordinal| {
                let pod = world
                    .api
                    .get(&format!("v1/namespaces/shop/pods/orders-g0-{ordinal}"));
                pod.is_some_and(|pod| pod["metadata"]["labels"]["flowerdb.dev/role"] == "leader")
            })
            .collect::<Vec<u32>>()
    };
    assert_eq!(leaders(&world), [0]);
    world
        .nodes
        .0
        .lock()
        .nodes
        .get_mut(&address(0))
        .expect("it")
        .up = false;
    world.turn();
    world.pass().await;
    let leader = world.leader().expect("a leader");
    assert_eq!(leaders(&world), [leader]);
}
