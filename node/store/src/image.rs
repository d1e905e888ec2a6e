//! An image: the whole state as a stream of frames, each at most 1 MiB and checksummed. Read
//! from a view, so that content and position always fit; received into a file of its own, so
//! that a bad or broken-off image never touches the state.

mod reader;
mod receiving;

use flower_api::limits::FRAME_BYTES;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

pub use self::{
    reader::ImageReader,
    receiving::{Received, Receiving, Verified},
};
use crate::{error::Fatal, record::LogPosition, view::Totals};

const MAGIC: &[u8; 8] = b"flwimage";
/// Format of images.
const FORMAT: u8 = 2;
const HASH_BYTES: usize = 8;

const HEADER: u8 = 1;
const RUN: u8 = 2;
const PIECE: u8 = 3;
const TRAILER: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    applied: Option<LogPosition>,
    revision: u64,
    membership: Option<(LogPosition, Vec<u8>)>,
    totals: Totals,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trailer {
    records: u64,
    hash: u128,
}

/// Why an image was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// Damaged, cut short, out of order, or of another format. The state is as it was.
    #[error("the image is refused: {0}. The state is unchanged; another image may be sent")]
    Refused(String),
    /// The disk failed.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

fn refused(why: impl Into<String>) -> ImageError {
    ImageError::Refused(why.into())
}

/// What a frame holds, to its last byte.
fn decoded<T: serde::de::DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(refused(format!("bytes behind the end of its {what}"))),
        Err(e) => Err(refused(format!("its {what} is damaged: {e}"))),
    }
}

fn open_frame(frame: &[u8]) -> Result<(u8, &[u8]), ImageError> {
    if frame.len() as u64 > FRAME_BYTES {
        return Err(refused(format!(
            "a frame is larger than {FRAME_BYTES} bytes"
        )));
    }
    let Some((content, hash)) = frame.split_last_chunk::<HASH_BYTES>() else {
        return Err(refused("a frame is cut short"));
    };
    if xxh3_64(content) != u64::from_be_bytes(*hash) {
        return Err(refused("a frame's checksum does not match"));
    }
    match content.split_first() {
        Some((kind, body)) => Ok((*kind, body)),
        None => Err(refused("a frame is cut short")),
    }
}
