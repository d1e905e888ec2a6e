//! An API server in memory, as a tower service: what the operator uses and no more. A no-op
//! write does not move the resourceVersion, a changed spec moves the generation, the status is
//! apart, and every request is logged.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use futures::{StreamExt, channel::mpsc};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tower::service_fn;

/// `apps/v1/namespaces/shop/statefulsets/db-g0`: path below `/api/` or `/apis/`.
type Key = String;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// HTTP method.
    pub method: String,
    /// Path.
    pub path: String,
}

/// The stored objects.
#[derive(Debug, Default)]
pub struct State {
    /// By path.
    pub objects: BTreeMap<Key, Value>,
    /// Requests since the last `take_log`.
    pub log: Vec<Seen>,
    /// Groups whose CRDs exist.
    pub groups: Vec<String>,
    /// Answers to give instead, each once: part of a path, method, HTTP code.
    pub failures: VecDeque<(String, String, u16)>,
    watches: Vec<Watch>,
    version: u64,
    uid: u64,
}

/// An open watch: a collection's plural in any namespace, and the labels asked for.
#[derive(Debug)]
struct Watch {
    plural: String,
    labels: Vec<(String, String)>,
    events: mpsc::UnboundedSender<Value>,
}

/// Shared handle.
#[derive(Clone, Default)]
pub struct ApiServer(pub Arc<Mutex<State>>);

impl ApiServer {
    /// A client of it.
    pub fn client(&self) -> Client {
        let state = Arc::clone(&self.0);
        let service = service_fn(move |request: Request<Body>| {
            let state = Arc::clone(&state);
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body
                    .collect()
                    .await
                    .map(|all| all.to_bytes())
                    .unwrap_or_default();
                let sent = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let query = parts.uri.query().unwrap_or_default();
                let (code, body) = if query.contains("watch=true") {
                    (200, state.lock().watch(parts.uri.path(), query))
                } else {
                    let (code, answer) = state.lock().serve(&parts, sent);
                    let text = serde_json::to_vec(&answer).unwrap_or_default();
                    (code, Full::new(Bytes::from(text)).boxed_unsync())
                };
                let response = Response::builder()
                    .status(code)
                    .header("content-type", "application/json")
                    .body(body)
                    .expect("a response");
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "shop")
    }
    /// Requests since the last call.
    pub fn take_log(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().log)
    }
    /// Stores an object as somebody else would.
    pub fn put(&self, key: &str, object: Value) {
        self.0.lock().store(key, object);
    }
    /// An object.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.0.lock().objects.get(key).cloned()
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason, "message": message, "metadata": {},
    });
    (code, status)
}

