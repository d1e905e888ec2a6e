//! A data directory's life: minting its identity, opening both files together and judging
//! whether they fit. It never repairs and never mixes: data that does not fit is `Broken`, and
//! what another version or group wrote is refused untouched.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use flower_api::{ClusterId, GroupId, MemberId, report::Recovery};
use serde::{Deserialize, Serialize};

use crate::{
    disk::{Disk, FileName},
    error::{Fatal, OpenError},
    image::Receiving,
    log::Log,
    record::LogPosition,
    state::State,
};

const FILE: FileName = FileName::Identity;
/// Format of `identity.json`.
const FORMAT: u64 = 1;

/// Who the directory is; `identity.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Format of this file.
    pub format: u64,
    /// The directory's life.
    pub member: MemberId,
    /// The cluster that it belongs to; absent until it is bootstrapped or addressed by a
    /// leader for the first time.
    pub cluster: Option<ClusterId>,
    /// The group.
    pub group: GroupId,
    /// It has been in a configuration of its group: when it is in none, it was removed.
    #[serde(default)]
    pub admitted: bool,
    /// The last recovery of the group that this data is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// The members that this one's own recovery gave up, and their addresses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub given_up: BTreeMap<MemberId, String>,
    /// A recovery that went on without this data: it takes no part any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlived_by: Option<Recovery>,
}

/// Sizes of caches, bytes, and the group that the node was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirSettings {
    /// Page cache of `raft.redb`.
    pub log_cache_bytes: u64,
    /// Flushed records of the log kept in memory.
    pub log_tail_bytes: u64,
    /// Page cache of `state.redb`.
    pub page_cache_bytes: u64,
    /// Value cache.
    pub value_cache_bytes: u64,
    /// The group.
    pub group: GroupId,
}

/// The identity and its disk.
pub struct DataDir {
    disk: Arc<dyn Disk>,
    identity: Identity,
}

/// What opening found.
pub enum Opened {
    /// No cluster yet: minted now, or at an earlier start.
    Fresh(OpenDir),
    /// A member of a cluster.
    Member(OpenDir),
    /// The data is lost: the node takes no part; the member is to be replaced.
    Broken {
        /// Why, for people.
        why: String,
        /// The identity, if that could be read.
        identity: Option<Identity>,
    },
}

/// An open directory.
pub struct OpenDir {
    /// The identity.
    pub dir: DataDir,
    /// The log.
    pub log: Log,
    /// The state.
    pub state: State,
    /// What opening took.
    pub report: DirReport,
}

/// What opening took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirReport {
    /// Files whose opening grew with the data: `state.redb` was walked. Stays 0.
    pub full_repairs: u64,
    /// `raft.redb` was walked, after a crash; bounded by what the log keeps.
    pub log_walked: bool,
    /// Records of the log behind the applied position: the most that can be applied again.
    pub replayable: u64,
}

/// Why the directory did not become part of a cluster.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdoptError {
    /// It belongs to another one.
    #[error(
        "this volume belongs to cluster {ours}, not to {theirs}: its data would be mixed up. \
         Give the node an empty volume, or the volume to its own cluster"
    )]
    OtherCluster {
        /// The cluster on the volume.
        ours: ClusterId,
        /// The other one.
        theirs: ClusterId,
    },
    /// The disk failed.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is opening a directory. A panic there is caught and becomes `Broken`:
/// a hook that ends the process at a panic must not do so while this is true.
pub fn is_opening() -> bool {
    OPENING.get()
}

