//! The ports of a node.

/// Client API: HTTP/1.1 and h2c.
pub const CLIENT: u16 = 7700;
/// Peers: Raft messages and images, authenticated by a mutual HMAC.
pub const PEER: u16 = 7701;
/// Admin API, health and metrics.
pub const ADMIN: u16 = 7702;
