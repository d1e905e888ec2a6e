//! The container's memory: its limit, what is used of it, and how often the kernel killed for
//! it; cgroup v2 and v1. Reads through [`Host`] only; what cannot be known is `None`.

use std::path::{Path, PathBuf};

use crate::host::Host;

/// Above this a cgroup v1 limit means "none": the kernel shows the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;

/// Which interface the memory controller is reached by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }
    fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }
    fn events_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.oom_control",
            Self::V2 => "memory.events",
        }
    }
}

/// Where the memory limit of this process comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitSource {
    /// The tightest cgroup around the process.
    Cgroup(PathBuf),
    /// No cgroup limits it: the host's memory.
    Host,
    /// The setting FLOWER_MEMORY_LIMIT_BYTES.
    Setting,
}

impl std::fmt::Display for LimitSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cgroup(dir) => write!(f, "cgroup {}", dir.display()),
            Self::Host => f.write_str("host memory"),
            Self::Setting => f.write_str("FLOWER_MEMORY_LIMIT_BYTES"),
        }
    }
}

/// The cgroup whose memory limit is the tightest around this process; the process's own one
/// when none is limited.
#[derive(Debug, Clone)]
pub struct Cgroup {
    version: Version,
    dir: PathBuf,
    limit: Option<u64>,
}

impl Cgroup {
    /// Finds it by `/proc/self/cgroup` and `/proc/self/mountinfo`. `None` when no memory
    /// controller is mounted where the process can see it.
    pub fn find(host: &Host) -> Option<Self> {
        let groups = host.read("/proc/self/cgroup").ok()?;
        let mounts = host.read("/proc/self/mountinfo").ok()?;
        [Version::V2, Version::V1].into_iter().find_map(|version| {
            let path = own_path(&groups, version)?;
            let (root, mount) = memory_mount(&mounts, version)?;
            Self::walk(
                host,
                version,
                &mount,
                &below_mount(host, &path, &root, &mount),
            )
        })
    }

    /// From the process's own directory up to the mount; `None` when no directory has the
    /// controller's files.
    fn walk(host: &Host, version: Version, mount: &Path, own: &Path) -> Option<Self> {
        let mut best: Option<Self> = None;
        let mut any = false;
        for dir in own.ancestors().take_while(|dir| dir.starts_with(mount)) {
            any |= host.read(dir.join(version.usage_file())).is_ok();
            let limit = directory_limit(host, version, dir);
            let tighter = match (&best, limit) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(best), Some(limit)) => best.limit.is_none_or(|known| limit < known),
            };
            if tighter {
                best = Some(Self {
                    version,
                    dir: dir.to_owned(),
                    limit,
                });
            }
        }
        best.or_else(|| {
            any.then(|| Self {
                version,
                dir: own.to_owned(),
                limit: None,
            })
        })
    }

    /// The limit in bytes, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// Bytes charged to it now, the kernel's file cache included.
    pub fn usage_bytes(&self, host: &Host) -> Option<u64> {
        host.number(self.dir.join(self.version.usage_file()))
    }

    /// Processes killed in it for want of memory since it was made.
    pub fn oom_kills(&self, host: &Host) -> Option<u64> {
        host.field(self.dir.join(self.version.events_file()), "oom_kill")
    }
}

/// The memory that this process may use and where that number comes from. `None` when the
/// host does not even tell its own memory.
pub fn memory_limit(host: &Host, cgroup: Option<&Cgroup>) -> Option<(u64, LimitSource)> {
    let total = host
        .field("/proc/meminfo", "MemTotal:")
        .map(|kib| kib * 1024);
    let limited = cgroup.and_then(|c| Some((c.limit_bytes()?, c.dir.clone())));
    match (limited, total) {
        (Some((limit, dir)), total) if total.is_none_or(|total| limit <= total) => {
            Some((limit, LimitSource::Cgroup(dir)))
        }
        (_, total) => Some((total?, LimitSource::Host)),
    }
}

/// The process's path in the hierarchy: `0::/path` (v2) or `5:cpu,memory:/path` (v1).
fn own_path(groups: &str, version: Version) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = match version {
            Version::V2 => id == "0" && controllers.is_empty(),
            Version::V1 => controllers.split(',').any(|c| c == "memory"),
        };
        fits.then(|| PathBuf::from(path))
    })
}

/// Root within the hierarchy and mount point of the memory controller.
fn memory_mount(mounts: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut words = left.split(' ').skip(3);
        let (root, mount) = (words.next()?, words.next()?);
        let mut words = right.split(' ');
        let (kind, options) = (words.next()?, words.nth(1).unwrap_or_default());
        let fits = match version {
            Version::V2 => kind == "cgroup2",
            Version::V1 => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        };
        fits.then(|| (root.into(), mount.into()))
    })
}

/// The process's directory as seen below the mount. Without a cgroup namespace of its own, a
/// container's path is the host's while its mount shows only its own part of the tree.
fn below_mount(host: &Host, path: &Path, root: &Path, mount: &Path) -> PathBuf {
    let within = path.strip_prefix(root).or_else(|_| path.strip_prefix("/"));
    let dir = mount.join(within.unwrap_or(Path::new("")));
    if host.is_dir(&dir) {
        dir
    } else {
        mount.to_owned()
    }
}

fn directory_limit(host: &Host, version: Version, dir: &Path) -> Option<u64> {
    let own = host.number(dir.join(version.limit_file()));
    let above = match version {
        // Ancestors that the mount does not show.
        Version::V1 => host.field(dir.join("memory.stat"), "hierarchical_memory_limit"),
        Version::V2 => None,
    };
    let tightest = own.into_iter().chain(above).min();
    tightest.filter(|&limit| limit < UNLIMITED)
}

#[cfg(test)]
mod tests;
