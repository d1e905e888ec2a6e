//! The functions that a script may call: texts and numbers in, texts and numbers out. Each
//! acts on the transaction of the call that runs; none calls back into the script.

use std::{cell::RefCell, rc::Rc};

use rquickjs::{Ctx, Error, Exception, Function, Object};

use super::{CallError, meter::Meter};
use crate::{
    cursor::Wanted,
    derived::{Ended, Step},
    problem,
    transaction::{DbError, Transaction},
};

/// Lines that one call may log.
const MOST_LINES: u32 = 100;
/// Bytes of a line that are kept.
const LINE_BYTES: usize = 4 << 10;

/// The call that runs.
pub(super) struct Running {
    pub transaction: Transaction,
    /// Ends the call, whatever the handler makes of it.
    pub failure: Option<CallError>,
    /// Shown when the handler does not catch what a bad paging cursor threw.
    pub bad_cursor: Option<String>,
    pub lines: u32,
}

/// Where the host functions find the call that runs; empty while a bundle loads.
pub(super) type Slot = Rc<RefCell<Option<Running>>>;

type Answer<T> = Result<T, DbError>;

/// Runs `act` on the transaction; its failures become exceptions of the script.
fn with<T>(
    ctx: &Ctx<'_>,
    slot: &Slot,
    act: impl FnOnce(&mut Transaction) -> Answer<T>,
) -> Result<T, Error> {
    let mut slot = slot.borrow_mut();
    let Some(running) = slot.as_mut() else {
        return Err(Exception::throw_type(
            ctx,
            "the database is there only while a function runs",
        ));
    };
    if running.failure.is_some() {
        return Err(Exception::throw_internal(
            ctx,
            "the call has already failed",
        ));
    }
    act(&mut running.transaction).map_err(|error| match error {
        DbError::Wrong(why) => Exception::throw_type(ctx, &why),
        DbError::BadCursor(why) => {
            running.bad_cursor = Some(why.clone());
            Exception::throw_range(ctx, &why)
        }
        DbError::Stop(failure) => {
            let text = failure.to_string();
            running.failure = Some(*failure);
            Exception::throw_internal(ctx, &text)
        }
    })
}

/// JavaScript's numbers, where -1 stands for no limit.
fn limit(number: f64) -> Option<u64> {
    (number >= 0.0).then_some(number as u64)
}

/// Adds a function that acts on the transaction.
macro_rules! acts {
    ($object:expr, $ctx:expr, $slot:expr, $name:literal, |$db:ident $(, $arg:ident: $ty:ty)*| $act:expr) => {{
        let slot = Rc::clone($slot);
        let function = Function::new($ctx.clone(), move |ctx: Ctx<'_> $(, $arg: $ty)*| {
            with(&ctx, &slot, |$db| $act)
        })?;
        $object.set($name, function)?;
    }};
}

/// The object with all host functions on data.
pub(super) fn functions<'js>(
    ctx: &Ctx<'js>,
    slot: &Slot,
    meter: &Rc<Meter>,
) -> Result<Object<'js>, Error> {
    let host = Object::new(ctx.clone())?;
    rows(ctx, slot, &host)?;
    ranges(ctx, slot, &host)?;
    derived(ctx, slot, meter, &host)?;
    Ok(host)
}

fn rows<'js>(ctx: &Ctx<'js>, slot: &Slot, host: &Object<'js>) -> Result<(), Error> {
    acts!(host, ctx, slot, "get", |db, table: String, id: String| {
        Ok(db.get(&table, &id)?.unwrap_or_default())
    });
    acts!(
        host,
        ctx,
        slot,
        "insert",
        |db, table: String, row: String| { db.insert(&table, &row) }
    );
    acts!(
        host,
        ctx,
        slot,
        "patch",
        |db, table: String, id: String, row: String, gone: String| {
            let gone: Vec<String> = serde_json::from_str(&gone)
                .map_err(|e| DbError::Wrong(format!("{table}.patch: {e}")))?;
            db.patch(&table, &id, &row, &gone)
        }
    );
    acts!(
        host,
        ctx,
        slot,
        "replace",
        |db, table: String, id: String, row: String| { db.replace(&table, &id, &row) }
    );
    acts!(
        host,
        ctx,
        slot,
        "delete",
        |db, table: String, id: String| { db.delete(&table, &id) }
    );
    Ok(())
}

fn wanted<'a>(
    table: &'a str,
    index: &'a str,
    range: &'a str,
    descending: bool,
    most: f64,
) -> Wanted<'a> {
    Wanted {
        table,
        index,
        range,
        descending,
        limit: limit(most),
    }
}

fn ranges<'js>(ctx: &Ctx<'js>, slot: &Slot, host: &Object<'js>) -> Result<(), Error> {
    acts!(
        host,
        ctx,
        slot,
        "open",
        |db, table: String, index: String, range: String, desc: bool, most: f64| {
            Ok(db.open(&wanted(&table, &index, &range, desc, most))? as f64)
        }
    );
    acts!(host, ctx, slot, "next", |db, cursor: f64, most: f64| {
        db.next(cursor as usize, limit(most).unwrap_or(0))
    });
    acts!(host, ctx, slot, "rewind", |db, cursor: f64, used: f64| {
        db.rewind(cursor as usize, used as usize)
    });
    acts!(
        host,
        ctx,
        slot,
        "count",
        |db, table: String, index: String, range: String, most: f64| {
            Ok(db.count(&wanted(&table, &index, &range, false, most))? as f64)
        }
    );
    acts!(
        host,
        ctx,
        slot,
        "sum",
        |db, table: String, index: String, range: String, desc: bool, most: f64, field: String| {
            db.sum(&wanted(&table, &index, &range, desc, most), &field)
        }
    );
    let slot = Rc::clone(slot);
    let page = move |ctx: Ctx<'_>,
                     table: String,
                     index: String,
                     range: String,
                     desc: bool,
                     after: String,
                     size: f64| {
        with(&ctx, &slot, |db| {
            let size = limit(size).unwrap_or(0);
            db.page(&wanted(&table, &index, &range, desc, -1.0), &after, size)
        })
    };
    host.set("page", Function::new(ctx.clone(), page)?)
}

