//! The library's contract suite over our log and state.

use std::sync::Arc;

use flower_api::ids::MemberId;
use flower_store::{Log, RealDisk, State};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};

use crate::{
    consensus::{
        log::{FlushedLog, LogStore},
        state::StateStore,
        types::Types,
    },
    env::Env,
};

struct Builder;

impl StoreBuilder<Types, LogStore, StateStore, tempfile::TempDir> for Builder {
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, LogStore, StateStore), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let log = Log::open(&*disk, 1 << 20, 1 << 16).unwrap();
        let (state, _) = State::open(disk.clone(), 1 << 20, 1 << 20).unwrap();
        let env = Env::real(disk).unwrap();
        let log = FlushedLog::new(&env, MemberId(1), log);
        let state = StateStore::new(&env, state, log.clone(), 1 << 20)
            .await
            .unwrap();
        state.forget_log();
        Ok((dir, LogStore::without_state(log), state))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_storage_keeps_the_librarys_contract() {
    Suite::test_all(Builder).await.unwrap();
}
