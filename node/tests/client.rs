//! The JavaScript client and `flower watch` against a node of `flower dev`: run by Node, which
//! must be on PATH.

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{COUNTER, Process, flower, free_ports};
use serde_json::{Value, json};

/// A node that keeps its port and data over restarts.
struct Dev {
    app: String,
    data: String,
    port: u16,
    process: Option<Process>,
}

impl Dev {
    fn start(dir: &Path) -> Self {
        let app = dir.join("app.js");
        std::fs::write(&app, COUNTER).unwrap();
        let mut dev = Self {
            app: app.display().to_string(),
            data: dir.join("data").display().to_string(),
            port: free_ports(),
            process: None,
        };
        dev.run();
        dev
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns when it serves.
    fn run(&mut self) {
        let port = self.port.to_string();
        let args = ["--output", "json", "dev", &self.app, "--port", &port];
        let mut command = flower(&args);
        command.args(["--data", &self.data]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        self.process = Some(Process(child));
        loop {
            let event: Value = serde_json::from_str(&line(&mut lines)).unwrap();
            assert_ne!(event["event"], "failed", "{event}");
            if event["event"] == "deployed" {
                break;
            }
        }
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
    }

    fn restart(&mut self) {
        assert_eq!(self.process.take().unwrap().stop(), Some(0));
        self.run();
    }
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert!(
        lines.read_line(&mut line).unwrap() > 0,
        "the program has ended"
    );
    line.trim_end().to_owned()
}

/// A program with its output.
fn piped(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is on PATH (node: Debian package nodejs, 20 or later)");
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

#[test]
fn the_client_in_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(dir.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client/session.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg(dev.url());
    let (child, mut lines) = piped(command);
    let mut process = Process(child);
    let mut answers = process.0.stdin.take().unwrap();
    loop {
        match line(&mut lines).as_str() {
            "restart" => {
                dev.restart();
                writeln!(answers, "restart").unwrap();
            }
            "done" => break,
            other => println!("{other}"),
        }
    }
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn flower_watch_goes_on_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(dir.path());
    let url = dev.url();
    let call = |by: i64| {
        let args = json!({ "key": "a", "by": by }).to_string();
        let args = ["--output", "json", "call", "bump", &args, "--url", &url];
        // A busy machine may not load the application in its time; nothing happens then.
        common::eventually("the call is done", || {
            let (code, out, _) = common::run(&args);
            (code == 0).then(|| serde_json::from_str::<Value>(&out).unwrap())
        })
    };
    let first = call(3);
    let args = [
        "--output",
        "json",
        "watch",
        "read",
        r#"{"key":"a"}"#,
        "--steps",
        "3",
        "--url",
        &url,
    ];
    let (child, mut lines) = piped(flower(&args));
    let mut process = Process(child);
    let mut step = || loop {
        let told: Value = serde_json::from_str(&line(&mut lines)).unwrap();
        if told["problem"]["code"] != "budget" {
            return told;
        }
    };
    let told = step();
    assert_eq!(
        (&told["value"], &told["revision"]),
        (&json!(3), &first["revision"])
    );
    call(1);
    assert_eq!(step()["value"], json!(4));
    dev.restart();
    let last = call(1);
    let told = step();
    assert_eq!(
        (&told["value"], &told["revision"]),
        (&json!(5), &last["revision"])
    );
    assert!(process.0.wait().unwrap().success());
    // A watch that cannot be says why, and with which code.
    let (code, out, _) = common::run(&["--output", "json", "watch", "a b", "--url", &url]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &told["error"]["problem"]["code"]),
        (3, &json!("unknown-function"))
    );
    let nobody = ["watch", "read", "--url", "http://127.0.0.1:1"];
    assert_eq!(common::run(&nobody).0, 4);
}
