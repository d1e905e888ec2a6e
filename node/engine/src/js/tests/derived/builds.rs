//! Deployments over stored cells: built in pages while the application that runs goes on
//! writing, and in the end exactly what one build over the same rows makes at once.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{super::*, ORDERS};
use crate::{
    deploy::{self, PageEnd, PageError, PageTask},
    derived::{CellId, Generation},
    key::Space,
    limits::BuildLimits,
    view::View,
};

/// Another price of shipping, one more index, and a derived value that reads it.
fn changed() -> String {
    ORDERS.replace("s + 490", "s + 590").replace(
        "{ indexes: { byOrder: ['order'] } });",
        "{ indexes: { byOrder: ['order'], byCents: ['order', 'cents'] } });
             const dearest = derived('dearest', { order: t.id('orders') }, t.int(), (db, key) =>
               db.lines.byCents.range(key).desc().first()?.cents ?? 0,
               { materialize: { each: orders }, index: 'byValue' });",
    )
}

fn manifest(source: &str) -> flower_api::manifest::Manifest {
    inspect(source, &Limits::default(), &Deadline::never()).unwrap()
}

impl World {
    /// A database whose first application was deployed.
    fn deployed(source: &str) -> Self {
        let mut world = world(source);
        world.revision = 1;
        let (view, revision) = (&world.view, Revision(1));
        let planned = deploy::plan_deployment(view, source, manifest(source), None, revision);
        world.view.apply(&planned.unwrap().patch);
        world.take_over();
        world
    }

    /// Begins a deployment; answers whether it needs a build.
    fn begin(&mut self, source: &str) -> bool {
        self.revision += 1;
        let revision = Revision(self.revision);
        let planned =
            deploy::plan_deployment(&self.view, source, manifest(source), None, revision).unwrap();
        self.view.apply(&planned.patch);
        planned.building
    }

    fn page(&mut self, rows: u64) -> PageEnd {
        self.page_within(&Limits::default(), rows).unwrap()
    }

    fn page_within(&mut self, limits: &Limits, rows: u64) -> Result<PageEnd, PageError> {
        self.revision += 1;
        let stamp = Stamp {
            now_ms: 1,
            revision: Revision(self.revision),
            seed: 1,
        };
        let view: Arc<dyn View> = Arc::new(self.view.clone());
        let mut evaluate = |task: PageTask| {
            // A page knows nothing of the one before but what is stored.
            let deployment = Arc::clone(&task.deployment);
            let mut isolate = Isolate::new(deployment, limits).unwrap();
            isolate.build(&task, stamp, &Deadline::never())
        };
        let page = deploy::page(&view, rows, None, stamp.revision, &mut evaluate);
        let page = page?.unwrap();
        self.view.apply(&page.patch);
        Ok(page.end)
    }

    fn build(&mut self, rows: u64) -> PageEnd {
        loop {
            match self.page(rows) {
                PageEnd::Going => {}
                end => return end,
            }
        }
    }

    /// The application that runs now takes the calls.
    fn take_over(&mut self) -> Generation {
        let (hash, ..) = deploy::active(&self.view).unwrap().unwrap();
        self.deployment = deploy::load(&self.view, &hash).unwrap().unwrap();
        let deployment = Arc::clone(&self.deployment);
        self.isolate = Isolate::new(deployment, &Limits::default()).unwrap();
        let wrong = crate::derived::check(&self.view, &self.deployment);
        assert_eq!(wrong, Vec::<String>::new());
        self.deployment.generation
    }

    /// The cells of a generation: their records without the revision that wrote them.
    fn cells_of(&self, of: Generation) -> BTreeMap<CellId, Vec<u8>> {
        let cells = self.view.entries().filter_map(|(space, key, value)| {
            let (id, generation) = CellId::at(space, key)?;
            (generation == of).then(|| (id, value[8..].to_vec()))
        });
        cells.collect()
    }

    fn sweep(&mut self) {
        while let Some(patch) = deploy::sweep(&self.view, 10).unwrap() {
            assert!(patch.writes().len() <= 11, "and where it goes on");
            self.view.apply(&patch);
        }
    }

