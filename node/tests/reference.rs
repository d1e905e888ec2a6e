//! The reference pages are made from the code: this test writes them when UPDATE_REFERENCE is
//! set, and otherwise fails when they say something else.

use std::{fmt::Write as _, fs, path::PathBuf};

use flower_node::{cli, config, metrics};

fn check(page: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/reference")
        .join(page);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/reference/{page} is not what the code says; run \
         UPDATE_REFERENCE=1 cargo test -p flower-node --test reference"
    );
}

#[test]
fn settings() {
    let mut page = "# Settings of a node\n\n\
        `flower serve` takes each setting as a flag or as a variable of the environment; the \
        flag goes first, and an empty variable counts as not set. A variable that begins with \
        `FLOWER_` and is no setting is refused at start, so that a typing error does not pass \
        for a default; the variables that Kubernetes makes for Services are left alone. Bytes \
        are written as a whole number, alone or followed by `Ki`, `Mi` or `Gi`.\n\n\
        The operator sets them from the FlowerCluster; `spec.pod.env` may set the others.\n\n\
        | Variable | Flag | Value | Default | What it does |\n\
        | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for setting in config::SETTINGS {
        let default = if setting.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", setting.default)
        };
        let value = setting.value.replace('|', " or ");
        writeln!(
            page,
            "| `{}` | `--{}` | {value} | {default} | {}. |",
            setting.variable(),
            setting.flag,
            setting.help
        )
        .unwrap();
    }
    page += "\nAn error that comes from a limit names its setting.\n\n\
        ## Variables of the other commands\n\n| Variable | What it is |\n| --- | --- |\n";
    for (name, what) in config::CLI_VARIABLES {
        writeln!(page, "| `{name}` | The {what}. |").unwrap();
    }
    check("settings.md", &page);
}

#[test]
fn commands() {
    let mut root = cli::command().term_width(100);
    root.build();
    let mut page = "# The `flower` command\n\n\
        One program is node and client. Every command that prints a result takes \
        `--output json`; with it, a failure is a JSON object with the key `error` on standard \
        output, and the exit code says the same.\n"
        .to_owned();
    writeln!(
        page,
        "\n```text\n{}```",
        trimmed(&root.render_long_help().to_string())
    )
    .unwrap();
    for command in subcommands(&mut root) {
        describe(command, "flower", 2, &mut page);
    }
    check("cli.md", &page);
}

/// Those that a person calls.
fn subcommands(of: &mut clap::Command) -> impl Iterator<Item = &mut clap::Command> {
    of.get_subcommands_mut()
        .filter(|command| command.get_name() != "help")
}

/// A section for a command, and one below it for each of its own.
fn describe(command: &mut clap::Command, above: &str, level: usize, page: &mut String) {
    let name = format!("{above} {}", command.get_name());
    let help = if name == "flower serve" {
        "Runs a node of a cluster. Its flags are those of [the settings](settings.md).\n".to_owned()
    } else {
        let help = trimmed(&command.render_long_help().to_string());
        format!("```text\n{help}```\n")
    };
    write!(page, "\n{} {name}\n\n{help}", "#".repeat(level)).unwrap();
    for sub in subcommands(command) {
        describe(sub, &name, level + 1, page);
    }
}

fn trimmed(text: &str) -> String {
    text.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[test]
fn the_metrics() {
    let mut page = "# Metrics of a node\n\n\
        `GET /metrics` on the admin port (7702), without a token, in Prometheus' text format. \
        Counters start at 0. A value that this host cannot know (no cgroup limit, nothing \
        stored to divide by) is absent, never 0. The `member` of a lag is told by the leader \
        only, and names a member id.\n\n\
        | Name | Type | Labels | What it says |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for metric in metrics::METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let kind = format!("{:?}", metric.kind).to_lowercase();
        writeln!(
            page,
            "| `{}` | {kind} | {} | {} |",
            metric.name,
            labels.join(", "),
            metric.help
        )
        .unwrap();
    }
    check("metrics.md", &page);
}
