//! The addresses of the cluster: everything hangs on one bridge, and nothing leaves the machine.

/// The bridge that all pods are plugged into.
pub const BRIDGE: &str = "flower-e2e0";
/// The bridge's own address: the pods' gateway, and where API server, kubelets and DNS listen.
pub const GATEWAY: &str = "10.97.0.1";
/// All pods.
pub const PODS: &str = "10.97.0.0/16";
/// All Services.
pub const SERVICES: &str = "10.98.0.0/16";
/// The Service of the API server.
pub const API_SERVICE: &str = "10.98.0.1";
/// The API server's port on the bridge's address.
pub const API_PORT: u16 = 6443;
/// The port of etcd on loopback.
pub const ETCD_PORT: u16 = 12379;
/// The peer port of etcd on loopback, which nobody uses.
pub const ETCD_PEER_PORT: u16 = 12380;
/// The controller manager's port on loopback.
pub const CONTROLLERS_PORT: u16 = 10257;
/// The scheduler's port on loopback.
pub const SCHEDULER_PORT: u16 = 10259;
/// The proxy's health port on loopback.
pub const PROXY_HEALTH_PORT: u16 = 10256;
/// The proxy's metrics port on loopback.
pub const PROXY_METRICS_PORT: u16 = 10249;
/// The DNS server's readiness port on loopback.
pub const DNS_READY_PORT: u16 = 18181;
/// Prometheus on loopback.
pub const PROMETHEUS_PORT: u16 = 19090;

/// One node: a kubelet and a containerd of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Counts from 1.
    pub number: u16,
}

impl Node {
    /// The three nodes.
    pub const ALL: [Self; 3] = [Self { number: 1 }, Self { number: 2 }, Self { number: 3 }];

    /// Its name in Kubernetes.
    pub fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// The kubelet's port on the bridge's address.
    pub fn kubelet_port(self) -> u16 {
        10270 + self.number
    }

    /// The kubelet's health port on loopback.
    pub fn health_port(self) -> u16 {
        10280 + self.number
    }

    /// Its cgroup, in every controller.
    pub fn cgroup(self) -> String {
        format!("/flower-e2e/{}", self.name())
    }
}

/// Every port that the harness listens on, with its address.
pub fn ports() -> Vec<(&'static str, u16)> {
    let mut ports = vec![(GATEWAY, API_PORT), (GATEWAY, 53)];
    let loopback = [
        ETCD_PORT,
        ETCD_PEER_PORT,
        CONTROLLERS_PORT,
        SCHEDULER_PORT,
        PROXY_HEALTH_PORT,
        PROXY_METRICS_PORT,
        DNS_READY_PORT,
        PROMETHEUS_PORT,
    ];
    ports.extend(loopback.map(|port| ("127.0.0.1", port)));
    for node in Node::ALL {
        ports.push((GATEWAY, node.kubelet_port()));
        ports.push(("127.0.0.1", node.health_port()));
    }
    ports
}
