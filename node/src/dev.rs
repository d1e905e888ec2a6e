//! `flower dev`: one node on this computer alone, its application deployed from a file and
//! again whenever that changes. It calls the node by the admin API, as anybody would; an
//! application that is refused leaves the one before running.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use flower_api::{
    ClusterId,
    admin::{AdminApi, AdminError, Bootstrap, Deploy, Deployed, Endpoint},
    limits::MIB,
    report::{BuildInfo, Lifecycle, Report},
};

use crate::{
    admin_client::AdminClient,
    cgroup::{Cgroup, memory_limit},
    cli::{DevArgs, bundle, deploy},
    config::{Config, Given},
    host::Host,
    logging,
    run::Running,
    serve::{Prepared, Signals, abort_on_panic, parts, runtime},
};

mod say;
mod watch;

use say::Say;

/// A laptop has other things to do with its memory.
const MEMORY_BYTES: u64 = 512 * MIB;
/// What the application writes, and what it throws, is what a developer looks for.
const FILTER: &str = "error,openraft=off,app=info";
/// How long the node may take to lead itself.
const START: Duration = Duration::from_secs(30);

/// Runs until Ctrl-C.
pub fn run(args: DevArgs, json: bool) -> ExitCode {
    let say = Say::new(json);
    let ended = prepare(&args).and_then(|(prepared, data)| {
        abort_on_panic();
        let kept = args.data.is_some();
        let ended = runtime()?.block_on(session(&args, prepared, kept, &say));
        drop(data);
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say.failed(&why);
            ExitCode::from(crate::cli::exit::FAILED)
        }
    }
}

/// The settings of the one node, and the temporary folder that must outlive it.
fn prepare(args: &DevArgs) -> Result<(Prepared, Option<tempfile::TempDir>), String> {
    bundle::read(&args.app)?;
    let (folder, data) = match &args.data {
        Some(folder) => (None, folder.clone()),
        None => {
            let made = tempfile::Builder::new().prefix("flower-dev-").tempdir();
            let made = made.map_err(|e| format!("no temporary folder for the data: {e}"))?;
            let path = made.path().to_owned();
            (Some(made), path)
        }
    };
    let filter = std::env::var("FLOWER_LOG").unwrap_or_else(|_| FILTER.to_owned());
    let config = settings(&data, args.port, &filter, &Host::default())?;
    logging::start(config.log_format, &config.log_filter).map_err(|e| e.to_string())?;
    Ok((Prepared::new(config, Host::default())?, folder))
}

fn settings(data: &Path, port: u16, filter: &str, host: &Host) -> Result<Config, String> {
    let cgroup = Cgroup::find(host);
    let limit = memory_limit(host, cgroup.as_ref()).map_or(MEMORY_BYTES, |(limit, _)| limit);
    let above = |by: u16| {
        let port = port
            .checked_add(by)
            .ok_or("--port must leave two ports above it")?;
        Ok::<_, String>(port.to_string())
    };
    let (peer, admin) = (above(1)?, above(2)?);
    let given = Given::of([
        ("data", data.display().to_string()),
        ("name", "dev".to_owned()),
        ("advertise", format!("127.0.0.1:{peer}")),
        ("listen", "127.0.0.1".to_owned()),
        ("client-port", port.to_string()),
        ("peer-port", peer),
        ("admin-port", admin),
        ("memory-limit-bytes", limit.min(MEMORY_BYTES).to_string()),
        ("log-format", "text".to_owned()),
        ("log", filter.to_owned()),
        ("stop-grace-ms", "0".to_owned()),
    ]);
    Config::from_given(&given, "dev").map_err(|e| e.to_string())
}

/// From the node's start to its end.
async fn session(args: &DevArgs, prepared: Prepared, kept: bool, say: &Say) -> Result<(), String> {
    let ports = prepared.config.ports;
    let data = prepared.config.data.clone();
    let limits = prepared.config.limits;
    let mut signals = Signals::new().map_err(|e| e.to_string())?;
    // A person who starts it twice wants to know at once.
    let parts = parts(prepared, Duration::ZERO)
        .await
        .map_err(|e| e.to_string())?;
    let tasks = parts.env.tasks.clone();
    let running = Running::start(parts).await.map_err(|e| e.to_string())?;
    let admin = Endpoint(format!("http://127.0.0.1:{}", ports.admin));
    let dev = Dev {
        app: args.app.clone(),
        client: AdminClient::new(None),
        admin,
        peer: format!("127.0.0.1:{}", ports.peer),
        limits,
    };
    let url = format!("http://127.0.0.1:{}", ports.client);
    let worked = tokio::select! {
        worked = dev.work(&url, kept.then_some(&data), say) => worked,
        _ = signals.next() => Ok(()),
        fatal = tasks.fatal() => Err(fatal.to_string()),
    };
    say.stopping();
    let stopped = running.stop().await.map_err(|e| e.to_string());
    worked.and(stopped)
}

