//! The commands against a node of `flower dev`, as a person has it on a laptop.

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{ChildStdout, Stdio},
};

use common::{COUNTER, Process, flower, free_ports, json, run};
use serde_json::{Value, json};

struct Dev {
    process: Process,
    lines: BufReader<ChildStdout>,
    url: String,
    admin: String,
}

impl Dev {
    fn start(app: &str, data: Option<&str>) -> Self {
        Self::start_with(app, data, Stdio::inherit())
    }

    fn start_with(app: &str, data: Option<&str>, log: Stdio) -> Self {
        let port = free_ports();
        let text = port.to_string();
        let mut args = vec!["--output", "json", "dev", app, "--port", &text];
        args.extend(data.iter().flat_map(|dir| ["--data", dir]));
        let mut command = flower(&args);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self {
            process: Process(child),
            lines,
            url: format!("http://127.0.0.1:{port}"),
            admin: format!("http://127.0.0.1:{}", port + 2),
        }
    }

    /// Reads lines up to the next event with this name.
    fn event(&mut self, name: &str) -> Value {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "flower dev ended before the event '{name}'");
            let event: Value =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            if event["event"] == name {
                return event;
            }
            assert_ne!(event["event"], "failed", "{event}");
        }
    }

    fn stop(mut self) {
        assert_eq!(self.process.stop(), Some(0));
        self.event("stopping");
    }
}

