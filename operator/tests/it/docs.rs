//! Documents that must not drift: every family of metrics is in its reference, every alert has
//! a runbook, every rule of the role a reason.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::json;

use super::support::world::World;

fn file(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_one_exists() {
    let mut world = World::new(json!({}));
    world.settle().await;
    let text = world.ctx.metrics.text();
    let exported: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let reference = file("docs/reference/operator-metrics.md");
    let documented: BTreeSet<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(exported, documented);
}

#[test]
fn every_alert_has_a_runbook_and_a_test() {
    let rules = file("charts/flower-operator/rules/flower.yaml");
    let tests = file("charts/flower-operator/tests/rules.yaml");
    let alerts: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 6);
    for alert in alerts {
        assert!(file(&format!("docs/runbooks/{alert}.md")).starts_with(&format!("# {alert}\n")));
        assert!(
            rules.contains(&format!("runbook_url: RUNBOOKS/{alert}.md")),
            "{alert}"
        );
        assert!(tests.contains(&format!("alertname: {alert}")), "{alert}");
    }
}

#[test]
fn every_query_of_a_dashboard_names_documented_metrics() {
    let known = [
        file("docs/reference/metrics.md"),
        file("docs/reference/operator-metrics.md"),
    ]
    .concat();
    for name in ["cluster", "footprint"] {
        let board: serde_json::Value = serde_json::from_str(&file(&format!(
            "charts/flower-operator/dashboards/{name}.json"
        )))
        .expect("JSON");
        let text = board.to_string();
        let mut queries = 0;
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if !word.starts_with("flower_") || ["flower_cluster", "flower_group"].contains(&word) {
                continue;
            }
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end))
                .unwrap_or(word);
            assert!(
                known.contains(&format!("`{base}`")) || known.contains(&format!("`{word}`")),
                "{name} asks for {word}, which no reference names"
            );
            queries += 1;
        }
        assert!(queries > 20, "{name} has {queries} metrics");
    }
}

/// The rules of the role as (group, resource, verb).
fn role() -> BTreeSet<(String, String, String)> {
    let template = file("charts/flower-operator/templates/_helpers.tpl");
    let begin = template
        .find("{{- define \"flower-operator.rules\" -}}")
        .expect("the rules");
    let body = &template[begin..];
    let body = &body[body.find('\n').expect("a line")..body.find("{{- end -}}").expect("an end")];
    for rule in body.split("- apiGroups:").collect::<Vec<_>>().windows(2) {
        let reason = rule[0].lines().rev().find(|line| !line.trim().is_empty());
        assert!(
            reason.is_some_and(|line| line.starts_with('#')),
            "a rule without a reason: {}",
            rule[1]
        );
    }
    let rules: Vec<serde_json::Value> = serde_yaml_ng::from_str(body).expect("YAML");
    let texts = |rule: &serde_json::Value, field: &str| -> Vec<String> {
        let items = rule[field].as_array().expect("a list");
        items
            .iter()
            .map(|one| one.as_str().expect("text").to_owned())
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in &rules {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for verb in texts(rule, "verbs") {
                    all.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    all
}

/// What the API server saw, as permissions that it would have asked for.
fn asked(method: &str, path: &str) -> Option<(String, String, String)> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (resource, named) = match rest {
        ["namespaces", _, resource] => ((*resource).to_owned(), false),
        ["namespaces", _, resource, _] => ((*resource).to_owned(), true),
        ["namespaces", _, resource, _, sub] => (format!("{resource}/{sub}"), true),
        _ => return None,
    };
    let verb = match (method, named) {
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => return None,
    };
    Some((group.to_owned(), resource, verb.to_owned()))
}

#[tokio::test]
async fn the_role_allows_what_is_called_and_little_more() {
    let mut world = World::new(
        json!({ "replicas": 5, "app": { "bundle": { "configMapKeyRef": { "name": "a", "key": "b" } } } }),
    );
    world
        .api
        .0
        .lock()
        .groups
        .push("monitoring.coreos.com/v1".to_owned());
    world.settle().await;
    world.edit(|spec| {
        spec["image"] = json!("registry.example/flower:2");
        spec["replicas"] = json!(3);
        spec["monitoring"] = json!({ "podMonitor": false });
        spec["volumeClaims"] = json!({ "whenDeleted": "Delete" });
    });
    world.settle().await;
    world
        .nodes
        .0
        .lock()
        .nodes
        .get_mut("10.0.0.1")
        .expect("it")
        .broken = true;
    world.turn();
    world.settle().await;
    let log = world.api.take_log();
    let role = role();
    let called: BTreeSet<_> = log
        .iter()
        .filter_map(|seen| asked(&seen.method, &seen.path))
        .collect();
    let missing: Vec<_> = called.difference(&role).collect();
    assert!(missing.is_empty(), "the role lacks {missing:?}");
    // Watches are the controller's; `create` is asked for by an apply that makes the object.
    let unused: Vec<_> = role
        .difference(&called)
        .filter(|(_, resource, verb)| {
            let applied = [
                "statefulsets",
                "services",
                "serviceaccounts",
                "poddisruptionbudgets",
                "podmonitors",
            ];
            let watched = verb == "watch" || verb == "list";
            let repeated_event = resource == "events" && verb == "patch";
            !(watched
                || repeated_event
                || (verb == "create" && applied.contains(&resource.as_str())))
        })
        .collect();
    assert!(unused.is_empty(), "nobody uses {unused:?}");
}
