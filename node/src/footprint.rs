//! What the process takes of memory, by the host's own account. What the host does not tell
//! is absent, never 0.

use flower_api::report::Footprint;

use crate::{cgroup::Cgroup, host::Host};

/// The process and its container, measured.
#[derive(Debug, Clone)]
pub struct Meter {
    host: Host,
    cgroup: Option<Cgroup>,
}

impl Meter {
    /// Measures by `host`; `cgroup` is the one that limits this process.
    pub fn new(host: Host, cgroup: Option<Cgroup>) -> Self {
        Self { host, cgroup }
    }

    /// Resident set of this process, bytes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let kib = self.host.field("/proc/self/status", "VmRSS:")?;
        Some(kib * 1024)
    }

    /// Limit of the cgroup, bytes.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.cgroup.as_ref()?.limit_bytes()
    }

    /// Charged to the cgroup, bytes, file cache included.
    pub fn usage_bytes(&self) -> Option<u64> {
        self.cgroup.as_ref()?.usage_bytes(&self.host)
    }

    /// Processes killed in the cgroup for want of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        self.cgroup.as_ref()?.oom_kills(&self.host)
    }

    /// Fills in what the host knows; the rest of `footprint` stays.
    pub fn measure(&self, footprint: Footprint) -> Footprint {
        Footprint {
            resident_bytes: self.resident_bytes(),
            limit_bytes: self.limit_bytes(),
            cgroup_usage_bytes: self.usage_bytes(),
            ..footprint
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_tells_or_the_value_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let bare = Meter::new(Host::below(dir.path()), None).measure(Footprint::default());
        assert_eq!(bare.resident_bytes, None);
        assert_eq!(bare.limit_bytes, None);
        assert_eq!(bare.cgroup_usage_bytes, None);

        let status = dir.path().join("proc/self/status");
        std::fs::create_dir_all(status.parent().unwrap()).unwrap();
        std::fs::write(
            status,
            "Name:\tflower\nVmHWM:\t   9 kB\nVmRSS:\t  2048 kB\n",
        )
        .unwrap();
        let meter = Meter::new(Host::below(dir.path()), None);
        assert_eq!(meter.resident_bytes(), Some(2 << 20));
    }
}