impl DataDir {
    /// Opens the directory. A new one gets the member id `mint`, a random number that was
    /// never used before.
    ///
    /// # Errors
    /// `Io` when the disk fails, `UnknownFormat` and `Refused` for what another version or
    /// another group wrote: all of it is left as it is.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: &DirSettings,
        mint: MemberId,
    ) -> Result<Opened, OpenError> {
        OPENING.set(true);
        let opened = catch_unwind(AssertUnwindSafe(|| Self::try_open(&disk, settings, mint)));
        OPENING.set(false);
        let identity = || read_identity(&*disk).ok().flatten();
        match opened {
            Ok(Err(damaged @ OpenError::Damaged { .. })) => Ok(Opened::Broken {
                why: damaged.to_string(),
                identity: identity(),
            }),
            Ok(result) => result,
            Err(panic) => Ok(Opened::Broken {
                why: format!(
                    "the files cannot be opened ({}). Their data must be taken for lost: \
                     replace the member",
                    panic_text(&*panic)
                ),
                identity: identity(),
            }),
        }
    }

    fn try_open(
        disk: &Arc<dyn Disk>,
        settings: &DirSettings,
        mint: MemberId,
    ) -> Result<Opened, OpenError> {
        Receiving::remove_stray(&**disk).map_err(|e| OpenError::Io {
            file: FileName::Incoming,
            why: e.to_string(),
        })?;
        match read_identity(&**disk)? {
            None => Self::mint(disk, settings, mint),
            Some(identity) => Self::reopen(disk, settings, identity),
        }
    }

    /// The identity is written last: without it, files hold nothing that was ever promised.
    fn mint(
        disk: &Arc<dyn Disk>,
        settings: &DirSettings,
        member: MemberId,
    ) -> Result<Opened, OpenError> {
        let files = match open_files(disk, settings) {
            Err(OpenError::Damaged { .. }) => {
                for file in [FileName::Log, FileName::State] {
                    disk.remove(file).map_err(|e| OpenError::io(file, &e))?;
                }
                open_files(disk, settings)?
            }
            other => other?,
        };
        let bounds = files.log.reader().bounds();
        let voted = files.log.reader().vote().is_some();
        if voted || bounds.last.is_some() || files.state.applied().is_some() {
            return Ok(Opened::Broken {
                why: format!(
                    "{FILE} is missing, but the directory holds data: whose it is cannot be told. \
                     Restore the file or replace the member"
                ),
                identity: None,
            });
        }
        let dir = Self {
            disk: disk.clone(),
            identity: Identity {
                format: FORMAT,
                member,
                cluster: None,
                group: settings.group,
                admitted: false,
                recovery: None,
                given_up: BTreeMap::new(),
                outlived_by: None,
            },
        };
        dir.save(&dir.identity).map_err(|e| OpenError::Io {
            file: FILE,
            why: e.to_string(),
        })?;
        Ok(Opened::Fresh(files.with(dir)))
    }

    fn reopen(
        disk: &Arc<dyn Disk>,
        settings: &DirSettings,
        identity: Identity,
    ) -> Result<Opened, OpenError> {
        if identity.group != settings.group {
            return Err(OpenError::Refused(format!(
                "this volume belongs to group {}, but the node was started for group {} \
                 (setting FLOWER_GROUP)",
                identity.group, settings.group
            )));
        }
        if let Some(recovery) = identity.outlived_by {
            return Ok(Opened::Broken {
                why: format!(
                    "the group was recovered without this member ({recovery}): its data is of the \
                     group's earlier life and must never take part again. Give the node an empty \
                     volume"
                ),
                identity: Some(identity),
            });
        }
        for file in [FileName::Log, FileName::State] {
            if disk
                .len(file)
                .map_err(|e| OpenError::io(file, &e))?
                .is_none()
            {
                return Err(OpenError::damaged(
                    file,
                    format_args!("it is missing, but this is member {}", identity.member),
                ));
            }
        }
        let mut files = open_files(disk, settings)?;
        if let Some(why) = misfit(&files) {
            return Ok(Opened::Broken {
                why,
                identity: Some(identity),
            });
        }
        files.purge_behind_image().map_err(|e| OpenError::Io {
            file: FileName::Log,
            why: e.to_string(),
        })?;
        let fresh = identity.cluster.is_none();
        let opened = files.with(Self {
            disk: disk.clone(),
            identity,
        });
        Ok(if fresh {
            Opened::Fresh(opened)
        } else {
            Opened::Member(opened)
        })
    }

    /// Who the directory is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Makes the directory part of `cluster`, as it is since `recovery`, durably; nothing when
    /// it is already.
    ///
    /// # Errors
    /// `OtherCluster` when it belongs to another one, `Fatal` when the disk fails.
    pub fn adopt(
        &mut self,
        cluster: &ClusterId,
        recovery: Option<Recovery>,
    ) -> Result<(), AdoptError> {
        match &self.identity.cluster {
            Some(ours) if ours == cluster => Ok(()),
            Some(ours) => Err(AdoptError::OtherCluster {
                ours: ours.clone(),
                theirs: cluster.clone(),
            }),
            None => {
                let identity = Identity {
                    cluster: Some(cluster.clone()),
                    recovery,
                    ..self.identity.clone()
                };
                Ok(self.replace(identity)?)
            }
        }
    }

    /// Remembers, durably, that the directory's member has been in a configuration.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn admit(&mut self) -> Result<(), Fatal> {
        if self.identity.admitted {
            return Ok(());
        }
        self.replace(Identity {
            admitted: true,
            ..self.identity.clone()
        })
    }

    /// Notes that the group goes on without this data, durably: it is Broken from the next
    /// opening on.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn outlived(&mut self, by: Recovery) -> Result<(), Fatal> {
        self.replace(Identity {
            outlived_by: Some(by),
            ..self.identity.clone()
        })
    }

    /// Notes that the group goes on from this data, and without those members, durably.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn recovered(
        &mut self,
        recovery: Recovery,
        given_up: BTreeMap<MemberId, String>,
    ) -> Result<(), Fatal> {
        self.replace(Identity {
            recovery: Some(recovery),
            given_up,
            ..self.identity.clone()
        })
    }

    fn replace(&mut self, identity: Identity) -> Result<(), Fatal> {
        self.save(&identity)?;
        self.identity = identity;
        Ok(())
    }

    fn save(&self, identity: &Identity) -> Result<(), Fatal> {
        let bytes = serde_json::to_vec_pretty(identity)
            .map_err(|e| Fatal::with(FILE, "encoding the identity", e))?;
        self.disk
            .write_small_atomically(FILE, &bytes)
            .map_err(|e| Fatal::with(FILE, "saving the identity", e))
    }
}

