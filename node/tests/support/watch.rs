//! Watches as a client sees them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::{Got, Http};

/// A frame of a watch.
#[derive(Debug, Clone)]
pub struct Event {
    pub name: String,
    pub id: Option<u64>,
    pub data: Value,
}

/// An open watch.
pub struct Watch {
    body: hyper::body::Incoming,
    read: String,
    pub headers: HeaderMap,
}

impl Watch {
    /// The next frame; nothing at the end, or when the connection breaks.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((frame, rest)) = self.read.split_once("\n\n") {
                let frame = parse(frame);
                self.read = rest.to_owned();
                match frame {
                    Some(frame) => return Some(frame),
                    None => continue,
                }
            }
            let next = tokio::time::timeout(Duration::from_secs(30), self.body.frame());
            let bytes = next
                .await
                .expect("a frame in time")?
                .ok()?
                .into_data()
                .ok()?;
            self.read += std::str::from_utf8(&bytes).expect("UTF-8 at chunks of the tests");
        }
    }

    /// The next frame of this kind; others are passed over.
    pub async fn find(&mut self, name: &str) -> Event {
        loop {
            match self.next().await {
                Some(event) if event.name == name => return event,
                Some(_) => {}
                None => panic!("the stream ended before '{name}'"),
            }
        }
    }

    /// The next frame that is no sign of life.
    pub async fn news(&mut self) -> Event {
        loop {
            match self.next().await {
                Some(event) if event.name == "same" => {}
                Some(event) => return event,
                None => panic!("the stream ended"),
            }
        }
    }
}

/// A comment is no frame.
fn parse(frame: &str) -> Option<Event> {
    let field = |name: &str| {
        let mut lines = frame.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    Some(Event {
        name: field("event: ")?,
        id: field("id: ").map(|id| id.parse().unwrap()),
        data: serde_json::from_str(&field("data: ")?).unwrap(),
    })
}

impl Http {
    /// Opens a watch, or gives the refusal.
    pub async fn try_watch(&self, headers: &[(&str, &str)], body: &str) -> Result<Watch, Got> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}/v1/p/_/watch", self.calls));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.to_owned().into())).unwrap();
        let Ok(response) = self.client.request(request).await else {
            return Err(Got {
                status: StatusCode::BAD_GATEWAY,
                headers: HeaderMap::new(),
                body: Bytes::new(),
            });
        };
        let (head, body) = response.into_parts();
        if head.status == StatusCode::OK {
            return Ok(Watch {
                body,
                read: String::new(),
                headers: head.headers,
            });
        }
        let body = body.collect().await;
        Err(Got {
            status: head.status,
            headers: head.headers,
            body: body.map_or_else(|_| Bytes::new(), |body| body.to_bytes()),
        })
    }

    pub async fn watch(&self, queries: Value) -> Watch {
        let body = json!({ "queries": queries }).to_string();
        match self.try_watch(&[], &body).await {
            Ok(watch) => watch,
            Err(got) => panic!("{}", String::from_utf8_lossy(&got.body)),
        }
    }

    pub async fn change_watch(&self, id: &str, change: Value) -> Got {
        let path = format!("/v1/p/_/watch/{id}");
        self.send(self.calls, Method::PATCH, &path, &[], change.to_string())
            .await
    }

    /// A metric's value.
    pub async fn metric(&self, name: &str) -> u64 {
        let got = self.admin_get("/metrics").await;
        let text = String::from_utf8(got.body.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name} in {text}")) as u64
    }
}
