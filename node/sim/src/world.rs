//! The world of one simulated node: turmoil's sockets, virtual time, a simulated disk.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use flower_node::env::{
    ByteStream, Clock, Env, Fut, Listener, Mono, Net, NoProbe, RealClock, SeedTree, Tasks,
};
use flower_store::SimDisk;
use turmoil::net::{TcpListener, TcpStream};

use crate::lanes::SimLanes;

/// Milliseconds since 1970 at which simulated worlds begin.
const BEGINNING_MS: u64 = 1_700_000_000_000;

/// The world of a node of this `name`, over a disk that outlives it. To be called inside the
/// simulated host.
pub fn env(seeds: &SeedTree, name: &str, disk: &SimDisk) -> Env {
    let seeds = seeds.child(name);
    Env {
        clock: Arc::new(SimClock(RealClock::new())),
        net: Arc::new(SimNet),
        disk: Arc::new(disk.clone()),
        lanes: Arc::new(SimLanes::new(&seeds)),
        tasks: Tasks::new(),
        probe: Arc::new(NoProbe),
        seeds,
    }
}

/// Virtual time: tokio's clock is turmoil's inside a host; the wall clock follows it.
struct SimClock(RealClock);

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        let elapsed = turmoil::sim_elapsed().unwrap_or(Duration::ZERO);
        BEGINNING_MS + u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
    fn mono(&self) -> Mono {
        self.0.mono()
    }
    fn sleep_until(&self, at: Mono) -> Fut<'static, ()> {
        self.0.sleep_until(at)
    }
}

/// Turmoil's sockets.
struct SimNet;

impl Net for SimNet {
    fn listen(&self, at: SocketAddr) -> Fut<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(at).await?;
            Ok(Box::new(SimListener(listener)) as Box<dyn Listener>)
        })
    }

    fn dial(&self, to: &str) -> Fut<'_, io::Result<Box<dyn ByteStream>>> {
        let to = to.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect(to).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

struct SimListener(TcpListener);

impl Listener for SimListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
    fn accept(&mut self) -> Fut<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>> {
        Box::pin(async {
            let (stream, from) = self.0.accept().await?;
            Ok((Box::new(stream) as Box<dyn ByteStream>, from))
        })
    }
}
