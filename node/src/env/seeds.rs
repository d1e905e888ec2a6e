//! Randomness as a tree of seeds: a child depends on its parent and its role alone, so that
//! one number replays a whole simulated world. In production the root comes from the
//! operating system.

use std::io;

use rand::{SeedableRng, TryRngCore, rngs::StdRng};
use sha2::{Digest, Sha256};

/// A seed with children.
#[derive(Clone)]
pub struct SeedTree([u8; 32]);

impl SeedTree {
    /// A root for simulated worlds and tests.
    pub fn from_number(seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"flower-seed");
        hash.update(seed.to_be_bytes());
        Self(hash.finalize().into())
    }

    /// A root that nobody can guess.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn from_os() -> io::Result<Self> {
        let mut seed = [0; 32];
        rand::rngs::OsRng
            .try_fill_bytes(&mut seed)
            .map_err(|e| io::Error::other(format!("no randomness from the system: {e}")))?;
        Ok(Self(seed))
    }

    /// The seed for a role; the same role always gives the same one.
    #[must_use]
    pub fn child(&self, role: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(role.as_bytes());
        Self(hash.finalize().into())
    }

    /// A generator that begins at this seed. Cryptographically strong when the root is.
    pub fn rng(&self) -> StdRng {
        StdRng::from_seed(self.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::*;

    #[test]
    fn children_depend_on_root_and_role_alone() {
        let draw = |seed, role| SeedTree::from_number(seed).child(role).rng().next_u64();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }
}
