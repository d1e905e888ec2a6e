//! Messages between members and how they are framed. Every frame is bounded before it is
//! read; a malformed one is an error that drops the connection. No sockets are opened here.

use std::io;

use bytes::Bytes;
use flower_api::limits::{FRAME_BYTES, PEER_MESSAGE_BYTES};
use flower_store::LogPosition;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    contact::Standing,
    types::{WireVote, bad_data},
};

/// What a connection is for: one stream each, so that none waits behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// Log entries.
    Append,
    /// Signs of life of the leader.
    Heartbeat,
    /// Votes and transfers of leadership.
    Control,
    /// Where the log must be applied up to for a fresh read.
    Fence,
    /// One image.
    Image,
}

impl Purpose {
    /// Largest frame that the accepting side takes, bytes.
    pub(crate) fn max_frame(self) -> u64 {
        match self {
            Self::Append => PEER_MESSAGE_BYTES + FRAME_BYTES,
            Self::Image => 2 * FRAME_BYTES,
            Self::Heartbeat | Self::Control | Self::Fence => SMALL_FRAME,
        }
    }
}

/// Largest frame of everything but entries and images.
pub(crate) const SMALL_FRAME: u64 = 64 << 10;

/// What one member asks of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Entries, or none as a sign of life.
    Append {
        vote: WireVote,
        previous: Option<LogPosition>,
        committed: Option<LogPosition>,
        /// Encoded `LogRecord`s.
        records: Vec<Bytes>,
        /// What the leader's quorum vouches for, if it has one.
        standing: Option<Standing>,
    },
    /// A vote, or the question whether there would be one.
    Vote {
        pre: bool,
        vote: WireVote,
        last: Option<LogPosition>,
        transfer: bool,
    },
    /// Leadership is being handed over.
    Transfer {
        from: WireVote,
        to: u64,
        last: Option<LogPosition>,
    },
    /// The leader's read index.
    Fence,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// To `Append`.
    Append {
        answer: AppendAnswer,
        /// The member's volume has less free than its reserve.
        low_space: bool,
    },
    /// To `Vote`.
    Vote {
        vote: WireVote,
        granted: bool,
        last: Option<LogPosition>,
    },
    /// To `Transfer`.
    Transfer(Result<(), TransferRefusal>),
    /// To `Fence`: the index.
    Fence(u64),
    /// The request was understood and could not be served.
    Failed(String),
}

/// How far entries were taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AppendAnswer {
    Success,
    Partial(Option<LogPosition>),
    Conflict,
    HigherVote(WireVote),
}

/// Why leadership was not taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransferRefusal {
    VoteChanged {
        expected: WireVote,
        actual: WireVote,
    },
    LogNotFlushed {
        expected: Option<LogPosition>,
        actual: Option<LogPosition>,
    },
}

/// First frame of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageStart {
    /// The leader's vote.
    pub(crate) vote: WireVote,
    /// Estimate of all bytes, for the receiver's log.
    pub(crate) total_bytes: u64,
}

/// What the receiver of an image says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ImageAnswer {
    /// One more frame has been taken.
    Taken,
    /// Still installing.
    Working,
    /// Installed, or not needed; the receiver's vote.
    Done(WireVote),
    /// Not taken.
    Failed(String),
}

/// Bytes of a frame's head: length and number.
const HEAD: usize = 12;

/// Writes one frame. The number pairs answers with requests.
pub(crate) async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    number: u64,
    body: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(body.len())
        .map_err(|_| bad_data(format!("a message of {} bytes is too large", body.len())))?;
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&length.to_be_bytes());
    head[4..].copy_from_slice(&number.to_be_bytes());
    to.write_all(&head).await?;
    to.write_all(body).await?;
    to.flush().await
}

/// Reads one frame of at most `max` bytes; `None` at an orderly end of the stream.
pub(crate) async fn read_frame(
    from: &mut (impl AsyncRead + Unpin),
    max: u64,
) -> io::Result<Option<(u64, Bytes)>> {
    let mut head = [0; HEAD];
    let first = from.read(&mut head).await?;
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[first..]).await?;
    let mut length = [0; 4];
    length.copy_from_slice(&head[..4]);
    let mut number = [0; 8];
    number.copy_from_slice(&head[4..]);
    let length = u64::from(u32::from_be_bytes(length));
    if length > max {
        return Err(bad_data(format!(
            "a frame of {length} bytes; at most {max} are taken"
        )));
    }
    // The buffer grows with what arrives, not with what was announced.
    let mut body = Vec::with_capacity(length.min(FRAME_BYTES) as usize);
    from.take(length).read_to_end(&mut body).await?;
    if (body.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((u64::from_be_bytes(number), body.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_round_trip_and_bad_ones_are_errors() {
        let mut wire = Vec::new();
        write_frame(&mut wire, 7, b"hello").await.unwrap();
        write_frame(&mut wire, 8, b"").await.unwrap();
        let mut read = &wire[..];
        assert_eq!(
            read_frame(&mut read, 5).await.unwrap(),
            Some((7, Bytes::from_static(b"hello")))
        );
        assert_eq!(
            read_frame(&mut read, 5).await.unwrap(),
            Some((8, Bytes::new()))
        );
        assert_eq!(read_frame(&mut read, 5).await.unwrap(), None);
        for cut in 1..HEAD + 5 {
            assert!(
                read_frame(&mut &wire[..cut], 5).await.is_err(),
                "cut at {cut}"
            );
        }
        let why = read_frame(&mut &wire[..], 4).await.unwrap_err().to_string();
        assert!(why.contains("at most 4"), "{why}");
    }
}
