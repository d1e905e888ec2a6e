//! Between a watch and its connection: at most one frame being written and one that waits.
//! The connection takes bytes when it has room for them, so what a slow client costs is
//! bounded by these two frames.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use flower_api::Revision;
use http_body::{Body, Frame as HttpFrame};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::frame::Frame;
use crate::env::{Clock, Env, Mono};

/// Frames at a time: one being written, one waiting.
const FRAMES: usize = 2;
/// Bytes handed over at once.
const CHUNK: usize = 32 << 10;

/// The watch's end.
#[derive(Clone)]
pub struct Outbox(Arc<Shared>);

/// The connection's end: the body of the answer.
pub struct Stream(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    /// Something was taken, or the connection is gone.
    taken: Notify,
    /// Something was put in.
    filled: Notify,
}

#[derive(Default)]
struct Inner {
    frames: VecDeque<Waiting>,
    /// Chunks taken.
    count: u64,
    /// Since when nothing of what waits was taken.
    since: Option<Mono>,
    /// The revision that the last frame with one left the client at.
    told: Revision,
    ending: Ending,
    dropped: bool,
    reader: Option<Waker>,
}

struct Waiting {
    pieces: VecDeque<Bytes>,
    room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// After what is in it.
    Orderly,
    /// At once.
    Cut,
}

/// Both ends.
pub fn outbox(clock: Arc<dyn Clock>) -> (Outbox, Stream) {
    let shared = Arc::new(Shared {
        clock,
        inner: Mutex::default(),
        taken: Notify::new(),
        filled: Notify::new(),
    });
    (Outbox(shared.clone()), Stream(shared))
}

impl Outbox {
    /// Puts a frame in. `room` is given back when it is written.
    pub fn put(&self, frame: Frame, room: Option<OwnedSemaphorePermit>) {
        let now = self.0.clock.mono();
        let mut inner = self.0.inner.lock();
        inner.since.get_or_insert(now);
        inner.told = frame.to().unwrap_or(inner.told);
        let pieces = frame.into_pieces().into();
        inner.frames.push_back(Waiting { pieces, room });
        inner.wake();
        drop(inner);
        self.0.filled.notify_one();
    }

    /// Puts a frame in when nothing waits.
    pub fn put_if_idle(&self, frame: Frame) {
        if self.0.inner.lock().frames.is_empty() {
            self.put(frame, None);
        }
    }

    /// The revision that its client is at once everything put in is read.
    pub fn told(&self) -> Revision {
        self.0.inner.lock().told
    }

    /// Resolves when a frame may be put in.
    pub async fn has_room(&self) {
        loop {
            let taken = self.0.taken.notified();
            if self.0.inner.lock().frames.len() < FRAMES {
                return;
            }
            taken.await;
        }
    }

    /// Resolves when the connection is gone.
    pub async fn dropped(&self) {
        loop {
            let taken = self.0.taken.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            if self.0.inner.lock().dropped {
                return;
            }
            taken.await;
        }
    }

    /// Since when nothing of what waits was taken, when it takes up room that others need.
    pub fn holds_room_since(&self) -> Option<Mono> {
        let inner = self.0.inner.lock();
        let holds = inner.frames.iter().any(|frame| frame.room.is_some());
        inner.since.filter(|_| holds)
    }

    /// Resolves when it is cut off.
    pub async fn is_cut(&self) {
        loop {
            let taken = self.0.taken.notified();
            if self.0.inner.lock().ending == Ending::Cut {
                return;
            }
            taken.await;
        }
    }

    /// Resolves when nothing of what waits was taken for `limit`.
    pub async fn stalled(&self, env: &Env, limit: Duration) {
        loop {
            let before = loop {
                let filled = self.0.filled.notified();
                if let Some(count) = self.waiting() {
                    break count;
                }
                filled.await;
            };
            env.sleep(limit).await;
            if self.waiting() == Some(before) {
                return;
            }
        }
    }

    /// Chunks taken so far, when something waits.
    fn waiting(&self) -> Option<u64> {
        let inner = self.0.inner.lock();
        (!inner.frames.is_empty()).then_some(inner.count)
    }

    /// The stream ends after what is in it.
    pub fn finish(&self) {
        self.end(Ending::Orderly);
    }

    /// The stream is cut off, and what is in it forgotten.
    pub fn cut(&self) {
        self.end(Ending::Cut);
        self.0.inner.lock().frames.clear();
        self.0.taken.notify_waiters();
    }

    fn end(&self, how: Ending) {
        let mut inner = self.0.inner.lock();
        if inner.ending == Ending::Cut {
            return;
        }
        inner.ending = how;
        inner.wake();
    }
}

impl Inner {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// The next bytes.
    fn next(&mut self, now: Mono) -> Option<Bytes> {
        let frame = self.frames.front_mut()?;
        let mut piece = frame.pieces.pop_front().unwrap_or_default();
        if piece.len() > CHUNK {
            let rest = piece.split_off(CHUNK);
            frame.pieces.push_front(rest);
        }
        if frame.pieces.is_empty() {
            self.frames.pop_front();
        }
        self.count += 1;
        self.since = (!self.frames.is_empty()).then_some(now);
        Some(piece)
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<HttpFrame<Bytes>, io::Error>>> {
        let mut inner = self.0.inner.lock();
        if inner.ending == Ending::Cut {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        let now = self.0.clock.mono();
        if let Some(bytes) = inner.next(now) {
            drop(inner);
            self.0.taken.notify_waiters();
            return Poll::Ready(Some(Ok(HttpFrame::data(bytes))));
        }
        if inner.ending == Ending::Orderly {
            return Poll::Ready(None);
        }
        inner.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.dropped = true;
        inner.frames.clear();
        drop(inner);
        self.0.taken.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    fn frame(n: u64) -> Frame {
        Frame::same(Revision(n))
    }

    async fn read(stream: &mut Stream) -> Option<String> {
        let bytes = stream.frame().await?.ok()?.into_data().ok()?;
        String::from_utf8(bytes.to_vec()).ok()
    }

    #[tokio::test]
    async fn one_frame_is_written_and_one_waits() {
        let (outbox, mut stream) = outbox(Arc::new(crate::env::RealClock::new()));
        for n in 0..2 {
            outbox.has_room().await;
            outbox.put(frame(n), None);
        }
        assert!(outbox.has_room().now_or_never().is_none());
        outbox.put_if_idle(frame(2));
        assert_eq!(
            outbox.told(),
            Revision(1),
            "what was not put in is not told"
        );
        assert!(read(&mut stream).await.unwrap().contains("\"to\":0"));
        outbox.has_room().await;
        assert!(read(&mut stream).await.unwrap().contains("\"to\":1"));
        outbox.put_if_idle(Frame::comment());
        outbox.finish();
        assert_eq!(read(&mut stream).await.unwrap(), ":\n\n");
        assert_eq!(read(&mut stream).await, None);
        assert!(outbox.dropped().now_or_never().is_none());
        drop(stream);
        outbox.dropped().await;
    }

    #[tokio::test]
    async fn what_is_cut_off_is_forgotten() {
        let (outbox, mut stream) = outbox(Arc::new(crate::env::RealClock::new()));
        outbox.put(frame(1), None);
        outbox.cut();
        assert!(stream.frame().await.unwrap().is_err());
    }
}