/// What the script does next, as a letter and a text.
fn step(meter: &Meter, step: Step) -> String {
    match step {
        Step::Value(json) => format!("v{json}"),
        Step::Throw(json) => format!("t{json}"),
        Step::Evaluate(name, key) => {
            meter.enter();
            format!("x{}", serde_json::json!([name, key]))
        }
        Step::Unwind => "u".into(),
        Step::Done => String::new(),
    }
}

fn ended(outcome: &str) -> Ended<'_> {
    let body = outcome.get(1..).unwrap_or_default();
    match outcome.as_bytes().first() {
        Some(b'v') => Ended::Value(body),
        Some(b'u') => Ended::Undefined,
        Some(b'g') => Ended::Gas,
        Some(b's') => Ended::Stack,
        _ => Ended::Thrown(body),
    }
}

/// Derived values: `cell(name, key)`, `dirty(last)`, `leave(outcome)`, and `guard`.
fn derived<'js>(
    ctx: &Ctx<'js>,
    slot: &Slot,
    meter: &Rc<Meter>,
    host: &Object<'js>,
) -> Result<(), Error> {
    let (of, gauge) = (Rc::clone(slot), Rc::clone(meter));
    let cell = move |ctx: Ctx<'_>, name: String, key: String| {
        let next = with(&ctx, &of, |db| db.cell(&name, &key))?;
        Ok::<_, Error>(step(&gauge, next))
    };
    host.set("cell", Function::new(ctx.clone(), cell)?)?;
    let (of, gauge) = (Rc::clone(slot), Rc::clone(meter));
    let dirty = move |ctx: Ctx<'_>, last: bool| {
        let gas = gauge.gas();
        let next = with(&ctx, &of, |db| match db.building {
            Some(_) => db.next_built(gas),
            None => db.next_dirty(last),
        })?;
        let mut text = step(&gauge, next);
        // The letter says nothing here.
        Ok::<_, Error>(text.split_off(text.len().min(1)))
    };
    host.set("dirty", Function::new(ctx.clone(), dirty)?)?;
    let (of, gauge) = (Rc::clone(slot), Rc::clone(meter));
    let leave = move |ctx: Ctx<'_>, outcome: String| {
        gauge.leave();
        with(&ctx, &of, |db| db.leave(ended(&outcome)))
    };
    host.set("leave", Function::new(ctx.clone(), leave)?)?;
    let guard = guard(Rc::clone(meter));
    host.set("guard", Function::new(ctx.clone(), guard)?)
}

/// `guard(function, name, key)`: calls the function; answers "g" when the evaluation used up
/// its share of the gas. The one host function that calls back: what QuickJS throws when it
/// is interrupted passes every `catch` of a script. It holds nothing of the call meanwhile.
fn guard<'js>(
    meter: Rc<Meter>,
) -> impl Fn(Ctx<'js>, Function<'js>, String, String) -> Result<String, Error> {
    move |ctx, function, name, key| {
        let answer: Result<String, Error> = function.call((name, key));
        if !meter.forgive() {
            return answer;
        }
        if answer.is_err() {
            ctx.catch();
        }
        Ok("g".into())
    }
}

/// `charge(operations)`: throws once the call has used up its gas or its time.
pub(super) fn charge<'js>(ctx: &Ctx<'js>, meter: &Rc<Meter>) -> Result<Function<'js>, Error> {
    let meter = Rc::clone(meter);
    Function::new(ctx.clone(), move |ctx: Ctx<'_>, operations: f64| {
        if meter.spend(operations.clamp(0.0, 1e15) as u64) {
            return Err(Exception::throw_internal(&ctx, "interrupted"));
        }
        Ok(())
    })
}

/// `log(level, text)`: a line of the application in the node's log.
pub(super) fn log<'js>(ctx: &Ctx<'js>, slot: &Slot) -> Result<Function<'js>, Error> {
    let slot = Rc::clone(slot);
    Function::new(ctx.clone(), move |level: String, text: String| {
        if let Some(running) = slot.borrow_mut().as_mut() {
            running.lines += 1;
            if running.lines > MOST_LINES {
                return;
            }
        }
        let end = text.floor_char_boundary(LINE_BYTES);
        let text = &text[..end];
        match level.as_str() {
            "error" => tracing::error!(target: "app", "{text}"),
            "warn" => tracing::warn!(target: "app", "{text}"),
            "debug" => tracing::debug!(target: "app", "{text}"),
            _ => tracing::info!(target: "app", "{text}"),
        }
    })
}

/// `ambient()`: the call has read its clock or a random number.
pub(super) fn ambient<'js>(ctx: &Ctx<'js>, slot: &Slot) -> Result<Function<'js>, Error> {
    let slot = Rc::clone(slot);
    Function::new(ctx.clone(), move || {
        if let Some(running) = slot.borrow_mut().as_mut() {
            running.transaction.reads.clock();
        }
    })
}

/// The refusal that a bad cursor becomes.
pub(super) fn bad_cursor(why: &str) -> CallError {
    CallError::Refused(problem::invalid_args(why))
}