/// Why an application does not run.
enum Refusal {
    Call(AdminError),
    Build(String),
}

struct Dev {
    app: PathBuf,
    client: AdminClient,
    admin: Endpoint,
    peer: String,
    limits: crate::config::CallLimits,
}

impl Dev {
    async fn work(&self, url: &str, data: Option<&PathBuf>, say: &Say) -> Result<(), String> {
        self.lead().await?;
        let mut changes = watch::Changes::of(&self.app)?;
        say.started(&self.app, url, data);
        let mut hinted = false;
        loop {
            match bundle::read(&self.app) {
                Ok(source) => hinted |= self.deploy(source, url, !hinted, say).await,
                // Between two writes of an editor the file may be gone.
                Err(why) => say.failed(&why),
            }
            changes.next().await?;
        }
    }

    /// Deploys; true when it was accepted.
    async fn deploy(&self, source: String, url: &str, hint: bool, say: &Say) -> bool {
        let call = Deploy {
            fence: bundle::by_hand(),
            source: source.clone(),
            managed_by: None,
        };
        match self.active(&call, say).await {
            Ok(deployed) => {
                say.deployed(&self.app, &deployed);
                if hint {
                    let limits = self.limits;
                    let manifest =
                        tokio::task::spawn_blocking(move || bundle::manifest(&source, &limits));
                    say.hints(url, manifest.await.ok().flatten().as_ref());
                }
                true
            }
            Err(Refusal::Call(refused)) => {
                say.refused(&self.app, &refused);
                false
            }
            Err(Refusal::Build(why)) => {
                say.failed(&format!("{}: {why}", self.app.display()));
                false
            }
        }
    }

    /// Deploys, and waits until that is active.
    async fn active(&self, call: &Deploy, say: &Say) -> Result<Deployed, Refusal> {
        let error = match self.client.deploy(&self.admin, call).await {
            Ok(deployed) => return Ok(deployed),
            Err(error) => error,
        };
        let Some(deployed) = deploy::begun(&error) else {
            return Err(Refusal::Call(error));
        };
        let tell = |build: &BuildInfo| say.building(&self.app, build);
        let ended = deploy::built(&self.client, &self.admin, &deployed.hash, tell).await;
        ended.map_err(Refusal::Call)?.map_err(Refusal::Build)?;
        Ok(deployed)
    }

    /// Makes the node the one member of its group, unless it is already, and waits until it leads.
    async fn lead(&self) -> Result<(), String> {
        let told = |e: AdminError| e.to_string();
        let report = self.client.report(&self.admin).await.map_err(told)?;
        match (report.identity.lifecycle, report.identity.member) {
            (Lifecycle::Uninitialized, Some(member)) => {
                let call = Bootstrap {
                    fence: bundle::by_hand(),
                    cluster: ClusterId(uuid::Uuid::now_v7().to_string()),
                    group: report.identity.group,
                    member,
                    address: self.peer.clone(),
                    size: 1,
                };
                self.client
                    .bootstrap(&self.admin, &call)
                    .await
                    .map_err(told)?;
            }
            (Lifecycle::Broken, _) => {
                let why = report.identity.broken.unwrap_or_default();
                return Err(format!(
                    "the data cannot be read: {why}; use another folder with --data"
                ));
            }
            _ => {}
        }
        let ready = async {
            while !self
                .client
                .report(&self.admin)
                .await
                .is_ok_and(|report| leads(&report))
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let in_time = tokio::time::timeout(START, ready).await;
        in_time.map_err(|_| {
            format!(
                "the node did not become the leader of its group within {} s",
                START.as_secs()
            )
        })
    }
}

fn leads(report: &Report) -> bool {
    report.ready && report.formed && report.leader == report.identity.member
}