    /// Generations of which anything is stored.
    fn generations(&self) -> Vec<u64> {
        let found = self
            .view
            .entries()
            .filter_map(|(space, key, _)| match space {
                Space::Readers => Generation::of_reader(key),
                _ => CellId::at(space, key).map(|(_, of)| of),
            });
        let mut found: Vec<u64> = found.map(|of| of.0).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// A little of chance, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn any_call(world: &mut World, dice: &mut Dice, orders: &mut Vec<Value>) {
    let customer = ["ann", "bob", "eve"][dice.below(3) as usize];
    let at = dice.below(orders.len().max(1) as u64) as usize;
    let cents = dice.below(9) * 700;
    match (dice.below(7), orders.get(at).cloned()) {
        (0, _) => {
            world.mutate("watch", json!({ "customer": customer }));
        }
        (1 | 2, Some(order)) => {
            world.mutate("add", json!({ "order": order, "cents": cents }));
        }
        (3, Some(order)) => {
            world.mutate("rename", json!({ "order": order, "customer": customer }));
        }
        (4, Some(order)) => {
            world.mutate("drop", json!({ "order": order }));
            orders.remove(at);
        }
        _ => {
            let lines = [cents, 100];
            orders.push(world.mutate("place", json!({ "customer": customer, "lines": lines })));
        }
    }
}

#[test]
fn a_build_under_writes_comes_to_what_one_build_makes_at_once() {
    let mut most_pages = 0;
    for seed in 1..=25 {
        let (mut dice, mut orders) = (Dice(seed), Vec::new());
        let mut world = World::deployed(ORDERS);
        (0..20).for_each(|_| any_call(&mut world, &mut dice, &mut orders));
        if !world.begin(&changed()) {
            panic!("seed {seed}: a build is needed");
        }
        let mut pages = 0;
        loop {
            let calls = if pages < 40 { dice.below(4) } else { 0 };
            (0..calls).for_each(|_| any_call(&mut world, &mut dice, &mut orders));
            pages += 1;
            match world.page(1 + dice.below(4)) {
                PageEnd::Going => {}
                end => {
                    assert_eq!(end, PageEnd::Active, "seed {seed}");
                    break;
                }
            }
        }
        most_pages = most_pages.max(pages);
        let built = world.take_over();
        assert_ne!(built, Generation(0));
        let roots = |world: &World, of: Generation| -> Vec<CellId> {
            let cells = world.cells_of(of).into_iter();
            let roots = cells.filter(|(id, value)| id.name() == "spent" && value[1] == 1);
            roots.map(|(id, _)| id).collect()
        };
        assert_eq!(
            roots(&world, Generation(0)),
            roots(&world, built),
            "seed {seed}"
        );
        // The same code again, over rows that stand still.
        if world.begin(&format!("{}\n// again", changed())) {
            assert_eq!(world.build(1_000), PageEnd::Active);
        }
        let at_once = world.take_over();
        assert_eq!(
            world.cells_of(built),
            world.cells_of(at_once),
            "seed {seed}"
        );
        world.sweep();
        assert_eq!(world.take_over(), at_once);
        assert!(
            world.generations().iter().all(|of| *of == at_once.0),
            "seed {seed}"
        );
        // It goes on from there.
        (0..5).for_each(|_| any_call(&mut world, &mut dice, &mut orders));
    }
    assert!(most_pages > 10, "only {most_pages} pages");
}

#[test]
fn what_fails_fails_the_deployment_and_never_a_mutation() {
    let mut world = World::deployed(ORDERS);
    world.mutate("place", json!({ "customer": "ann", "lines": [1000] }));
    let before = world.view.clone();
    let strict = ORDERS.replace(
        "return s < 5000",
        "if (s > 4000) throw new Error('too dear'); return s < 5000",
    );
    assert!(world.begin(&strict));
    // The old code serves, and what it writes is too much for the new one.
    let dear = world.mutate("place", json!({ "customer": "bob", "lines": [4500] }));
    let PageEnd::Failed(why) = world.build(1) else {
        panic!("it failed")
    };
    let told = format!("total({{\"order\":{dear}}}): too dear");
    assert!(why.contains(&told), "{why}");
    let failed = deploy::failed(&world.view).unwrap().unwrap();
    assert_eq!(failed.why, why);
    assert!(deploy::pending(&world.view).unwrap().is_none());
    world.sweep();
    assert_eq!(world.take_over(), Generation(0));
    assert_eq!(world.generations(), [0]);
    assert_eq!(world.query("totalOf", json!({ "order": dear })), 4990);
    // Another deployment forgets it; over the rows of then the same code is fine.
    world.view = before;
    assert!(world.begin(&strict));
    assert_eq!(world.build(1), PageEnd::Active);
    assert!(deploy::failed(&world.view).unwrap().is_none());
}

#[test]
fn what_fails_already_does_not_stand_in_the_way() {
    let failing = ORDERS.replace(
        "return s < 5000",
        "if (s > 4000) throw new Error('dear'); return s < 5000",
    );
    let mut world = World::deployed(&failing);
    let order = world.mutate("place", json!({ "customer": "ann", "lines": [4500] }));
    assert!(world.begin(&format!("{failing}\n// again")));
    assert_eq!(world.build(10), PageEnd::Active);
    world.take_over();
    let error = world.query_raw("totalOf", &json!({ "order": order }).to_string());
    assert!(error.is_err(), "it is stored as before");
}

#[test]
fn keys_of_another_type_and_values_that_are_dropped_leave_nothing() {
    let mut world = World::deployed(ORDERS);
    world.mutate("place", json!({ "customer": "ann", "lines": [1000] }));
    world.mutate("watch", json!({ "customer": "ann" }));
    assert_eq!(world.count(Space::Cells), 1);
    let other = ORDERS
        .replace(
            "derived('spent', { customer: t.text() }",
            "derived('spent', { customer: t.int() }",
        )
        .replace(
            "byCustomer.range({ customer })",
            "byCustomer.range({ customer: `c${customer}` })",
        );
    assert!(world.begin(&other));
    assert_eq!(world.build(100), PageEnd::Active);
    let of = world.take_over();
    world.sweep();
    assert_eq!(
        world.count(Space::Cells),
        0,
        "its keys name nothing any more"
    );
    assert_eq!(world.generations(), [of.0]);
    assert_eq!(world.cells(), 2);
    let plain = "import { mutation, t, table } from '@flower/sdk';
        table('orders', { customer: t.text() }, { indexes: { byCustomer: ['customer'] } });
        table('lines', { order: t.id('orders'), qty: t.int(), cents: t.int() },
          { indexes: { byOrder: ['order'] } });
        export const noop = mutation({}, () => 1);";
    assert!(!world.begin(plain), "nothing is built");
    world.take_over();
    world.sweep();
    assert_eq!((world.cells(), world.count(Space::Readers)), (0, 0));
}

const PARTS: &str = "import { derived, mutation, t, table } from '@flower/sdk';
    const kits = table('kits', {});
    const parts = table('parts', { kit: t.id('kits'), n: t.int() }, { indexes: { byKit: ['kit'] } });
    export const kit = mutation({ args: {} }, (tx) => tx.kits.insert({}));
    export const part = mutation({ args: { kit: t.id('kits'), n: t.int() } },
      (tx, part) => tx.parts.insert(part));
    export const change = mutation({ args: { part: t.id('parts'), n: t.int() } },
      (tx, { part, n }) => { tx.parts.patch(part, { n }); });";

/// A value of each kit, over one of each of its parts.
fn kits(sum: &str) -> String {
    format!(
        "{PARTS}
        const size = derived('size', {{ part: t.id('parts') }}, t.int(),
          (db, {{ part }}) => db.parts.get(part).n);
        derived('whole', {{ kit: t.id('kits') }}, t.int(), (db, key, get) =>
          {sum}, {{ materialize: {{ each: kits }} }});"
    )
}

const SUM: &str =
    "db.parts.byKit.range(key).all().reduce((sum, part) => sum + get(size, { part: part.id }), 0)";

#[test]
fn a_value_is_built_that_only_its_changes_fit_a_call() {
    let tight = |cells, rows_read| Limits {
        cells: 10,
        rows_read: 300,
        build: BuildLimits {
            cells,
            rows_read,
            ..BuildLimits::default()
        },
        ..Limits::default()
    };
    let mut world = World::deployed(PARTS);
    let kit = world.mutate("kit", json!({}));
    let parts: Vec<Value> = (0..40)
        .map(|n| world.mutate("part", json!({ "kit": kit, "n": n })))
        .collect();
    assert!(world.begin(&kits(SUM)));
    // Forty-one evaluations of one kit, and at least eighty rows and entries.
    for (limits, setting) in [
        (tight(30, 1_000), "FLOWER_LIMIT_BUILD_CELLS"),
        (tight(1_000, 10), "FLOWER_LIMIT_BUILD_ROWS_READ"),
    ] {
        let limits = Limits {
            rows_read: 10,
            ..limits
        };
        match world.page_within(&limits, 1) {
            Err(PageError::Budget(problem)) => {
                assert_eq!(problem.setting.as_deref(), Some(setting));
                assert!(problem.detail.contains("the build used up"), "{problem:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let limits = tight(41, 1_000);
    while world.page_within(&limits, 1).unwrap() == PageEnd::Going {}
    world.take_over();
    // A change of it fits a call.
    let deployment = Arc::clone(&world.deployment);
    world.isolate = Isolate::new(deployment, &limits).unwrap();
    world.mutate("change", json!({ "part": parts[7], "n": 100 }));
    world.take_over();
}

#[test]
fn a_function_that_loops_fails_the_build_by_its_own_share() {
    let mut world = World::deployed(PARTS);
    world.mutate("kit", json!({}));
    assert!(world.begin(&kits("{ for (;;) {} }")));
    match world.build(10) {
        PageEnd::Failed(why) => assert!(why.contains("a tenth of FLOWER_LIMIT_GAS"), "{why}"),
        other => panic!("{other:?}"),
    }
}
