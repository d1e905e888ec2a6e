//! Recorded trees of files: containers and hosts of both cgroup versions.

use super::*;

const MIB: u64 = 1 << 20;
const V2_MOUNT: &str =
    "30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate\n";
const V1_HOST_MOUNT: &str = "29 25 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
    34 29 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    36 29 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n";

fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let host = Host::below(dir.path());
    (dir, host)
}

#[test]
fn v2_in_a_container_with_its_own_namespace() {
    let (_dir, host) = host(&[
        ("/proc/self/cgroup", "0::/\n"),
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/meminfo", MEMINFO),
        ("/sys/fs/cgroup/memory.max", "536870912\n"),
        ("/sys/fs/cgroup/memory.current", "104857600\n"),
        (
            "/sys/fs/cgroup/memory.events",
            "low 0\nmax 12\noom 3\noom_kill 2\n",
        ),
    ]);
    let cgroup = Cgroup::find(&host).unwrap();
    assert_eq!(cgroup.limit_bytes(), Some(512 * MIB));
    assert_eq!(cgroup.usage_bytes(&host), Some(100 * MIB));
    assert_eq!(cgroup.oom_kills(&host), Some(2));
    let (bytes, source) = memory_limit(&host, Some(&cgroup)).unwrap();
    assert_eq!(bytes, 512 * MIB);
    assert_eq!(source, LimitSource::Cgroup("/sys/fs/cgroup".into()));
}

#[test]
fn v2_takes_the_tightest_ancestor() {
    let (_dir, host) = host(&[
        ("/proc/self/cgroup", "0::/kubepods/pod1/abc\n"),
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/meminfo", MEMINFO),
        ("/sys/fs/cgroup/kubepods/memory.max", "1073741824\n"),
        ("/sys/fs/cgroup/kubepods/pod1/memory.max", "268435456\n"),
        ("/sys/fs/cgroup/kubepods/pod1/memory.current", "77\n"),
        ("/sys/fs/cgroup/kubepods/pod1/abc/memory.max", "max\n"),
        ("/sys/fs/cgroup/kubepods/pod1/abc/memory.current", "5\n"),
    ]);
    let cgroup = Cgroup::find(&host).unwrap();
    assert_eq!(cgroup.limit_bytes(), Some(256 * MIB));
    assert_eq!(
        cgroup.usage_bytes(&host),
        Some(77),
        "of the cgroup that limits"
    );
    assert_eq!(cgroup.oom_kills(&host), None, "not told, so absent");
}

#[test]
fn equal_limits_count_as_the_own_cgroups() {
    let (_dir, host) = host(&[
        ("/proc/self/cgroup", "0::/pod/own\n"),
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/sys/fs/cgroup/pod/memory.max", "1048576\n"),
        ("/sys/fs/cgroup/pod/own/memory.max", "1048576\n"),
        ("/sys/fs/cgroup/pod/own/memory.current", "9\n"),
    ]);
    assert_eq!(Cgroup::find(&host).unwrap().usage_bytes(&host), Some(9));
}

#[test]
fn v1_on_a_host_and_in_a_container_that_sees_host_paths() {
    let files = [
        (
            "/proc/self/cgroup",
            "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
        ),
        ("/proc/meminfo", MEMINFO),
    ];
    let (_dir, on_host) = host(&[
        files[0],
        files[1],
        ("/proc/self/mountinfo", V1_HOST_MOUNT),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
            "134217728\n",
        ),
        (
            "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes",
            "1000\n",
        ),
        (
            "/sys/fs/cgroup/memory/docker/abc/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
        ),
    ]);
    let cgroup = Cgroup::find(&on_host).unwrap();
    assert_eq!(cgroup.limit_bytes(), Some(128 * MIB));
    assert_eq!(cgroup.oom_kills(&on_host), Some(7));

    // The mount shows the container's own part: its root is the host's path.
    let (_dir, inside) = host(&[
        files[0],
        files[1],
        (
            "/proc/self/mountinfo",
            "36 29 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        ),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
    ]);
    assert_eq!(
        Cgroup::find(&inside).unwrap().limit_bytes(),
        Some(128 * MIB)
    );
}

#[test]
fn v1_sees_a_hidden_ancestor_by_the_hierarchical_limit() {
    let (_dir, host) = host(&[
        ("/proc/self/cgroup", "9:memory:/\n"),
        ("/proc/self/mountinfo", V1_HOST_MOUNT),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "/sys/fs/cgroup/memory/memory.stat",
            "cache 5\nhierarchical_memory_limit 67108864\n",
        ),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
    ]);
    assert_eq!(Cgroup::find(&host).unwrap().limit_bytes(), Some(64 * MIB));
}

#[test]
fn without_a_limit_the_hosts_memory_counts_and_nothing_is_invented() {
    let (_dir, host_) = host(&[
        ("/proc/self/cgroup", "0::/user.slice\n"),
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/meminfo", MEMINFO),
        ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ("/sys/fs/cgroup/user.slice/memory.current", "12345\n"),
    ]);
    let cgroup = Cgroup::find(&host_).unwrap();
    assert_eq!(cgroup.limit_bytes(), None);
    assert_eq!(cgroup.usage_bytes(&host_), Some(12345));
    let (bytes, source) = memory_limit(&host_, Some(&cgroup)).unwrap();
    assert_eq!((bytes, source), (16_384_000 * 1024, LimitSource::Host));

    let (_dir, bare) = host(&[]);
    assert!(Cgroup::find(&bare).is_none());
    assert!(memory_limit(&bare, None).is_none());
}

#[test]
fn a_limit_above_the_hosts_memory_is_the_hosts_memory() {
    let (_dir, host) = host(&[
        ("/proc/self/cgroup", "0::/\n"),
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/meminfo", "MemTotal: 1024 kB\n"),
        ("/sys/fs/cgroup/memory.max", "536870912\n"),
    ]);
    let cgroup = Cgroup::find(&host);
    assert_eq!(
        memory_limit(&host, cgroup.as_ref()),
        Some((MIB, LimitSource::Host))
    );
}