impl State {
    /// Sends every later change of the collection; the client has listed before.
    fn watch(&mut self, path: &str, query: &str) -> UnsyncBoxBody<Bytes, Infallible> {
        self.log.push(Seen {
            method: "WATCH".to_owned(),
            path: path.to_owned(),
        });
        let (events, received) = mpsc::unbounded();
        self.watches.push(Watch {
            plural: path.rsplit('/').next().unwrap_or_default().to_owned(),
            labels: selector(query),
            events,
        });
        let frames = received.map(|event: Value| {
            let mut line = event.to_string();
            line.push('\n');
            Ok(Frame::data(Bytes::from(line)))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    fn tell(&mut self, key: &str, kind: &str, object: &Value) {
        let plural = key.rsplit('/').nth(1).unwrap_or_default();
        self.watches.retain(|watch| {
            let wanted = watch.plural == plural
                && watch.labels.iter().all(|(label, value)| {
                    object["metadata"]["labels"][label].as_str() == Some(value)
                });
            let event = json!({ "type": kind, "object": object });
            !watch.events.is_closed() && (!wanted || watch.events.unbounded_send(event).is_ok())
        });
    }

    fn serve(&mut self, parts: &http::request::Parts, sent: Value) -> (u16, Value) {
        let method = parts.method.to_string();
        let path = parts.uri.path().to_owned();
        self.log.push(Seen {
            method: method.clone(),
            path: path.clone(),
        });
        let planned = self
            .failures
            .iter()
            .position(|(part, how, _)| path.contains(part) && *how == method);
        if let Some((_, _, code)) = planned.and_then(|at| self.failures.remove(at)) {
            return failure(code, "Injected", "injected by the test");
        }
        let key = path
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/")
            .to_owned();
        // `/apis/group/version`: discovery.
        if path.starts_with("/apis/") && key.split('/').count() == 2 {
            return self.discovery(&key);
        }
        match method.as_str() {
            "GET" if !is_object(&key) => self.list(&key, parts.uri.query().unwrap_or_default()),
            "GET" => self.objects.get(&key).map_or_else(
                || failure(404, "NotFound", &key),
                |object| (200, object.clone()),
            ),
            "POST" if key.ends_with("/eviction") => {
                let (code, answer) = self.delete(key.trim_end_matches("/eviction"), &sent);
                let done = json!({ "apiVersion": "v1", "kind": "Status", "status": "Success", "metadata": {} });
                (code, if code == 200 { done } else { answer })
            }
            "POST" => self.create(&key, sent),
            "PUT" => self.replace(&key, sent),
            "PATCH" => self.patch(&key, parts, &sent),
            "DELETE" => self.delete(&key, &sent),
            other => failure(405, "MethodNotAllowed", other),
        }
    }

    fn discovery(&self, key: &str) -> (u16, Value) {
        if !self.groups.iter().any(|group| group == key) {
            return failure(404, "NotFound", key);
        }
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": key,
            "resources": [{
                "name": "podmonitors", "singularName": "", "namespaced": true,
                "kind": "PodMonitor", "verbs": ["get"],
            }],
        });
        (200, list)
    }

    fn list(&self, key: &str, query: &str) -> (u16, Value) {
        let wanted = selector(query);
        // `apps/v1/statefulsets` is the collection in all namespaces.
        let (group, plural) = key.rsplit_once('/').unwrap_or(("", key));
        let everywhere = format!("{group}/namespaces/");
        let of_plural = format!("/{plural}");
        let items: Vec<Value> = self
            .objects
            .iter()
            .filter(|(at, _)| {
                let (collection, _) = at.rsplit_once('/').unwrap_or_default();
                let anywhere = at.starts_with(&everywhere) && collection.ends_with(&of_plural);
                collection == key || anywhere
            })
            .map(|(_, object)| object.clone())
            .filter(|object| {
                wanted.iter().all(|(label, value)| {
                    object["metadata"]["labels"][label].as_str() == Some(value)
                })
            })
            .collect();
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": { "resourceVersion": self.version.to_string() }, "items": items,
        });
        (200, list)
    }

    fn create(&mut self, key: &str, object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or("generated")
            .to_owned();
        let key = format!("{key}/{name}");
        if self.objects.contains_key(&key) {
            return failure(409, "AlreadyExists", &key);
        }
        (201, self.store(&key, object))
    }

    /// Stores an object; new ones get uid, generation and time, changed ones a version.
    pub fn store(&mut self, key: &str, mut object: Value) -> Value {
        let before = self.objects.get(key).cloned();
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        match &before {
            None => {
                self.uid += 1;
                let uid = json!(format!("uid-{}", self.uid));
                metadata.entry("uid").or_insert(uid);
                metadata.entry("generation").or_insert(json!(1));
                metadata
                    .entry("creationTimestamp")
                    .or_insert(json!("2026-01-02T03:04:06Z"));
            }
            Some(before) => {
                for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
                    if let Some(kept) = before["metadata"].get(field) {
                        metadata.insert(field.to_owned(), kept.clone());
                    }
                }
            }
        }
        if before.as_ref() == Some(&object) {
            return object;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if let Some(before) = &before
            && before.get("spec") != object.get("spec")
        {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
            object["metadata"]["generation"] = json!(generation);
        }
        self.objects.insert(key.to_owned(), object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.tell(key, kind, &object);
        object
    }

    /// Removes an object at once.
    pub fn remove(&mut self, key: &str) {
        if let Some(object) = self.objects.remove(key) {
            self.version += 1;
            self.tell(key, "DELETED", &object);
        }
    }

    fn replace(&mut self, key: &str, sent: Value) -> (u16, Value) {
        let Some(base) = key.strip_suffix("/status") else {
            return failure(405, "MethodNotAllowed", "only the status is replaced");
        };
        let Some(mut object) = self.objects.get(base).cloned() else {
            return failure(404, "NotFound", base);
        };
        let seen = &sent["metadata"]["resourceVersion"];
        if !seen.is_null() && *seen != object["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the object has been modified");
        }
        object["status"] = sent["status"].clone();
        (200, self.store(base, object))
    }

    fn patch(&mut self, key: &str, parts: &http::request::Parts, sent: &Value) -> (u16, Value) {
        let kind = parts
            .headers
            .get("content-type")
            .and_then(|one| one.to_str().ok());
        let apply = kind == Some("application/apply-patch+yaml");
        let before = self.objects.get(key).cloned();
        let mut object = match (before, apply) {
            (Some(before), _) => before,
            (None, true) => json!({ "metadata": {} }),
            (None, false) => return failure(404, "NotFound", key),
        };
        let uid = &sent["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return failure(409, "Conflict", "another object of this name");
        }
        merge(&mut object, sent);
        if apply && key.contains("/statefulsets/") {
            // Fields of the one manager that it no longer sends go.
            object["spec"]["replicas"] = sent["spec"]["replicas"].clone();
            let restarted = object["spec"]["template"]["metadata"]["annotations"]
                .get("kubectl.kubernetes.io/restartedAt")
                .cloned();
            object["spec"]["template"] = sent["spec"]["template"].clone();
            if let Some(restarted) = restarted {
                object["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] =
                    restarted;
            }
        }
        (200, self.store(key, object))
    }

    fn delete(&mut self, key: &str, sent: &Value) -> (u16, Value) {
        let Some(object) = self.objects.get(key).cloned() else {
            return failure(404, "NotFound", key);
        };
        let wanted = sent
            .pointer("/preconditions/uid")
            .or_else(|| sent.pointer("/delete_options/preconditions/uid"))
            .or_else(|| sent.pointer("/deleteOptions/preconditions/uid"));
        if wanted.is_some_and(|uid| *uid != object["metadata"]["uid"]) {
            return failure(409, "Conflict", "another uid");
        }
        if key.contains("/persistentvolumeclaims/") && self.in_use(key) {
            // The claim's protection: it goes when no pod uses it.
            let mut object = object;
            object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:07Z");
            return (200, self.store(key, object));
        }
        self.remove(key);
        (200, object)
    }

    /// Whether the pod of a claim `data-<pod>` exists.
    fn in_use(&self, claim: &str) -> bool {
        let pod = claim.replace("/persistentvolumeclaims/data-", "/pods/");
        self.objects.contains_key(&pod)
    }
}

/// Whether the path names one object: collections end with a plural after the namespace.
fn is_object(key: &str) -> bool {
    let parts: Vec<&str> = key.split('/').collect();
    let at = parts.iter().position(|part| *part == "namespaces");
    at.is_some_and(|at| parts.len() > at + 3)
}

/// Labels that a list or watch asks for.
fn selector(query: &str) -> Vec<(String, String)> {
    form(query)
        .into_iter()
        .filter(|(name, _)| name == "labelSelector")
        .flat_map(|(_, labels)| {
            let pairs: Vec<String> = labels.split(',').map(str::to_owned).collect();
            pairs.into_iter().filter_map(|one| {
                let (label, value) = one.split_once('=')?;
                Some((label.to_owned(), value.to_owned()))
            })
        })
        .collect()
}

fn form(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), unescape(value)))
        .collect()
}

fn unescape(text: &str) -> String {
    text.replace("%2F", "/")
        .replace("%3D", "=")
        .replace("%2C", ",")
}

/// JSON merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let map = object.as_object_mut().expect("made an object");
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
