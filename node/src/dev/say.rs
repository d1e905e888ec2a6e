//! What `flower dev` prints: lines for people, or one JSON object a line.

use std::path::{Path, PathBuf};

use flower_api::{
    admin::{AdminError, Deployed},
    manifest::{FieldType, FunctionKind, Manifest},
    report::BuildInfo,
};
use serde_json::{Value, json};

use crate::cli::{bundle, print};

pub(super) struct Say {
    json: bool,
}

impl Say {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    fn event(&self, event: &Value, text: &str) {
        if self.json {
            print::line(event);
        } else {
            print::line(text);
        }
    }

    pub(super) fn started(&self, app: &Path, url: &str, data: Option<&PathBuf>) {
        let kept = data.map_or_else(
            || "in a temporary folder, removed at the end; keep it with --data DIR".to_owned(),
            |dir| format!("in {}", dir.display()),
        );
        let text = format!(
            "Flower answers at {url}; its data is {kept}.\nWatching {}; Ctrl-C ends it.",
            app.display()
        );
        self.event(
            &json!({ "event": "started", "url": url, "data": data }),
            &text,
        );
    }

    pub(super) fn deployed(&self, app: &Path, deployed: &Deployed) {
        let text = format!("{}: {}", app.display(), bundle::describe(deployed));
        self.event(&json!({ "event": "deployed", "deployed": deployed }), &text);
    }

    pub(super) fn building(&self, app: &Path, build: &BuildInfo) {
        let text = format!("{}: {build}; what ran before goes on", app.display());
        self.event(&json!({ "event": "building", "build": build }), &text);
    }

    pub(super) fn refused(&self, app: &Path, why: &AdminError) {
        let problem = match why {
            AdminError::Refused(problem) => Some(problem),
            _ => None,
        };
        let mut text = match problem {
            Some(problem) => format!("{}: {}", app.display(), problem.detail),
            None => format!("{}: {why}", app.display()),
        };
        for error in problem.iter().flat_map(|problem| &problem.errors) {
            text += &format!("\n  {}", error.detail);
        }
        text += "\nWhat ran before goes on; save the file again to try again.";
        self.event(
            &json!({ "event": "refused", "problem": problem, "message": why.to_string() }),
            &text,
        );
    }

    pub(super) fn failed(&self, why: &str) {
        if self.json {
            print::line(json!({ "event": "failed", "message": why }));
        } else {
            print::complain(why);
        }
    }

    pub(super) fn stopping(&self) {
        self.event(&json!({ "event": "stopping" }), "Stopping.");
    }

    pub(super) fn hints(&self, url: &str, manifest: Option<&Manifest>) {
        let commands = manifest
            .map(|manifest| commands(url, manifest))
            .unwrap_or_default();
        if commands.is_empty() {
            return;
        }
        let text = format!("Try, in another terminal:\n  {}", commands.join("\n  "));
        self.event(&json!({ "event": "hints", "commands": commands }), &text);
    }
}

/// Commands to paste: mutations first, or queries would find nothing.
fn commands(url: &str, manifest: &Manifest) -> Vec<String> {
    let at = if url == "http://127.0.0.1:7700" {
        String::new()
    } else {
        format!(" --url {url}")
    };
    let of_kind = |kind: FunctionKind, verb: &'static str| {
        let at = at.clone();
        let functions = manifest
            .functions
            .iter()
            .filter(move |(_, f)| f.kind == kind);
        functions.take(4).map(move |(name, function)| {
            let args = function
                .args
                .as_ref()
                .map(example)
                .filter(|args| *args != json!({}));
            let args = args.map(|args| format!(" '{args}'")).unwrap_or_default();
            format!("flower {verb} {name}{args}{at}")
        })
    };
    let mutations = of_kind(FunctionKind::Mutation, "call");
    mutations
        .chain(of_kind(FunctionKind::Query, "query"))
        .collect()
}

/// A value of this type, as plain as can be.
fn example(of: &FieldType) -> Value {
    match of {
        FieldType::Id { table } => json!(format!("<id of {table}>")),
        FieldType::Text { .. } => json!("text"),
        FieldType::Int { min, max } => json!(1.max(min.unwrap_or(1)).min(max.unwrap_or(i64::MAX))),
        FieldType::Number => json!(1),
        FieldType::Bool => json!(true),
        FieldType::Time => json!(0),
        FieldType::Json => json!({}),
        FieldType::OneOf { values } => json!(values.first()),
        FieldType::List { item, .. } => json!([example(item)]),
        FieldType::Record { fields } => {
            let given = fields
                .iter()
                .filter(|(_, t)| !matches!(t, FieldType::Optional { .. }));
            given
                .map(|(name, t)| (name.clone(), example(t)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        FieldType::Optional { inner } => example(inner),
    }
}

#[cfg(test)]
mod tests {
    use flower_api::manifest::Function;

    use super::*;

    #[test]
    fn hints_have_arguments_of_the_right_types() {
        let text = FieldType::Text { max: None };
        let optional = FieldType::Optional {
            inner: Box::new(text.clone()),
        };
        let by = FieldType::Int {
            min: Some(5),
            max: None,
        };
        let args = FieldType::Record {
            fields: vec![
                ("name".into(), text),
                ("note".into(), optional),
                ("by".into(), by),
            ],
        };
        let function = |kind, args| Function {
            kind,
            args,
            returns: None,
            errors: [].into(),
        };
        let manifest = Manifest {
            tables: [].into(),
            functions: [
                ("all".into(), function(FunctionKind::Query, None)),
                ("bump".into(), function(FunctionKind::Mutation, Some(args))),
            ]
            .into(),
            ..Manifest::default()
        };
        assert_eq!(
            commands("http://127.0.0.1:7700", &manifest),
            [
                r#"flower call bump '{"name":"text","by":5}'"#,
                "flower query all",
            ]
        );
        assert!(
            commands("http://127.0.0.1:9000", &manifest)[1]
                .ends_with("--url http://127.0.0.1:9000")
        );
    }
}