struct Files {
    log: Log,
    state: State,
    report: DirReport,
}

impl Files {
    /// Finishes an installation that was cut off between its two files: the log begins behind
    /// the image.
    fn purge_behind_image(&mut self) -> Result<(), Fatal> {
        match self.state.applied() {
            Some(applied) if self.log.reader().bounds().last < Some(applied) => {
                self.log.purge(applied, &self.state.checkpointed())
            }
            _ => Ok(()),
        }
    }

    fn with(self, dir: DataDir) -> OpenDir {
        OpenDir {
            dir,
            log: self.log,
            state: self.state,
            report: self.report,
        }
    }
}

fn open_files(disk: &Arc<dyn Disk>, settings: &DirSettings) -> Result<Files, OpenError> {
    let log = Log::open(&**disk, settings.log_cache_bytes, settings.log_tail_bytes)?;
    let (state, opened) = State::open(
        disk.clone(),
        settings.page_cache_bytes,
        settings.value_cache_bytes,
    )?;
    let last = log.reader().bounds().last.map_or(0, |p| p.index + 1);
    let applied = state.applied().map_or(0, |p| p.index + 1);
    let report = DirReport {
        full_repairs: u64::from(opened.full_repair),
        log_walked: log.walked(),
        replayable: last.saturating_sub(applied),
    };
    Ok(Files { log, state, report })
}

/// Why log and state cannot be of one life, if so. The one case in which the state may lead is
/// an image whose log has not been purged yet.
fn misfit(files: &Files) -> Option<String> {
    let bounds = files.log.reader().bounds();
    let applied = files.state.applied();
    let installed = files.state.view().installed();
    let text = |p: Option<LogPosition>| p.map_or_else(|| "nothing".to_owned(), |p| p.to_string());
    if bounds.last < applied && applied != installed {
        return Some(format!(
            "{} has applied {}, but {} ends at {}: it lost what it had made durable. \
             Replace the member",
            FileName::State,
            text(applied),
            FileName::Log,
            text(bounds.last)
        ));
    }
    if bounds.purged.map(|p| p.index) > applied.map(|p| p.index) {
        return Some(format!(
            "{} has applied {}, but {} begins only behind {}: what lies between is lost. \
             Replace the member",
            FileName::State,
            text(applied),
            FileName::Log,
            text(bounds.purged)
        ));
    }
    None
}

fn read_identity(disk: &dyn Disk) -> Result<Option<Identity>, OpenError> {
    let Some(bytes) = disk.read_small(FILE).map_err(|e| OpenError::io(FILE, &e))? else {
        return Ok(None);
    };
    let json: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|e| OpenError::damaged(FILE, e))?;
    let format = json.get("format").and_then(serde_json::Value::as_u64);
    match format {
        Some(FORMAT) => serde_json::from_value(json)
            .map(Some)
            .map_err(|e| OpenError::damaged(FILE, e)),
        Some(found) => Err(OpenError::UnknownFormat {
            file: FILE,
            found,
            known: FORMAT,
        }),
        None => Err(OpenError::damaged(FILE, "it tells no format")),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}
