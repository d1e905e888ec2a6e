//! Nodes as processes on loopback, and the commands that talk to them.
#![allow(dead_code)]

pub mod trio;

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use flower_api::{
    admin::{AdminApi, Endpoint, Fence},
    report::Report,
};
use flower_node::admin_client::AdminClient;
use serde_json::Value;

/// Long enough for a busy machine; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const COUNTER: &str = r#"
import { fault, mutation, query, t, table } from "@flower/sdk";

table("counters", { key: t.text(40), value: t.int() }, { indexes: { byKey: ["key"] } });

export const bump = mutation(
  { args: { key: t.text(40), by: t.int().optional() }, returns: t.int() },
  (tx, { key, by }) => {
    const row = tx.counters.byKey.range({ key }).first();
    const value = (row ? row.value : 0) + (by === undefined ? 1 : by);
    if (row) tx.counters.patch(row.id, { value });
    else tx.counters.insert({ key, value });
    return value;
  },
);

export const spend = mutation(
  { args: { key: t.text(40), by: t.int() }, errors: { "too-little": 409 } },
  (tx, { key, by }) => {
    const row = tx.counters.byKey.range({ key }).first();
    const value = row ? row.value : 0;
    if (value < by) throw fault("too-little", { data: { value } });
    tx.counters.patch(row.id, { value: value - by });
    return value - by;
  },
);

export const read = query(
  { args: { key: t.text(40) } },
  (db, { key }) => {
    const row = db.counters.byKey.range({ key }).first();
    return row ? row.value : 0;
  },
);
"#;

/// Three free ports in a row: client, peer, admin.
pub fn free_ports() -> u16 {
    let seed = std::process::id() as u16 ^ Instant::now().elapsed().subsec_nanos() as u16;
    (0..400u16)
        .map(|n| 20_000 + (seed.wrapping_mul(31).wrapping_add(n * 97) % 12_000))
        .find(|base| {
            let held: Vec<_> = (0..3)
                .map(|n| TcpListener::bind(("127.0.0.1", base + n)))
                .collect();
            held.iter().all(Result::is_ok) && taken(*base)
        })
        .expect("three free ports in a row")
}

/// Ports given out in this process are not given out again.
fn taken(base: u16) -> bool {
    static GIVEN: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap();
    let free = given.iter().all(|other| base.abs_diff(*other) > 3);
    if free {
        given.push(base);
    }
    free
}

/// `flower` with these arguments.
pub fn flower(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flower"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLOWER_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// The exit code, standard output and standard error of `flower` with these arguments.
pub fn run(args: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = flower(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// The JSON that a command prints, which must succeed.
pub fn json(args: &[&str]) -> Value {
    let mut all = vec!["--output", "json"];
    all.extend(args);
    let (code, stdout, stderr) = run(&all);
    assert_eq!(code, 0, "flower {args:?}\n{stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"))
}

/// Runs `flower` and lives no longer than the value.
pub struct Process(pub Child);

impl Process {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = libc::pid_t::try_from(self.0.id()).unwrap();
        // SAFETY: `kill` takes two integers and touches no memory of this process; the child
        // has not been waited for, so its id is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        eventually("the process ends", || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A node of a cluster on loopback.
pub struct Node {
    pub base: u16,
    dir: PathBuf,
    process: Option<Process>,
}

impl Node {
    /// A node with data below `dir`, started.
    pub fn start(dir: &Path, name: &str, more: &[&str]) -> Self {
        let mut node = Self {
            base: free_ports(),
            dir: dir.join(name),
            process: None,
        };
        node.restart(more);
        node
    }

    pub fn restart(&mut self, more: &[&str]) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.with_extension("log"));
        let log = log.unwrap();
        let port = |n: u16| (self.base + n).to_string();
        let mut command = flower(&[
            "serve",
            "--listen",
            "127.0.0.1",
            "--memory-limit-bytes",
            "512Mi",
        ]);
        command
            .args(["--data", self.dir.to_str().unwrap()])
            .args(["--name", self.dir.file_name().unwrap().to_str().unwrap()])
            .args(["--advertise", &self.peer()])
            .args([
                "--client-port",
                &port(0),
                "--peer-port",
                &port(1),
                "--admin-port",
                &port(2),
            ])
            .args(["--stop-grace-ms", "200", "--log-format", "text"])
            .args(more)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(Process(command.spawn().unwrap()));
    }

    pub fn client(&self) -> String {
        format!("http://127.0.0.1:{}", self.base)
    }
    pub fn peer(&self) -> String {
        format!("127.0.0.1:{}", self.base + 1)
    }
    pub fn admin(&self) -> Endpoint {
        Endpoint(format!("http://127.0.0.1:{}", self.base + 2))
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGTERM; the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.take().and_then(|mut process| process.stop())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.with_extension("log")).unwrap_or_default()
    }

    /// The node's report, once it answers and `fits`.
    pub fn report(&self, what: &str, fits: impl Fn(&Report) -> bool) -> Report {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let start = Instant::now();
        loop {
            let last = match runtime.block_on(AdminClient::default().report(&self.admin())) {
                Ok(report) if fits(&report) => return report,
                Ok(report) => format!("{report:?}"),
                Err(error) => error.to_string(),
            };
            assert!(
                start.elapsed() < PATIENCE,
                "never: {what}\n{last}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A person's fence, against the configuration of `report`.
pub fn fence(report: &Report) -> Fence {
    let configuration = report.configuration.as_ref().map(|c| c.version);
    serde_json::from_value(serde_json::json!({ "configuration": configuration })).unwrap()
}
