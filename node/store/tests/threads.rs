//! What may move between the node's lanes.
#![allow(missing_docs)]

use flower_store::{
    DataDir, ImageReader, Log, LogReader, OpenDir, Receiving, SimDisk, State, StateView, Verified,
    Views,
};

#[test]
fn writers_move_and_readers_are_shared() {
    fn moves<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    moves::<State>();
    moves::<Receiving>();
    moves::<Verified>();
    moves::<ImageReader>();
    moves::<OpenDir>();
    shared::<DataDir>();
    shared::<Log>();
    shared::<LogReader>();
    shared::<StateView>();
    shared::<Views>();
    shared::<SimDisk>();
}