#[test]
fn a_developers_session() {
    let dir = tempfile::tempdir().unwrap();
    let app = dir.path().join("app.js");
    let app = app.to_str().unwrap();
    std::fs::write(app, COUNTER).unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let mut dev = Dev::start(app, Some(data));
    dev.event("deployed");
    let hints = dev.event("hints");
    assert!(
        hints["commands"].to_string().contains("flower call bump"),
        "{hints}"
    );
    let (url, admin) = (dev.url.clone(), dev.admin.clone());

    checks(app, &admin);
    calls(&url);
    refusals(&url);
    reports(&admin);
    reloads(&mut dev, app, &url);
    dev.stop();

    // The folder is kept: the next start goes on from it.
    let mut dev = Dev::start(app, Some(data));
    dev.event("deployed");
    let found = json(&["query", "read", r#"{"key":"tea"}"#, "--url", &dev.url]);
    assert_eq!(found["result"], json!([7, "second"]), "{found}");
    dev.stop();
}

fn checks(app: &str, admin: &str) {
    let alone = json(&["check", app]);
    assert!(alone["heapBytes"].as_u64().unwrap() > 0, "{alone}");
    assert_eq!(alone["against"], Value::Null);
    let same = json(&["check", app, "--deployed", "--admin-url", admin]);
    assert_eq!(same["against"]["hash"], same["hash"], "{same}");
    assert_eq!(same["against"]["differences"], json!([]));
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.js");
    let other = other.to_str().unwrap();
    let text = r#"import { query, t, table } from "@flower/sdk";
        table("others", { n: t.int() });
        export const all = query({ args: {} }, (db) => db.others.all());"#;
    std::fs::write(other, text).unwrap();
    let losing = ["check", other, "--deployed", "--admin-url", admin];
    let (code, _, said) = run(&losing);
    assert!(code == 3 && said.contains("would lose data"), "{said}");
    let (code, found, _) = run(&[&losing[..], &["--output", "json"]].concat());
    assert_eq!(code, 3);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["against"]["differences"][0]["impact"], "loses-data");
    assert_eq!(found["wholeTables"][0]["line"], 3, "{found}");
    std::fs::write(other, "export const x = ;").unwrap();
    let (code, _, said) = run(&["check", other]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("app.js"), "{said}");
}

fn calls(url: &str) {
    let call = json(&[
        "call",
        "bump",
        r#"{"key":"tea","by":7}"#,
        "--url",
        url,
        "--key",
        "key-1",
    ]);
    assert_eq!(
        (&call["result"], &call["replayed"]),
        (&json!(7), &json!(false)),
        "{call}"
    );
    let again = json(&[
        "call",
        "bump",
        r#"{"key":"tea","by":7}"#,
        "--url",
        url,
        "--key",
        "key-1",
    ]);
    assert_eq!(
        (&again["result"], &again["replayed"]),
        (&json!(7), &json!(true)),
        "{again}"
    );
    let read = json(&["query", "read", r#"{"key":"tea"}"#, "--url", url]);
    assert_eq!(read["result"], 7);
    assert!(
        read["served"].as_str().unwrap().starts_with("fresh"),
        "{read}"
    );
    assert!(
        read["revision"].as_u64() >= call["revision"].as_u64(),
        "{read} {call}"
    );
    let (code, text, _) = run(&[
        "query",
        "read",
        r#"{"key":"tea"}"#,
        "--url",
        url,
        "--read",
        "local",
    ]);
    assert_eq!((code, text.as_str()), (0, "7\n"));
}

fn refusals(url: &str) {
    let (code, _, told) = run(&["call", "spend", r#"{"key":"tea","by":100}"#, "--url", url]);
    assert_eq!(code, 3, "{told}");
    assert!(
        told.contains("fault:too-little") && told.contains(r#"{"value":7}"#),
        "{told}"
    );
    let (code, _, told) = run(&["query", "reed", "{}", "--url", url]);
    assert_eq!(code, 3);
    assert!(told.contains("unknown-function"), "{told}");
    let (code, _, told) = run(&["query", "read", r#"{"kee":1}"#, "--url", url]);
    assert_eq!(code, 3);
    assert!(told.contains("/kee"), "{told}");
    let (code, _, told) = run(&["query", "read", "{", "--url", url]);
    assert_eq!(code, 1);
    assert!(told.contains("no JSON"), "{told}");
    let (code, told, _) = run(&[
        "--output",
        "json",
        "query",
        "read",
        "--url",
        url,
        "--read",
        "fresh",
        "--timeout",
        "5",
    ]);
    assert_eq!(code, 3);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["error"]["problem"]["code"], "invalid-args", "{told}");
    let nobody = format!("http://127.0.0.1:{}", free_ports());
    let (code, _, told) = run(&["query", "read", "--url", &nobody, "--timeout", "1"]);
    assert_eq!(code, 4);
    assert!(told.contains(&nobody), "{told}");
}

fn reports(admin: &str) {
    let status = json(&["status", "--admin-url", admin]);
    assert_eq!(status["members"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["members"][0]["role"], "leader");
    assert_eq!(status["members"][0]["state"], "ready");
    assert_eq!(status["formed"], true);
    let (code, text, _) = run(&["status", "--admin-url", admin]);
    assert!(
        code == 0 && text.contains("leader") && text.contains("LAG"),
        "{text}"
    );
    let footprint = json(&["footprint", "--admin-url", admin]);
    assert!(
        footprint["footprint"]["residentBytes"].as_u64() > Some(1 << 20),
        "{footprint}"
    );
    assert!(
        footprint["footprint"]["storedBytes"].as_u64() > Some(0),
        "{footprint}"
    );
    let (code, text, _) = run(&["footprint", "--admin-url", admin]);
    assert!(code == 0 && text.contains("resident set"), "{text}");
}

/// A bad text is told and changes nothing; a good one takes over and keeps the data.
fn reloads(dev: &mut Dev, app: &str, url: &str) {
    std::fs::write(app, "export const read = nonsense(").unwrap();
    let refused = dev.event("refused");
    assert_eq!(refused["problem"]["code"], "bad-bundle", "{refused}");
    assert_eq!(
        json(&["query", "read", r#"{"key":"tea"}"#, "--url", url])["result"],
        7
    );
    let second = COUNTER.replace(
        "return row ? row.value : 0;",
        r#"return [row.value, "second"];"#,
    );
    std::fs::write(app, second).unwrap();
    dev.event("deployed");
    let found = json(&["query", "read", r#"{"key":"tea"}"#, "--url", url]);
    assert_eq!(found["result"], json!([7, "second"]));
}

const LOUD: &str = r#"
import { mutation, query } from "@flower/sdk";
export const boom = mutation({ args: {} }, () => { throw new Error("a secret of the log"); });
export const quiet = query({ args: {} }, () => { console.log("a line of the app"); throw new Error("asked"); });
"#;

#[test]
fn what_an_application_throws_and_writes_is_printed_with_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let (app, log) = (dir.path().join("app.js"), dir.path().join("log"));
    let app = app.to_str().unwrap();
    std::fs::write(app, LOUD).unwrap();
    let mut dev = Dev::start_with(app, None, std::fs::File::create(&log).unwrap().into());
    dev.event("deployed");
    for (verb, name, line) in [
        ("call", "boom", "a secret of the log"),
        ("query", "quiet", "asked"),
        ("query", "quiet", "a line of the app"),
    ] {
        let all = ["--output", "json", verb, name, "--url", &dev.url];
        let (code, said, _) = run(&all);
        assert_eq!(code, 3, "{said}");
        assert!(!said.contains(line), "{said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        let id = said["error"]["problem"]["requestId"].as_str().unwrap();
        let log = std::fs::read_to_string(&log).unwrap();
        let told = log.lines().find(|l| l.contains(id) && l.contains(line));
        assert!(told.is_some(), "{id} {line}\n{log}");
    }
    dev.stop();
}

#[test]
fn a_reader_that_has_gone_ends_the_command_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = flower(&["completions", "bash"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_node_waits_for_the_process_that_holds_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let held = flower_store::RealDisk::open(dir.path().join("a")).unwrap();
    let node = common::Node::start(dir.path(), "a", &[]);
    common::eventually("it waits", || {
        node.log()
            .contains("another process holds the data")
            .then_some(())
    });
    drop(held);
    node.report("it has started", |_| true);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let (code, _, told) = run(&["dev", "/no/such/app.js"]);
    assert_eq!(code, 1);
    assert!(told.contains("/no/such/app.js"), "{told}");
    let (code, _, told) = run(&["deploy", "/no/such/app.js"]);
    assert_eq!(code, 1);
    assert!(told.contains("/no/such/app.js"), "{told}");
}

#[test]
fn settings_that_cannot_be_are_refused_at_start() {
    let output = flower(&[
        "serve",
        "--listen",
        "127.0.0.1",
        "--memory-limit-bytes",
        "64Mi",
    ])
    .env("FLOWER_WORKR", "1")
    .output()
    .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("did you mean FLOWER_WORKERS?"), "{told}");
    let (code, _, told) = run(&[
        "serve",
        "--listen",
        "127.0.0.1",
        "--memory-limit-bytes",
        "64Mi",
    ]);
    assert_eq!(code, 1);
    assert!(told.contains("64 MiB cannot hold the node"), "{told}");
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, text, _) = run(&["completions", shell]);
        assert!(
            code == 0 && text.contains("prepare-stop") && text.contains("auth-dir"),
            "{shell}"
        );
    }
}
